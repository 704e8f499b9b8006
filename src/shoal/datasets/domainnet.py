"""DomainNet (Peng et al., 2019): 586,575 images, 6 styles, 345 classes."""

from collections.abc import Iterable
from pathlib import Path

from ..choices import choose
from ..storage import write_text
from .base import DomainDataset
from .folders import benchmark_folders

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
# Without the duplicates, as the authors' page counts; DomainBed's 586,575 in all.
PUBLISHED = {
    "clipart": 48_129,
    "infograph": 51_605,
    "painting": 72_266,
    "quickdraw": 172_500,
    "real": 172_947,
    "sketch": 69_128,
}
DUPLICATES = "duplicates.txt"


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return DomainNet from ``root/domain_net``, the same in every trial.

    Files that ``domain_net/duplicates.txt`` lists, one ``domain/class/file`` a line, are left out;
    where there is no such list, nothing is. Files that are gone already may stand in it.
    """
    left_out = () if root is None else duplicates(root / FOLDER)
    return benchmark_folders("domainnet", root, FOLDER, tuple(DOMAINS), left_out)


def duplicates(folder: Path) -> set[str]:
    """Return the files that the list in this folder names, as ``domain/class/file``."""
    path = folder / DUPLICATES
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


def list_duplicates(folder: Path, lists: Iterable[Path]) -> int:
    """List as duplicates what none of the authors' lists names; return how many files that are.

    A line of their lists is ``domain/class/file``, a blank and the class as a number.
    """
    listed: set[str] = set()
    for path in lists:
        for line in path.read_text(encoding="utf-8").splitlines():
            listed.add(line.rpartition(" ")[0])
    present = {
        path.relative_to(folder).as_posix()
        for domain in DOMAINS
        for path in (folder / domain).glob("*/*")
    }
    if not listed & present:
        raise ValueError(f"the lists name none of the files in {folder}, such as {min(present)}")
    write_text(folder / DUPLICATES, "".join(f"{file}\n" for file in sorted(present - listed)))
    return len(present - listed)
