"""Runs: one training run in its folder, from its definition to its saved model."""
