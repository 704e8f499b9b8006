"""OfficeHome (Venkateswara et al., 2017): 15,588 images, 4 styles, 65 classes."""

from pathlib import Path

from .base import DomainDataset
from .folders import benchmark_folders

# Folders, and what tables call them.
DOMAINS = {"Art": "A", "Clipart": "C", "Product": "P", "Real World": "R"}
PUBLISHED = 15_588


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return OfficeHome from ``root/office_home``, the same in every trial."""
    return benchmark_folders("office-home", root, "office_home", tuple(DOMAINS))
