"""The study audit."""
