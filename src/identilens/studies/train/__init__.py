"""The study train."""
