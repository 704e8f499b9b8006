"""Experiments of the paper: one file each, with its numbers, table and figure."""
