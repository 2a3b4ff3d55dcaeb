"""Trials of every model type of transformers, and the pages and tables made from them."""
