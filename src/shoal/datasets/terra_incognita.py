"""Terra Incognita (Beery et al., 2018), DomainBed's part: 24,788 images, 4 cameras, 10 classes."""

from pathlib import Path

from .base import DomainDataset
from .folder import benchmark_folders

# Folders, and what tables call them.
DOMAINS = {"location_100": "L100", "location_38": "L38", "location_43": "L43", "location_46": "L46"}
CLASSES = (
    "bird",
    "bobcat",
    "cat",
    "coyote",
    "dog",
    "empty",
    "opossum",
    "rabbit",
    "raccoon",
    "squirrel",
)
# Of the download that the published numbers were made with; a later one has 24,330.
PUBLISHED = {
    "location_100": 4_879,
    "location_38": 9_767,
    "location_43": 4_020,
    "location_46": 6_122,
}


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return Terra Incognita from ``root/terra_incognita``, the same in every trial."""
    return benchmark_folders("terra-incognita", root, "terra_incognita", tuple(DOMAINS))
