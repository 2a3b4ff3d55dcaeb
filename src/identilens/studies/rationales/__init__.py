"""The study rationales."""
