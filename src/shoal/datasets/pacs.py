"""PACS (Li et al., 2017): 9,991 images, 4 styles, 7 classes."""

from pathlib import Path

from .base import DomainDataset
from .folders import benchmark_folders

# Folders, and what tables call them.
DOMAINS = {"art_painting": "A", "cartoon": "C", "photo": "P", "sketch": "S"}
PUBLISHED = {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return PACS from ``root/PACS``, the same in every trial."""
    return benchmark_folders("pacs", root, "PACS", tuple(DOMAINS))
