"""Engines compute the parts of a run: in processes of this machine, or in actors of a Ray cluster."""
