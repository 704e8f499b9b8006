"""Sources of published data sets: where to download their files, on which terms, and where they go.

A checksum is given only if public sources agree on it. Without one, ``fetch`` records the sum of
the first download and compares later downloads with it.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..catalogue import DATASETS
from ..storage import make_folder, move_all
from .base import DomainDataset
from .folders import (
    Faults,
    expected_layout,
    first_few,
    image_folders,
    is_folder,
    survey_folders,
)
from .images import Published

# Arranges downloaded files (by file name; archives are folders) as folders of domains in a new
# folder, and returns remarks. It can be called again after an interruption.
Arrange = Callable[[Mapping[str, Path], Path, Sequence[str]], list[str]]
# Folders of an archive that can be above those of the domains.
DEPTH = 3


def move_domains(fetched: Mapping[str, Path], target: Path, domains: Sequence[str]) -> list[str]:
    """Move the folders of the domains to ``target``, wherever they are in the archives."""
    missing = {domain for domain in domains if not (target / domain).is_dir()}
    found: dict[str, Path] = {}
    for folder in fetched.values():
        if folder.is_dir():
            found |= _find(folder, missing - set(found))
    if lacking := sorted(missing - set(found)):
        seen = [entry.name for folder in fetched.values() for entry in _folders(folder)]
        raise ValueError(
            f"no folders {', '.join(lacking)} in {', '.join(fetched)}; expected "
            f"<domain>/<class>/<file> with the domains {', '.join(domains)}, "
            f"found {first_few(seen) or 'no folders'}"
        )
    make_folder(target)
    move_all((folder, target / domain) for domain, folder in found.items())
    return []


def _find(folder: Path, names: set[str]) -> dict[str, Path]:
    """Return the folders of these names at the first level with any; deeper ones are classes."""
    level = [folder]
    for _ in range(DEPTH + 1):
        level = [entry for above in level for entry in _folders(above)]
        if found := {entry.name: entry for entry in level if entry.name in names}:
            return found
    return {}


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if is_folder(entry))


@dataclass(frozen=True, kw_only=True)
class File:
    """A file to download, of about ``size`` bytes.

    Without a URL a person has to download it, from ``page`` if that is known.
    """

    name: str
    url: str | None = None
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    page: str = ""

    @property
    def is_archive(self) -> bool:
        return not self.name.endswith(".txt")


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A published data set: its size, terms of use, files, and folder of ``domain/class/file``.

    Args:
        published: the number of images per domain, or of all of them.
        folder: its name among the data sets; embedded sets have none.
        page: where people read about the data set.
        by_hand: why a person has to download the files.
        remark: a known difference between the files and the published numbers.
        arrange: makes folders of domains from the downloaded files.
        leave_out: returns the files of the folder to ignore, as ``domain/class/file``.
    """

    name: str
    classes: int
    published: Published
    terms: str
    folder: str = ""
    page: str = ""
    files: tuple[File, ...] = ()
    by_hand: str = ""
    remark: str = ""
    arrange: Arrange = move_domains
    leave_out: Callable[[Path], Collection[str]] = lambda folder: ()

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains; those of a downloaded set are folders."""
        return DATASETS[self.name].domains

    @property
    def images(self) -> int:
        """The published number of images."""
        published = self.published
        return published if isinstance(published, int) else sum(published.values())

    @property
    def embedded(self) -> bool:
        return not self.folder

    @property
    def size(self) -> int | None:
        """About how many bytes are downloaded; None if that is unknown, or done by hand."""
        return sum(file.size or 0 for file in self.files) or None

    def present(self, root: Path) -> bool:
        """Return whether every domain has a folder under ``root``, or the set is embedded."""
        return self.embedded or all(
            (root / self.folder / domain).is_dir() for domain in self.domains
        )

    def load(self, root: Path | None) -> DomainDataset:
        """Return the data set of the images at ``root/folder/domain/class/file``."""
        if root is None:
            raise ValueError(
                f"{self.name} does not come with shoal: put its files at "
                f"{expected_layout(Path(self.folder))}, with the domains "
                f"{', '.join(self.domains)}, and give the folder that holds {self.folder}/"
            )
        folder = root / self.folder
        if not folder.is_dir() and all((root / domain).is_dir() for domain in self.domains):
            raise ValueError(
                f"{root} is {self.name} itself; give the folder that holds it, "
                f"in which it must be called {self.folder}"
            )
        return image_folders(self.name, folder, self.domains, self.leave_out(folder))

    def survey(self, root: Path) -> tuple[DomainDataset | None, Faults]:
        """Return the readable part of the data set under ``root`` (None: nothing), and faults."""
        folder = root / self.folder
        return survey_folders(self.name, folder, self.domains, self.leave_out(folder))
