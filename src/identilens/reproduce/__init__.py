"""Reproductions of published tables and figures: one file each, with published and measured numbers."""
