"""Sweeps: many runs, planned, carried out by local or Ray workers, and timed."""
