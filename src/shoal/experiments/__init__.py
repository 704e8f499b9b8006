"""The paper's experiments, one file each, beside the paper's numbers."""
