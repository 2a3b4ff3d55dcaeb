"""Measures: tensors in, frozen dataclasses out; they know no model."""
