"""The study intervals."""
