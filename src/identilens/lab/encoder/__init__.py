"""Identifiable transformer encoders (Bhardwaj et al. 2021): models, data, training."""

from identilens.lab.encoder.rank_lengths import rank_by_length as rank_by_length
