"""Sources of a logit: by head and source token, with intervals over all alternatives."""
