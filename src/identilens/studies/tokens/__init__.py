"""The study tokens."""
