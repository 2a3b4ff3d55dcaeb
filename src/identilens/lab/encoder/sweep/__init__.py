"""The study sweep."""
