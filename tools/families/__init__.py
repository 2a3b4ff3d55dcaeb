"""Trials of every model type of transformers, and the table made of them."""
