"""Where each data set can be had: addresses, sums and terms, as data that one line mends.

A sum is given only where public sources agree on it. Without one the first download is recorded,
and later ones are compared with it.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..choices import choose
from . import colored_mnist, domainnet, office_home, pacs, rotated_mnist, terra_incognita, vlcs
from .base import DomainDataset
from .domainnet import list_duplicates
from .folders import Faults, some, survey_folders
from .terra_incognita import CLASSES, sort_images

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


CAMERA_TRAPS = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps"
VISDA = "http://csr.bu.edu/ftp/visda/2019/multi-source"
MNIST_TERMS = "CC BY-SA 3.0"


@dataclass(frozen=True)
class File:
    """A file to fetch, of about ``size`` bytes; without a URL by hand, from ``page`` if known."""

    name: str
    url: str | None
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    page: str = ""

    @property
    def is_archive(self) -> bool:
        return not self.name.endswith(".txt")


@dataclass(frozen=True)
class DatasetSource:
    """What a data set is, on what terms, and where it comes from; without a folder, from shoal."""

    domains: tuple[str, ...]
    classes: int
    images: int
    terms: str
    folder: str = ""
    page: str = ""
    files: tuple[File, ...] = ()
    by_hand: str = ""
    remark: str = ""
    arrange: Arrange = by_domains
    leave_out: Callable[[Path], Collection[str]] = lambda folder: ()

    @property
    def embedded(self) -> bool:
        return not self.folder

    @property
    def size(self) -> int | None:
        """About how many bytes are downloaded; None where it is not known or by hand."""
        return sum(file.size or 0 for file in self.files) or None

    def present(self, root: Path) -> bool:
        """Return whether every domain has a folder under ``root``, or needs none."""
        return self.embedded or all(
            (root / self.folder / domain).is_dir() for domain in self.domains
        )


SOURCES: dict[str, DatasetSource] = {
    "colored-mnist": DatasetSource(
        tuple(colored_mnist.DOMAINS), len(colored_mnist.CLASSES), 70_000, MNIST_TERMS
    ),
    "rotated-mnist": DatasetSource(tuple(map(str, rotated_mnist.ANGLES)), 10, 70_000, MNIST_TERMS),
    "vlcs": DatasetSource(
        domains=tuple(vlcs.DOMAINS),
        classes=5,
        images=sum(vlcs.PUBLISHED.values()),
        terms="those of Caltech101, LabelMe, SUN09 and PASCAL VOC 2007",
        folder="VLCS",
        page="https://github.com/facebookresearch/DomainBed/issues/165",
        files=(File("VLCS.tar.gz", None),),
        by_hand="it has no page of its own any more, and people share copies",
    ),
    "pacs": DatasetSource(
        domains=tuple(pacs.DOMAINS),
        classes=7,
        images=sum(pacs.PUBLISHED.values()),
        terms="no licence stated",
        folder="PACS",
        page="https://dali-dl.github.io/project_iccv2017.html",
        files=(
            File(
                "PACS.zip",
                None,
                page="https://drive.google.com/uc?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd",
            ),
        ),
        by_hand="it lies on Google Drive, which asks a person to confirm",
    ),
    "office-home": DatasetSource(
        domains=tuple(office_home.DOMAINS),
        classes=65,
        images=office_home.PUBLISHED,
        terms="fair use, non-commercial research",
        folder="office_home",
        page="https://www.hemanthdv.org/officeHomeDataset.html",
        files=(File("OfficeHomeDataset_10072016.zip", None),),
        by_hand="it lies on Google Drive, which asks a person to confirm",
    ),
    "terra-incognita": DatasetSource(
        domains=tuple(terra_incognita.DOMAINS),
        classes=len(terra_incognita.CLASSES),
        images=sum(terra_incognita.PUBLISHED.values()),
        terms="CDLA-Permissive-1.0",
        folder="terra_incognita",
        page="https://lila.science/datasets/caltech-camera-traps",
        files=(
            File(
                "eccv_18_annotations.tar.gz",
                f"{CAMERA_TRAPS}/eccv_18_annotations.tar.gz",
                3_000_000,
            ),
            File(
                "eccv_18_all_images_sm.tar.gz",
                f"{CAMERA_TRAPS}/eccv_18_all_images_sm.tar.gz",
                6_500_000_000,
            ),
        ),
        remark="what can be had today gives about 24,330 images; the published numbers were made "
        "with 24,788",
        arrange=of_terra,
    ),
    "domainnet": DatasetSource(
        domains=tuple(domainnet.DOMAINS),
        classes=345,
        images=sum(domainnet.PUBLISHED.values()),
        terms="fair use, non-commercial research and education",
        folder=domainnet.FOLDER,
        page="http://ai.bu.edu/M3SDA/",
        files=(
            *(
                File(f"{domain}_{half}.txt", f"{VISDA}/domainnet/txt/{domain}_{half}.txt")
                for domain in domainnet.DOMAINS
                for half in ("train", "test")
            ),
            File(
                "clipart.zip",
                f"{VISDA}/groundtruth/clipart.zip",
                1_270_000_000,
                md5="cd0d8f2d77a4e181449b78ed62bccf1e",
            ),
            File(
                "infograph.zip",
                f"{VISDA}/infograph.zip",
                4_340_000_000,
                md5="720380b86f9e6ab4805bb38b6bd135f8",
            ),
            File(
                "painting.zip",
                f"{VISDA}/groundtruth/painting.zip",
                3_680_000_000,
                md5="1ae32cdb4f98fe7ab5eb0a351768abfd",
            ),
            File(
                "quickdraw.zip",
                f"{VISDA}/quickdraw.zip",
                460_000_000,
                md5="bdc1b6f09f277da1a263389efe0c7a66",
            ),
            File(
                "real.zip",
                f"{VISDA}/real.zip",
                6_060_000_000,
                md5="dcc47055e8935767784b7162e7c7cca6",
            ),
            File(
                "sketch.zip",
                f"{VISDA}/sketch.zip",
                2_700_000_000,
                md5="658d8009644040ff7ce30bb2e820850f",
            ),
        ),
        arrange=of_domainnet,
        leave_out=domainnet.duplicates,
    ),
}


def source_of(name: str) -> DatasetSource:
    """Return the source of this data set, if it has to be fetched."""
    source = SOURCES[choose("data set", name, SOURCES)]
    if source.embedded:
        raise ValueError(f"{name} comes with shoal: there is nothing to download")
    return source


def survey(name: str, root: Path) -> tuple[DomainDataset | None, Faults]:
    """Return what there is of the data set under ``root`` (None: nothing), and what is wrong."""
    source = source_of(name)
    folder = root / source.folder
    return survey_folders(name, folder, source.domains, source.leave_out(folder))
