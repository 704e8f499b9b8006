"""DomainNet (Peng et al., 2019): 586,575 images, 6 styles, 345 classes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..catalogue import DATASETS
from ..choices import choose
from ..files import LIST_BYTES, read_text
from ..storage import write_text
from .base import DomainDataset
from .sources import DatasetSource, File, move_domains

NAME = "domainnet"
DOMAINS = DATASETS[NAME].domains
FOLDER = "domain_net"
DUPLICATES = "duplicates.txt"
ADDRESS = "http://csr.bu.edu/ftp/visda/2019/multi-source"


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return DomainNet from ``root/domain_net``, the same in every trial.

    Files that ``domain_net/duplicates.txt`` lists, one ``domain/class/file`` a line, are ignored.
    The list is optional, and can name files that do not exist.
    """
    return SOURCE.load(root)


def arrange(fetched: Mapping[str, Path], target: Path, domains: Sequence[str]) -> list[str]:
    """Move the domains, and list the files that the authors' cleaned lists do not name."""
    move_domains(fetched, target, domains)
    count = write_duplicates(target, [path for path in fetched.values() if path.is_file()])
    return [f"duplicates ignored, which the authors' lists do not name: {count:,}"]


def read_duplicates(folder: Path) -> set[str]:
    """Return the files that the list in this folder names, as ``domain/class/file``."""
    path = folder / DUPLICATES
    found: set[str] = set()
    if not path.is_file():
        return found
    for number, line in enumerate(read_text(path, LIST_BYTES).splitlines(), 1):
        file = line.strip().removeprefix(f"{FOLDER}/")
        if not file:
            continue
        parts = file.split("/")
        if len(parts) != 3:
            raise ValueError(f"{path}, line {number}: expected domain/class/file, got {line!r}")
        choose(f"domain ({path}, line {number})", parts[0], DOMAINS)
        found.add(file)
    return found


def write_duplicates(folder: Path, lists: Iterable[Path]) -> int:
    """List as duplicates the files that none of the authors' lists names; return their number.

    A line of the authors' lists is ``domain/class/file``, a blank and the class as a number.
    """
    listed: set[str] = set()
    for path in lists:
        for line in read_text(path, LIST_BYTES).splitlines():
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


SOURCE = DatasetSource(
    name=NAME,
    classes=345,
    # Without the duplicates, as the authors' page counts; DomainBed's 586,575 in all.
    published={
        "clipart": 48_129,
        "infograph": 51_605,
        "painting": 72_266,
        "quickdraw": 172_500,
        "real": 172_947,
        "sketch": 69_128,
    },
    terms="fair use, non-commercial research and education",
    folder=FOLDER,
    page="http://ai.bu.edu/M3SDA/",
    files=(
        *(
            File(name=f"{domain}_{half}.txt", url=f"{ADDRESS}/domainnet/txt/{domain}_{half}.txt")
            for domain in DOMAINS
            for half in ("train", "test")
        ),
        File(
            name="clipart.zip",
            url=f"{ADDRESS}/groundtruth/clipart.zip",
            size=1_270_000_000,
            md5="cd0d8f2d77a4e181449b78ed62bccf1e",
        ),
        File(
            name="infograph.zip",
            url=f"{ADDRESS}/infograph.zip",
            size=4_340_000_000,
            md5="720380b86f9e6ab4805bb38b6bd135f8",
        ),
        File(
            name="painting.zip",
            url=f"{ADDRESS}/groundtruth/painting.zip",
            size=3_680_000_000,
            md5="1ae32cdb4f98fe7ab5eb0a351768abfd",
        ),
        File(
            name="quickdraw.zip",
            url=f"{ADDRESS}/quickdraw.zip",
            size=460_000_000,
            md5="bdc1b6f09f277da1a263389efe0c7a66",
        ),
        File(
            name="real.zip",
            url=f"{ADDRESS}/real.zip",
            size=6_060_000_000,
            md5="dcc47055e8935767784b7162e7c7cca6",
        ),
        File(
            name="sketch.zip",
            url=f"{ADDRESS}/sketch.zip",
            size=2_700_000_000,
            md5="658d8009644040ff7ce30bb2e820850f",
        ),
    ),
    arrange=arrange,
    leave_out=read_duplicates,
)
