"""What attention rollout may be while every head's output stays the same."""
