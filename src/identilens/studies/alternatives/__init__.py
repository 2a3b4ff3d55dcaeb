"""The study alternatives."""
