"""The experiments of ``shoal reproduce``, one file for each."""
