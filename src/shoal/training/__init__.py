"""Training: how a step runs."""
