"""What several tests share: tiny models, made-up heads and results, a browser, commands in this process."""
