"""The study reversal."""
