"""Texts written for identilens, to try it on; same licence as the code."""
