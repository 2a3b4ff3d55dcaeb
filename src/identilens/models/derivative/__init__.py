"""Our derivative engine: a derivative is recorded once per text, then applied to many tangents (see `jacobian`)."""
