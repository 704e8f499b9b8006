"""Benchmarks: one command each; results are in ``benchmarks/results``."""
