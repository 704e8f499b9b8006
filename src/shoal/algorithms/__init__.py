"""Methods and their hyperparameters."""
