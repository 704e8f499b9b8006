"""DomainNet (Peng et al., 2019): 586,575 images, 6 styles, 345 classes."""

from pathlib import Path

from ..checks import choose
from .base import DomainDataset
from .folder import benchmark_folders

FOLDER = "domain_net"
# Folders, and what tables call them.
DOMAINS = {
    "clipart": "clip",
    "infograph": "info",
    "painting": "paint",
    "quickdraw": "quick",
    "real": "real",
    "sketch": "sketch",
}
# Without the 9,431 duplicates.
PUBLISHED = 586_575
DUPLICATES = "duplicates.txt"


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return DomainNet from ``root/domain_net``, the same in every trial.

    Files that ``domain_net/duplicates.txt`` lists, one ``domain/class/file`` a line, are left out;
    where there is no such list, nothing is. Files that are gone already may stand in it.
    """
    duplicates = () if root is None else _duplicates(root / FOLDER / DUPLICATES)
    return benchmark_folders("domainnet", root, FOLDER, tuple(DOMAINS), duplicates)


def _duplicates(path: Path) -> set[str]:
    found: set[str] = set()
    if not path.is_file():
        return found
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        file = line.strip().removeprefix(f"{FOLDER}/")
        if not file:
            continue
        parts = file.split("/")
        if len(parts) != 3:
            raise ValueError(f"{path}, line {number}: expected domain/class/file, got {line!r}")
        choose(f"domain ({path}, line {number})", parts[0], DOMAINS)
        found.add(file)
    return found
