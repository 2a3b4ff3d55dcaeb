"""The study structure."""
