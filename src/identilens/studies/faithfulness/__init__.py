"""The study faithfulness."""
