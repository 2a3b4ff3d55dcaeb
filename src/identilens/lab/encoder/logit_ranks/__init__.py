"""The study logit_ranks."""
