"""What attention rollout may be while every hidden state of the model stays the same."""
