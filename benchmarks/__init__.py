"""What is measured, against whom: one command each, results under ``benchmarks/results``."""
