"""The study trust."""
