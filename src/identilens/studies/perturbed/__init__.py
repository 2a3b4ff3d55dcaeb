"""Perturbed attention put back into a model: a library of the studies structure and reversal."""
