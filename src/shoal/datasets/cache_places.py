"""Where decoded images lie, and of which files they are."""

import glob
import hashlib
import json
import os
from pathlib import Path

from torch import Tensor

from .base import Domain, DomainDataset

# Files of a domain that are looked into, and how many bytes of each.
LOOKED_INTO, READ = 8, 1 << 20


def cache_root() -> Path:
    """Return the folder of all caches: $SHOAL_CACHE, or ~/.cache/shoal."""
    return Path(os.environ.get("SHOAL_CACHE", Path.home() / ".cache" / "shoal"))


def cache_folder(dataset: DomainDataset, root: Path) -> Path:
    """Return where under ``root`` the cache of a data set lies, as its files are now."""
    state = _sha256([sources(domain) for domain in dataset.domains])
    return root / f"{_of(dataset.name, dataset.fingerprint)}-{state[:8]}"


def caches_of(name: str, fingerprint: str, root: Path) -> list[Path]:
    """Return the caches under ``root`` of a data set, whenever its files changed."""
    return sorted(root.glob(f"{glob.escape(_of(name, fingerprint))}*"))


def _of(name: str, fingerprint: str) -> str:
    return f"{name}-{fingerprint[:12]}"


def sources(domain: Domain) -> str:
    """Return the SHA-256 of the names and sizes of a domain's files, and of when they changed.

    Not of where they lie: a folder that was moved, or copied with its times, is the same. What some
    of them hold is in it, because archives may give all their files one time.
    """
    if isinstance(domain.images, Tensor):
        return ""
    some = domain.images[:: max(1, len(domain.images) // LOOKED_INTO)]
    names, held = [path.name for path in domain.images], [_beginning(path) for path in some]
    return _sha256([names, domain.stamps.tolist(), held])


def _beginning(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(READ)).hexdigest()
    except OSError:  # named where it is decoded
        return ""


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
