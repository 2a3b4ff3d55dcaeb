"""The study certify."""
