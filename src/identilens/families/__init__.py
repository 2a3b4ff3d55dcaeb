"""The table of which model types of transformers can be audited."""
