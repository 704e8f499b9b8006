"""Images in ``domain/class/file`` folders."""

import mimetypes
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..choices import choose
from .base import Domain, DomainDataset

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# What other programs leave in folders, beside hidden files.
LITTER = ("__macosx", "desktop.ini", "thumbs.db")
# How many of the files at fault a message names.
NAMED = 10


def is_image(path: Path) -> bool:
    """Return whether the suffix is an image's; what is inside is another matter."""
    return path.suffix.lower() in SUFFIXES


def may_be_image(path: Path) -> bool:
    """Return whether the suffix is that of some image, also of one that cannot be read here."""
    return is_image(path) or (mimetypes.guess_type(path.name)[0] or "").startswith("image/")


def is_litter(name: str) -> bool:
    """Return whether a file or folder is another program's business: hidden, or known as such."""
    return name.startswith(".") or name.lower() in LITTER


def some(items: Sequence[object]) -> str:
    """Return the first ten items as text, and how many more there are."""
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(map(str, items[:NAMED])) + more


def expected_at(root: Path) -> str:
    """Return where images are expected below ``root``, as text."""
    return f"{root}/<domain>/<class>/<file>"


@dataclass
class Faults:
    """Files and folders that are not as expected; those of ``unused`` do no harm.

    ``shallow`` are images outside of class folders, ``deep`` are folders within them.
    """

    absent: list[str] = field(default_factory=list)
    barren: list[str] = field(default_factory=list)
    shallow: list[str] = field(default_factory=list)
    deep: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def check(self, root: Path) -> None:
        """Raise on all faults that folders can have, naming ten of each kind."""
        told = []
        if self.shallow:
            told.append(
                f"expected {expected_at(root)}, found images that are in no class folder: "
                f"{some(self.shallow)}; if the folders are classes, the level of domains above "
                "them is missing"
            )
        if self.deep:
            outer = sorted({root / Path(path).relative_to(root).parts[0] for path in self.deep})
            told.append(
                f"expected {expected_at(root)}, found folders in class folders: {some(self.deep)}; "
                "if all images are a level deeper, as below train and test, give one of "
                f"{some(outer)}, or list all in a .csv file"
            )
        if self.empty:
            told.append(f"class folders without a file: {some(self.empty)}; fill or remove them")
        if self.strange:
            told.append(
                f"no images by their suffix: {some(self.strange)}; remove them, or convert them "
                f"to one of {', '.join(SUFFIXES)}"
            )
        if told:
            raise ValueError(". Also: ".join(told))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield path and reason of every fault."""
        for paths, why in (
            (self.absent, "no such domain folder"),
            (self.barren, "a domain without images"),
            (sorted(self.shallow + self.deep), "not at <domain>/<class>/<file>"),
            (self.empty, "a class folder without a file"),
            (self.strange, "no image by its suffix"),
            (self.missing, "listed, but not there"),
            (self.changed, "recorded other file names or sizes than there are now"),
        ):
            yield from ((path, why) for path in paths)


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
        domains: the folders to take, in this order; by default all that are not empty, sorted.
        leave_out: files that are there and not wanted, as ``domain/class/file``.
    """
    folders = _domain_folders(name, root)
    if not domains:
        empty = empty_folders(root)
        domains = [folder for folder in folders if folder not in empty]
    names = [choose(f"domain folder of {root}", domain, folders) for domain in domains]
    faults = Faults()
    files = _files(root, names, leave_out, faults)
    faults.check(root)
    if not names:
        raise ValueError(f"no domains: all folders of {root} are empty")
    for domain in names:
        if not files[domain]:
            raise ValueError(f"the domain {domain!r} has no images; expected {expected_at(root)}")
    return of_files(name, names, files)


def survey_folders(
    name: str,
    root: Path,
    domains: Sequence[str] | None = None,
    leave_out: Collection[str] = (),
) -> tuple[DomainDataset | None, Faults]:
    """Return what ``image_folders`` would return without the faults (None: nothing), and these."""
    folders = _domain_folders(name, root)
    names = list(domains or folders)
    faults = Faults()
    faults.absent += [str(root / domain) for domain in names if domain not in folders]
    faults.unused += [str(root / folder) for folder in folders if folder not in names]
    faults.unused += [entry.path for entry in _visible(root) if is_image(Path(entry.name))]
    files = _files(root, [domain for domain in names if domain in folders], leave_out, faults)
    faults.barren += [str(root / domain) for domain in files if not files[domain]]
    kept = [domain for domain in files if files[domain]]
    return of_files(name, kept, files) if kept else None, faults


def empty_folders(root: Path) -> list[str]:
    """Return the folders that would be domains and have nothing in them."""
    folders = (entry for entry in _visible(root) if entry.is_dir())
    return [entry.name for entry in folders if not _visible(Path(entry.path))]


def name_of(root: Path) -> str:
    """Return a folder's name as it was given, whatever it links to; that of ``.`` is looked up."""
    return root.resolve().name if root.name in ("", "..") else root.name


def _domain_folders(name: str, root: Path) -> list[str]:
    if not root.is_dir():
        raise ValueError(f"no such folder: {root}; {name} needs its images at {expected_at(root)}")
    folders = [entry.name for entry in _visible(root) if entry.is_dir()]
    if not folders:
        raise ValueError(f"no domains: {root} has no folders; expected {expected_at(root)}")
    return folders


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


def _files(
    root: Path, domains: Sequence[str], leave_out: Collection[str], faults: Faults
) -> dict[str, list[tuple[str, Path]]]:
    """Return every domain's files with their classes, and add to ``faults``."""
    left_out = frozenset(leave_out)
    return {domain: _files_of(root, domain, left_out, faults) for domain in domains}


def _files_of(
    root: Path, domain: str, left_out: frozenset[str], faults: Faults
) -> list[tuple[str, Path]]:
    files = []
    for folder in _visible(root / domain):
        if not folder.is_dir():
            if is_image(Path(folder.name)):
                faults.shallow.append(folder.path)
            continue
        entries = _visible(Path(folder.path))
        if not entries:
            faults.empty.append(folder.path)
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir():
                faults.deep.append(entry.path)
            elif not is_image(path):
                faults.strange.append(entry.path)
            elif f"{domain}/{folder.name}/{entry.name}" not in left_out:
                files.append((folder.name, path))
    return files


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not is_litter(entry.name)]
    return sorted(visible, key=lambda entry: entry.name)
