"""From what was fetched to ``domain/class/file``: folders are moved, images are sorted."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .camera_traps import sort_images
from .domainnet import list_duplicates
from .faults import some
from .terra_incognita import CLASSES

# From what was fetched by its file name (archives as folders), the new folder and its domains;
# returns remarks. It may be called again after an interruption.
Arrange = Callable[[Mapping[str, Path], Path, Sequence[str]], list[str]]
# How many folders may stand above those of the domains in an archive.
DEPTH = 3


def by_domains(fetched: Mapping[str, Path], target: Path, domains: Sequence[str]) -> list[str]:
    """Move the folders of the domains to ``target``, wherever in the archives they are."""
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
            f"found {some(seen) or 'no folders'}"
        )
    target.mkdir(parents=True, exist_ok=True)
    for domain, folder in found.items():
        os.replace(folder, target / domain)
    return []


def of_domainnet(fetched: Mapping[str, Path], target: Path, domains: Sequence[str]) -> list[str]:
    """Move the domains, and list the files that the authors' cleaned lists do not name."""
    by_domains(fetched, target, domains)
    count = list_duplicates(target, [path for path in fetched.values() if path.is_file()])
    return [f"duplicates left out, which the authors' lists do not name: {count:,}"]


def of_terra(fetched: Mapping[str, Path], target: Path, domains: Sequence[str]) -> list[str]:
    """Sort the images of the domains' locations by their annotations."""
    annotations, images = (fetched[name] for name in fetched)
    locations = {domain.removeprefix("location_"): domain for domain in domains}
    left = sort_images(images, sorted(annotations.rglob("*.json")), target, locations, CLASSES)
    remarks = {
        "images left out because they show two of the classes": left.ambiguous,
        "images that are annotated, but not in the archive": left.missing,
    }
    return [f"{remark}: {count:,}" for remark, count in remarks.items() if count]


def _find(folder: Path, names: set[str]) -> dict[str, Path]:
    """Return the folders of these names at the first level that has any; below are classes."""
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
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())
