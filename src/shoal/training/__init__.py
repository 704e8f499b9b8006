"""Training: batches, augmentation, steps, evaluation, records and checkpoints of one run."""
