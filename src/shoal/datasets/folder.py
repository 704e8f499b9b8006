"""Images in ``domain/class/file`` folders."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..checks import choose
from .base import Domain, DomainDataset

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# How many of the files at fault a message names.
NAMED = 10


def image_folders(
    name: str,
    root: Path,
    domains: Sequence[str] | None = None,
    leave_out: Collection[str] = (),
) -> DomainDataset:
    """Return the data set whose images lie at ``root/domain/class/file``.

    Classes are unified over the domains by name, so a domain may lack some: see
    ``missing_classes``. Files are in the order of their names; hidden ones are not looked at.

    Args:
        domains: the folders to take, in this order; by default all, sorted.
        leave_out: files that are there and not wanted, as ``domain/class/file``.
    """
    if not root.is_dir():
        raise ValueError(f"no such folder: {root}; {name} needs its images at {_expected(root)}")
    folders = [entry.name for entry in _visible(root) if entry.is_dir()]
    if not folders:
        raise ValueError(f"no domains: {root} has no folders; expected {_expected(root)}")
    left_out = frozenset(leave_out)
    names = [choose(f"domain folder of {root}", domain, folders) for domain in domains or folders]
    faults = _Faults()
    files = {domain: _files(root, domain, left_out, faults) for domain in names}
    faults.check(root)
    for domain in names:
        if not files[domain]:
            raise ValueError(f"the domain {domain!r} has no images; expected {_expected(root)}")
    return of_files(name, names, files)


def of_files(
    name: str, domains: Sequence[str], files: Mapping[str, Sequence[tuple[str, Path]]]
) -> DomainDataset:
    """Return the data set of these domains, each with its files and their classes."""
    classes = sorted({kind for domain in domains for kind, _ in files[domain]})
    number = {kind: index for index, kind in enumerate(classes)}
    found = (
        Domain(
            domain,
            torch.tensor([number[kind] for kind, _ in files[domain]], dtype=torch.int64),
            tuple(path for _, path in files[domain]),
        )
        for domain in domains
    )
    return DomainDataset(name, tuple(classes), tuple(found))


def benchmark_folders(
    name: str,
    root: Path | None,
    folder: str,
    domains: Sequence[str],
    leave_out: Collection[str] = (),
) -> DomainDataset:
    """Return a published data set, whose images lie at ``root/folder/domain/class/file``."""
    if root is None:
        raise ValueError(
            f"{name} does not come with shoal: put its files at {_expected(Path(folder))}, "
            f"with the domains {', '.join(domains)}, and give the folder that holds {folder}/"
        )
    if not (root / folder).is_dir() and all((root / domain).is_dir() for domain in domains):
        raise ValueError(
            f"{root} is {name} itself; give the folder that holds it, "
            f"in which it must be called {folder}"
        )
    return image_folders(name, root / folder, domains, leave_out)


def is_image(path: Path) -> bool:
    """Return whether the suffix is an image's; what is inside is another matter."""
    return path.suffix.lower() in SUFFIXES


def some(items: Sequence[object]) -> str:
    """Return the first ten items as text, and how many more there are."""
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(map(str, items[:NAMED])) + more


@dataclass
class _Faults:
    """What is not as expected, over all domains: one message tells of all."""

    misplaced: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    def check(self, root: Path) -> None:
        if self.misplaced:
            raise ValueError(f"expected {_expected(root)}, found {some(self.misplaced)}")
        if self.empty:
            raise ValueError(
                f"class folders without a file: {some(self.empty)}; fill or remove them"
            )
        if self.strange:
            raise ValueError(
                f"no images by their suffix: {some(self.strange)}; remove them, or convert them "
                f"to one of {', '.join(SUFFIXES)}"
            )


def _files(
    root: Path, domain: str, left_out: frozenset[str], faults: _Faults
) -> list[tuple[str, Path]]:
    """Return the domain's files with their classes, and add to ``faults``."""
    files = []
    for folder in _visible(root / domain):
        if not folder.is_dir():
            if is_image(Path(folder.name)):
                faults.misplaced.append(folder.path)
            continue
        entries = _visible(Path(folder.path))
        if not entries:
            faults.empty.append(folder.path)
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir():
                faults.misplaced.append(entry.path)
            elif not is_image(path):
                faults.strange.append(entry.path)
            elif f"{domain}/{folder.name}/{entry.name}" not in left_out:
                files.append((folder.name, path))
    return files


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)


def _expected(root: Path) -> str:
    return f"{root}/<domain>/<class>/<file>"
