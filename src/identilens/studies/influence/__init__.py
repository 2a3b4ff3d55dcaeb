"""Influence: what happens to the model when a head, or a key of a row, is removed."""
