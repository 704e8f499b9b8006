"""Where decoded images lie."""

import os
from pathlib import Path

from .base import DomainDataset


def cache_root() -> Path:
    """Return the folder of all caches: $SHOAL_CACHE, or ~/.cache/shoal."""
    return Path(os.environ.get("SHOAL_CACHE", Path.home() / ".cache" / "shoal"))


def cache_folder(dataset: DomainDataset, root: Path) -> Path:
    """Return where under ``root`` the cache of a data set lies."""
    return root / f"{dataset.name}-{dataset.fingerprint[:12]}"
