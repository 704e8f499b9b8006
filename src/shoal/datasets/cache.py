"""Cache of decoded images: built once per data set, with a manifest of hashes, and mapped."""

import errno
import glob
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..choices import choose
from ..documents import read_json
from ..escapes import brief
from ..files import IMAGE_BYTES, TENSOR_BYTES, UnfitFile, open_file
from ..storage import hold_lock, write_json
from .base import EVALUATION_SIDE, Domain, DomainDataset
from .decoded import (
    TRAINING_SIDE,
    CachedDomain,
    Written,
    file_names,
    map_domain,
    write_domain,
)

SCHEMA = 1
MANIFEST, LOCK = "manifest.json", ".lock"
# The number of a domain's files whose content is hashed, and the bytes of each.
SAMPLED_FILES, SAMPLED_BYTES = 8, 1 << 20

# Size and SHA-256 of each file of a domain in the cache.
Files = dict[str, Written]


@dataclass(frozen=True, eq=False)
class ImageCache:
    """The decoded images of a data set, by domain; files are mapped, not read."""

    name: str
    fingerprint: str
    domains: dict[str, CachedDomain]

    def __getitem__(self, name: str) -> CachedDomain:
        return self.domains[choose(f"domain of {self.name}", name, self.domains)]


def cache_folder(dataset: DomainDataset, root: Path) -> Path:
    """Return the folder of a data set's cache under ``root``, for its files as they are now."""
    state = _sha256([hash_files(domain) for domain in dataset.domains])
    return root / f"{_prefix(dataset.name, _fingerprint(dataset))}-{state[:8]}"


def _fingerprint(dataset: DomainDataset) -> str:
    """Return the fingerprint without groups, which change the splits and no pixel."""
    whole = dataset if dataset.groups is None else replace(dataset, groups=None)
    return whole.fingerprint


def find_caches(name: str, fingerprint: str, root: Path) -> list[Path]:
    """Return all caches of a data set under ``root``, also those of files that changed since."""
    return sorted(root.glob(f"{glob.escape(_prefix(name, fingerprint))}*"))


def _prefix(name: str, fingerprint: str) -> str:
    return f"{name}-{fingerprint[:12]}"


def hash_files(domain: Domain) -> str:
    """Return the SHA-256 of a domain's file names, sizes, times of change and some contents.

    Folders are not part of it: files that were moved, or copied with their times, hash the same.
    Some contents are part of it because archives can give all their files one time.
    """
    if domain.in_memory:
        return ""
    sample = domain.files[:: max(1, len(domain) // SAMPLED_FILES)]
    names = [path.name for path in domain.files]
    contents = [_hash_beginning(path) for path in sample]
    return _sha256([names, domain.stamps.tolist(), contents])


def _hash_beginning(path: Path) -> str:
    try:
        with open_file(path, IMAGE_BYTES) as file:
            return hashlib.sha256(file.read(SAMPLED_BYTES)).hexdigest()
    except (OSError, UnfitFile):  # reported when it is decoded
        return ""


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def open_or_build_cache(
    dataset: DomainDataset, root: Path, progress: Callable[[int, int], object] | None = None
) -> ImageCache | None:
    """Return the data set's cache under ``root``, built if it is not complete; None in memory."""
    if dataset.in_memory:
        return None
    return build(dataset, cache_folder(dataset, root), progress)


def build(
    dataset: DomainDataset,
    folder: Path,
    progress: Callable[[int, int], object] | None = None,
    workers: int | None = None,
) -> ImageCache:
    """Decode all images into ``folder`` and return the cache.

    Domains that are already decoded are kept, unless their files have changed since.

    Args:
        progress: called after every image with the number of images done, and of all images.
        workers: threads that decode; by default one per processor.
    """
    files = _files_by_domain(dataset)
    if len(_finished_domains(dataset, folder)) < len(files):
        busy = OSError(f"another process builds a cache in {folder}; wait for it")
        with hold_lock(folder / LOCK, busy), _explain_full_disk(dataset, folder):
            _build(dataset, folder, files, progress, workers)
    return open_cache(dataset, folder)


def _build(
    dataset: DomainDataset,
    folder: Path,
    files: dict[str, tuple[Path, ...]],
    progress: Callable[[int, int], object] | None,
    workers: int | None,
) -> None:
    finished = _finished_domains(dataset, folder)
    _write_manifest(dataset, folder, finished)  # from now on the folder is this data set's
    total, done = sum(map(len, files.values())), 0
    for number, (name, paths) in enumerate(files.items()):
        for file in file_names(number):
            for stray in folder.glob(f".{file}.*"):  # of a build that was killed
                stray.unlink()
        if name not in finished:

            def count(written: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + written, total)

            finished[name] = write_domain(folder, number, paths, dataset.reading, count, workers)
            _write_manifest(dataset, folder, finished)
        done += len(paths)


def open_cache(dataset: DomainDataset, folder: Path, check: bool = False) -> ImageCache:
    """Return the cache that ``build`` wrote; raise if it is not complete.

    Args:
        check: also compare the hash of every file, which reads them all.
    """
    _files_by_domain(dataset)
    files = _read_manifest(dataset, folder)
    if missing := [name for name in dataset.names if name not in files]:
        raise ValueError(
            f"the cache of {dataset.name} in {folder} lacks {', '.join(missing)}: not decoded yet, "
            "or changed since; build it again: finished domains are kept"
        )
    for number, name in enumerate(dataset.names):
        if damage := _find_damage(folder, number, files[name], check):
            raise ValueError(f"{damage}; build the cache again: other domains are kept")
    domains = {name: map_domain(folder, number) for number, name in enumerate(dataset.names)}
    return ImageCache(dataset.name, _fingerprint(dataset), domains)


def evaluation_images(domain: Domain, cache: ImageCache | None) -> Tensor:
    """Return the inputs of a domain that a network evaluates: from memory, or from the cache."""
    if domain.in_memory:
        return domain.tensor
    if cache is None:
        raise ValueError(f"the images of the domain {domain.name!r} are files: a cache is needed")
    return cache[domain.name].evaluation


def _files_by_domain(dataset: DomainDataset) -> dict[str, tuple[Path, ...]]:
    if dataset.in_memory:
        raise ValueError(
            f"images of {dataset.name} are in memory already and need no cache; use the images of "
            "its domains"
        )
    return {domain.name: domain.files for domain in dataset.domains}


def _finished_domains(dataset: DomainDataset, folder: Path) -> dict[str, Files]:
    """Return the cached files of the domains that need not be decoded."""
    if not (folder / MANIFEST).exists():
        return {}
    files = _read_manifest(dataset, folder)
    return {
        name: files[name]
        for number, name in enumerate(dataset.names)
        if name in files and not _find_damage(folder, number, files[name], check=False)
    }


def _identity(dataset: DomainDataset) -> dict[str, Any]:
    """Return the fields that must agree between a manifest and the data set that opens it."""
    return {
        "schema": SCHEMA,
        "name": dataset.name,
        "fingerprint": _fingerprint(dataset),
        "evaluation_side": EVALUATION_SIDE,
        "training_side": TRAINING_SIDE,
    }


def _write_manifest(dataset: DomainDataset, folder: Path, files: dict[str, Files]) -> None:
    domains = {
        name: {file: written._asdict() for file, written in found.items()}
        for name, found in files.items()
    }
    hashes = {name: hash_files(dataset[name]) for name in files}
    write_json(folder / MANIFEST, {**_identity(dataset), "domains": domains, "sources": hashes})


def _read_manifest(dataset: DomainDataset, folder: Path) -> dict[str, Files]:
    """Return the cached files of the domains that have not changed since they were decoded."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"no cache of {dataset.name} in {folder}: build it first")
    manifest = read_json(path)
    for key, expected in _identity(dataset).items():
        found = manifest.get(key) if isinstance(manifest, dict) else None
        if found != expected:
            raise ValueError(
                f"{folder} holds another cache: its {key} is {brief(found)}, {dataset.name} needs "
                f"{expected!r}; give another folder, or delete this one"
            )
    try:
        return {
            name: {file: Written(**written) for file, written in manifest["domains"][name].items()}
            for name in dataset.names
            if name in manifest["domains"]
            and manifest.get("sources", {}).get(name) == hash_files(dataset[name])
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged; delete it and build the cache again") from error


def _find_damage(folder: Path, number: int, files: Files, check: bool) -> str | None:
    """Return which of the domain's files differs from what was written, and how."""
    for name in file_names(number):
        path, written = folder / name, files.get(name)
        size = path.stat().st_size if path.is_file() else None
        if written is None or size is None:
            return f"{path} is missing"
        if size != written.size:
            return f"delete {path}, which is damaged: {size} bytes, expected {written.size}"
        if check:
            with open_file(path, TENSOR_BYTES) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != written.sha256:
                    return f"delete {path}, which is damaged: its SHA-256 is not {MANIFEST}'s"
    return None


@contextmanager
def _explain_full_disk(dataset: DomainDataset, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"no space is left for the cache of {dataset.name} in {folder}; make some or give "
            "another folder, and build again: finished domains are kept"
        ) from error
