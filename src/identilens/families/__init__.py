"""Which model types of transformers can be captured: tiny random models of each, and what became of them."""
