"""Where decoded images lie, and of which files they are."""

import glob
import hashlib
import json
import os
from pathlib import Path

from torch import Tensor

from .base import Domain, DomainDataset


def cache_root() -> Path:
    """Return the folder of all caches: $SHOAL_CACHE, or ~/.cache/shoal."""
    return Path(os.environ.get("SHOAL_CACHE", Path.home() / ".cache" / "shoal"))


def cache_folder(dataset: DomainDataset, root: Path) -> Path:
    """Return where under ``root`` the cache of a data set lies: one for each place of its files."""
    folders = sorted({folder for domain in dataset.domains for folder in _folders(domain)})
    return root / f"{_of(dataset.name, dataset.fingerprint)}-{_sha256(folders)[:8]}"


def caches_of(name: str, fingerprint: str, root: Path) -> list[Path]:
    """Return the caches under ``root`` of a data set, wherever its files lay."""
    return sorted(root.glob(f"{glob.escape(_of(name, fingerprint))}*"))


def _of(name: str, fingerprint: str) -> str:
    return f"{name}-{fingerprint[:12]}"


def sources(domain: Domain) -> str:
    """Return the SHA-256 of where a domain's files lie, their sizes and when they changed."""
    names = [path.name for path in _files(domain)]
    return _sha256([_folders(domain), names, domain.stamps.tolist()])


def _folders(domain: Domain) -> list[str]:
    """Return the folder of each file, links to folders followed."""
    folders = [os.path.dirname(path) for path in _files(domain)]
    real = {folder: os.path.realpath(folder) for folder in set(folders)}
    return [real[folder] for folder in folders]


def _files(domain: Domain) -> tuple[Path, ...]:
    return () if isinstance(domain.images, Tensor) else domain.images


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
