"""VLCS (Fang et al., 2013): 10,729 images, 4 collections, 5 classes."""

from pathlib import Path

from .base import DomainDataset
from .folders import benchmark_folders

# Folders, and what tables call them.
DOMAINS = {"Caltech101": "C", "LabelMe": "L", "SUN09": "S", "VOC2007": "V"}
PUBLISHED = {"Caltech101": 1_415, "LabelMe": 2_656, "SUN09": 3_282, "VOC2007": 3_376}


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return VLCS from ``root/VLCS``, the same in every trial."""
    return benchmark_folders("vlcs", root, "VLCS", tuple(DOMAINS))
