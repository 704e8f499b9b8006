"""Sweeps: many runs, planned once, trained by local or Ray workers, with the time left."""
