"""Engines: who computes the parts of a run: processes of this machine, or actors of a Ray cluster."""
