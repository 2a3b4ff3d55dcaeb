"""The study mixing."""
