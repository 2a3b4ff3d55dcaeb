"""The analyses: one folder each, with its settings and parts, its result, and its views."""
