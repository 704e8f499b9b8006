"""Folders of images: data sets at ``domain/class/file``, and everything wrong with such folders."""

import mimetypes
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..choices import choose
from .base import Domain, DomainDataset

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Files and folders that other programs leave behind, as well as hidden ones.
LITTER = ("__macosx", "desktop.ini", "thumbs.db")
# Files that one message names.
NAMED = 10


def is_image(path: Path) -> bool:
    """Return whether the suffix is that of an image; the content is not read."""
    return path.suffix.lower() in SUFFIXES


def may_be_image(path: Path) -> bool:
    """Return whether the suffix is that of any image, also of kinds that cannot be read here."""
    return is_image(path) or (mimetypes.guess_type(path.name)[0] or "").startswith("image/")


def is_litter(name: str) -> bool:
    """Return whether a file or folder belongs to another program: hidden, or known as such."""
    return name.startswith(".") or name.lower() in LITTER


def first_few(items: Sequence[object]) -> str:
    """Return the first ten items as text, and the number of the others."""
    more = f" and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return ", ".join(map(str, items[:NAMED])) + more


def folder_name(root: Path) -> str:
    """Return a folder's name as given, links not followed; that of ``.`` is looked up."""
    return root.resolve().name if root.name in ("", "..") else root.name


def expected_layout(root: Path) -> str:
    """Return the expected paths of images below ``root``, for messages."""
    return f"{root}/<domain>/<class>/<file>"


@dataclass
class Faults:
    """Files and folders that are not as expected.

    Args:
        missing_domains: folders of domains that do not exist.
        empty_domains: folders of domains without an image.
        outside_classes: images that are in no class folder.
        nested: folders in class folders.
        empty_classes: class folders without a file.
        not_images: files whose suffix is not that of an image.
        missing_files: files of a manifest that do not exist.
        changed: records of a download that no longer agree with the files.
        unused: files and folders that are ignored, which is no fault.
    """

    missing_domains: list[str] = field(default_factory=list)
    empty_domains: list[str] = field(default_factory=list)
    outside_classes: list[str] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)
    empty_classes: list[str] = field(default_factory=list)
    not_images: list[str] = field(default_factory=list)
    missing_files: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def check(self, root: Path) -> None:
        """Raise if ``image_folders`` cannot use the folders; name ten faults of each kind."""
        found = []
        if self.outside_classes:
            found.append(
                f"expected {expected_layout(root)}, found images outside of class folders: "
                f"{first_few(self.outside_classes)}; if the folders are classes, the level of "
                "domains above them is missing"
            )
        if self.nested:
            outer = sorted({root / Path(path).relative_to(root).parts[0] for path in self.nested})
            found.append(
                f"expected {expected_layout(root)}, found folders in class folders: "
                f"{first_few(self.nested)}; if all images are a level deeper, as below train and "
                f"test, give one of {first_few(outer)}, or list all in a .csv file"
            )
        if self.empty_classes:
            found.append(
                f"class folders without a file: {first_few(self.empty_classes)}; fill or remove "
                "them"
            )
        if self.not_images:
            found.append(
                f"files without the suffix of an image: {first_few(self.not_images)}; remove them, "
                f"or convert them to one of {', '.join(SUFFIXES)}"
            )
        if found:
            raise ValueError(". Also: ".join(found))

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield path and reason of every fault."""
        for paths, why in (
            (self.missing_domains, "no such domain folder"),
            (self.empty_domains, "a domain without images"),
            (sorted(self.outside_classes + self.nested), "not at <domain>/<class>/<file>"),
            (self.empty_classes, "a class folder without a file"),
            (self.not_images, "its suffix is not that of an image"),
            (self.missing_files, "listed, but does not exist"),
            (self.changed, "file names or sizes differ from those recorded at the download"),
        ):
            yield from ((path, why) for path in paths)


def image_folders(
    name: str,
    root: Path,
    domains: Sequence[str] | None = None,
    leave_out: Collection[str] = (),
) -> DomainDataset:
    """Return the data set whose images are at ``root/domain/class/file``.

    Classes are matched over the domains by name, so a domain can lack some: see
    ``missing_classes``. Files are in the order of their names; hidden ones are ignored.

    Args:
        domains: the folders to take, in this order; by default all that are not empty, sorted.
        leave_out: files to ignore, as ``domain/class/file``.
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
            raise ValueError(
                f"the domain {domain!r} has no images; expected {expected_layout(root)}"
            )
    return dataset_of_files(name, names, files)


def survey_folders(
    name: str,
    root: Path,
    domains: Sequence[str] | None = None,
    leave_out: Collection[str] = (),
) -> tuple[DomainDataset | None, Faults]:
    """Return the data set as ``image_folders`` does, ignoring faults, and the faults.

    The data set is None if there is no image.
    """
    folders = _domain_folders(name, root)
    names = list(domains or folders)
    faults = Faults()
    faults.missing_domains += [str(root / domain) for domain in names if domain not in folders]
    faults.unused += [str(root / folder) for folder in folders if folder not in names]
    faults.unused += [entry.path for entry in _visible(root) if is_image(Path(entry.name))]
    files = _files(root, [domain for domain in names if domain in folders], leave_out, faults)
    faults.empty_domains += [str(root / domain) for domain in files if not files[domain]]
    filled = [domain for domain in files if files[domain]]
    return dataset_of_files(name, filled, files) if filled else None, faults


def empty_folders(root: Path) -> list[str]:
    """Return the folders of ``root`` that would be domains, but are empty."""
    folders = (entry for entry in _visible(root) if is_folder(entry))
    return [entry.name for entry in folders if not _visible(Path(entry.path))]


def dataset_of_files(
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


def _domain_folders(name: str, root: Path) -> list[str]:
    if not root.is_dir():
        raise ValueError(
            f"no such folder: {root}; {name} needs its images at {expected_layout(root)}"
        )
    folders = [entry.name for entry in _visible(root) if is_folder(entry)]
    if not folders:
        raise ValueError(f"no domains: {root} has no folders; expected {expected_layout(root)}")
    return folders


def _files(
    root: Path, domains: Sequence[str], leave_out: Collection[str], faults: Faults
) -> dict[str, list[tuple[str, Path]]]:
    """Return the files of every domain with their classes, and add to ``faults``."""
    ignored = frozenset(leave_out)
    return {domain: _files_of_domain(root, domain, ignored, faults) for domain in domains}


def _files_of_domain(
    root: Path, domain: str, ignored: frozenset[str], faults: Faults
) -> list[tuple[str, Path]]:
    files = []
    for folder in _visible(root / domain):
        if not is_folder(folder):
            if is_image(Path(folder.name)):
                faults.outside_classes.append(folder.path)
            continue
        entries = _visible(Path(folder.path))
        if not entries:
            faults.empty_classes.append(folder.path)
        for entry in entries:
            path = Path(entry.path)
            if is_folder(entry):
                faults.nested.append(entry.path)
            elif not is_image(path):
                faults.not_images.append(entry.path)
            elif f"{domain}/{folder.name}/{entry.name}" not in ignored:
                files.append((folder.name, path))
    return files


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Return whether this is a folder, or a link to one; a link that leads nowhere is none."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, which is reported when it is read
        return False


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not is_litter(entry.name)]
    return sorted(visible, key=lambda entry: entry.name)
