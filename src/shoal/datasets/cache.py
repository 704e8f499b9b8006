"""Images decoded once: two caches of a data set on the disk, with a manifest of hashes."""

import errno
import glob
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..choices import choose
from ..storage import hold_lock, read_json, write_json
from .base import EVALUATION_SIDE, Domain, DomainDataset
from .decoded import (
    TRAINING_SIDE,
    CachedDomain,
    Written,
    file_names,
    map_domain,
    write_domain,
)

# Files of a domain that are looked into, and how many bytes of each.
LOOKED_INTO, READ = 8, 1 << 20


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
    if domain.in_memory:
        return ""
    some = domain.files[:: max(1, len(domain) // LOOKED_INTO)]
    names, held = [path.name for path in domain.files], [_beginning(path) for path in some]
    return _sha256([names, domain.stamps.tolist(), held])


def _beginning(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(READ)).hexdigest()
    except OSError:  # named where it is decoded
        return ""


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


SCHEMA = 1
MANIFEST, LOCK = "manifest.json", ".lock"
# Per domain, in its order in the data set: size and SHA-256 of its files.
Files = dict[str, Written]


@dataclass(frozen=True, eq=False)
class ImageCache:
    """The decoded images of a data set, by domain; files are mapped, not read."""

    name: str
    fingerprint: str
    domains: dict[str, CachedDomain]

    def __getitem__(self, name: str) -> CachedDomain:
        return self.domains[choose(f"domain of {self.name}", name, self.domains)]


def build(
    dataset: DomainDataset,
    folder: Path,
    progress: Callable[[int, int], object] | None = None,
    workers: int | None = None,
) -> ImageCache:
    """Decode all images into ``folder`` and return the cache; finished domains are kept.

    A domain is decoded again where its files have changed since.

    Args:
        progress: called after every image with how many are done, of how many.
        workers: threads that decode; by default as many as there are processors.
    """
    images = _images(dataset)
    if len(_finished(dataset, folder)) < len(images):
        busy = OSError(f"another process builds a cache in {folder}; wait for it")
        with hold_lock(folder / LOCK, busy), _told_of_a_full_disk(dataset, folder):
            _build(dataset, folder, images, progress, workers)
    return open_cache(dataset, folder)


def open_or_build_cache(
    dataset: DomainDataset, root: Path, progress: Callable[[int, int], object] | None = None
) -> ImageCache | None:
    """Return the data set's cache under ``root``, built if it is not whole; None in memory."""
    if dataset.in_memory:
        return None
    return build(dataset, cache_folder(dataset, root), progress)


def _build(
    dataset: DomainDataset,
    folder: Path,
    images: dict[str, tuple[Path, ...]],
    progress: Callable[[int, int], object] | None,
    workers: int | None,
) -> None:
    finished = _finished(dataset, folder)
    _write_manifest(dataset, folder, finished)  # from now on the folder is this data set's
    total, done = sum(map(len, images.values())), 0
    for number, (name, paths) in enumerate(images.items()):
        for file in file_names(number):
            for stray in folder.glob(f".{file}.*"):  # of a build that was killed
                stray.unlink()
        if name not in finished:

            def told(written: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + written, total)

            finished[name] = write_domain(folder, number, paths, told, workers)
            _write_manifest(dataset, folder, finished)
        done += len(paths)


def open_cache(dataset: DomainDataset, folder: Path, check: bool = False) -> ImageCache:
    """Return the cache that ``build`` made of the whole data set; raise where it is not whole.

    Args:
        check: also compare the hash of every file, which reads them all.
    """
    _images(dataset)
    files = _recorded(dataset, folder)
    if missing := [name for name in dataset.names if name not in files]:
        raise ValueError(
            f"the cache of {dataset.name} in {folder} lacks {', '.join(missing)}: not decoded yet, "
            "or changed since; build it again: domains that are finished are kept"
        )
    for number, name in enumerate(dataset.names):
        if damage := _damage(folder, number, files[name], check):
            raise ValueError(f"{damage}; build the cache again: other domains are kept")
    domains = {name: map_domain(folder, number) for number, name in enumerate(dataset.names)}
    return ImageCache(dataset.name, dataset.fingerprint, domains)


def evaluation_images(domain: Domain, cache: ImageCache | None) -> Tensor:
    """Return the inputs of a domain that a network evaluates: from memory, or from the cache."""
    if domain.in_memory:
        return domain.tensor
    if cache is None:
        raise ValueError(f"the images of the domain {domain.name!r} are files: a cache is needed")
    return cache[domain.name].evaluation


def _images(dataset: DomainDataset) -> dict[str, tuple[Path, ...]]:
    if dataset.in_memory:
        raise ValueError(
            f"images of {dataset.name} are in memory already: they need no cache, use "
            "its domains' images"
        )
    return {domain.name: domain.files for domain in dataset.domains}


def _finished(dataset: DomainDataset, folder: Path) -> dict[str, Files]:
    """Return the domains that need not be built."""
    if not (folder / MANIFEST).exists():
        return {}
    files = _recorded(dataset, folder)
    return {
        name: files[name]
        for number, name in enumerate(dataset.names)
        if name in files and not _damage(folder, number, files[name], check=False)
    }


def _identity(dataset: DomainDataset) -> dict[str, Any]:
    """Return what must agree between a manifest and whoever opens the cache."""
    return {
        "schema": SCHEMA,
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "evaluation_side": EVALUATION_SIDE,
        "training_side": TRAINING_SIDE,
    }


def _write_manifest(dataset: DomainDataset, folder: Path, files: dict[str, Files]) -> None:
    domains = {
        name: {file: written._asdict() for file, written in found.items()}
        for name, found in files.items()
    }
    decoded = {name: sources(dataset[name]) for name in files}
    write_json(folder / MANIFEST, {**_identity(dataset), "domains": domains, "sources": decoded})


def _recorded(dataset: DomainDataset, folder: Path) -> dict[str, Files]:
    """Return the files of the domains that are decoded as they are; raise if it is another's."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"no cache of {dataset.name} in {folder}: build it first")
    manifest = read_json(path)
    for key, expected in _identity(dataset).items():
        found = manifest.get(key) if isinstance(manifest, dict) else None
        if found != expected:
            raise ValueError(
                f"{folder} holds another cache: its {key} is {found!r}, {dataset.name} needs "
                f"{expected!r}; give another folder, or delete this one"
            )
    try:
        return {
            name: {file: Written(**written) for file, written in manifest["domains"][name].items()}
            for name in dataset.names
            if name in manifest["domains"]
            and manifest.get("sources", {}).get(name) == sources(dataset[name])
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged; delete it and build the cache again") from error


def _damage(folder: Path, number: int, files: Files, check: bool) -> str | None:
    """Return which of the domain's files is not as it was written, and how."""
    for name in file_names(number):
        path, written = folder / name, files.get(name)
        size = path.stat().st_size if path.is_file() else None
        if written is None or size is None:
            return f"{path} is missing"
        if size != written.size:
            return f"delete {path}, which is damaged: {size} bytes, expected {written.size}"
        if check:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != written.sha256:
                    return f"delete {path}, which is damaged: its SHA-256 is not {MANIFEST}'s"
    return None


@contextmanager
def _told_of_a_full_disk(dataset: DomainDataset, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"no space is left for the cache of {dataset.name} in {folder}; make some or give "
            "another folder, and build again: domains that are finished are kept"
        ) from error
