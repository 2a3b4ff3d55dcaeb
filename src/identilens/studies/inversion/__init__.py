"""The study inversion."""
