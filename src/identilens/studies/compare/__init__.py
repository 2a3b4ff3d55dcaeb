"""Comparing results of one study."""
