"""Published patterns of attention, with proven intervals over all alternatives."""
