"""A derivative engine of our own: recorded once for a text, then run on many tangents (see `jacobian`)."""
