"""Alternatives that the head's own queries and keys could produce: their dimension, and one that is far."""
