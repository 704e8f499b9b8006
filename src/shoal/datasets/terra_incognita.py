"""Terra Incognita (Beery et al., 2018), DomainBed's part: 24,788 images, 4 cameras, 10 classes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..documents import read_json
from ..files import LIST_BYTES
from ..storage import make_folder, move_all
from .base import DomainDataset
from .sources import DatasetSource, File

CLASSES = (
    "bird",
    "bobcat",
    "cat",
    "coyote",
    "dog",
    "empty",
    "opossum",
    "rabbit",
    "raccoon",
    "squirrel",
)
ADDRESS = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps"
# The lists of an annotation file in the COCO Camera Traps format.
LISTS = ("images", "annotations", "categories")


def load(root: Path | None, trial: int) -> DomainDataset:
    """Return Terra Incognita from ``root/terra_incognita``, the same in every trial."""
    return SOURCE.load(root)


def arrange(fetched: Mapping[str, Path], target: Path, domains: Sequence[str]) -> list[str]:
    """Sort the images of the domains' locations by their annotations; return remarks."""
    annotations, images = (fetched[name] for name in fetched)
    locations = {domain.removeprefix("location_"): domain for domain in domains}
    unplaced = sort_images(images, sorted(annotations.rglob("*.json")), target, locations, CLASSES)
    remarks = {
        "images skipped because they show two of the classes": unplaced.ambiguous,
        "images that are annotated, but not in the archive": unplaced.missing,
    }
    return [f"{remark}: {count:,}" for remark, count in remarks.items() if count]


class UnplacedImages(NamedTuple):
    """The number of images with two labels, and of images that are listed but do not exist."""

    ambiguous: int
    missing: int


def sort_images(
    images: Path,
    annotations: Iterable[Path],
    target: Path,
    domains: Mapping[str, str],
    classes: Collection[str],
) -> UnplacedImages:
    """Move the images of these locations and classes to ``target/domain/class``.

    An image of two classes is skipped: it could be trained on as one and tested as the other.
    Images that are in place already stay, so that the call can be repeated after an interruption.

    Args:
        annotations: JSON files in the COCO Camera Traps format.
        domains: the folder of each location.
    """
    places: dict[str, set[tuple[str, str]]] = {}
    for path in annotations:
        for file, location, kind in _labels(path):
            if location in domains and kind in classes:
                places.setdefault(file, set()).add((domains[location], kind))
    files = {path.name: path for path in images.rglob("*") if path.is_file()}
    ambiguous, missing = 0, 0
    moves = []
    for file, found in places.items():
        if len(found) > 1:
            ambiguous += 1
            continue
        ((domain, kind),) = found
        place = target / domain / kind / file
        if file in files:
            make_folder(place.parent)
            moves.append((files[file], place))
        elif not place.exists():
            missing += 1
    move_all(moves)
    if ambiguous + missing == len(places):
        raise ValueError(
            f"{images} holds no image of the locations {', '.join(domains)} and the classes "
            f"{', '.join(classes)} that the annotations name: is it another data set?"
        )
    return UnplacedImages(ambiguous, missing)


def _labels(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield file name, location and class of every annotation."""
    content = read_json(path, LIST_BYTES)
    if not isinstance(content, dict) or not all(isinstance(content.get(k), list) for k in LISTS):
        raise ValueError(f"{path} must be an object with the lists {', '.join(LISTS)}")
    try:
        kinds = {entry["id"]: entry["name"] for entry in content["categories"]}
        images = {entry["id"]: entry for entry in content["images"]}
        for entry in content["annotations"]:
            image = images[entry["image_id"]]
            name = Path(image["file_name"]).name
            yield name, str(image["location"]), kinds[entry["category_id"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not in the COCO Camera Traps format: no {error}") from error


SOURCE = DatasetSource(
    name="terra-incognita",
    classes=len(CLASSES),
    published={
        "location_100": 4_879,
        "location_38": 9_767,
        "location_43": 4_020,
        "location_46": 6_122,
    },
    terms="CDLA-Permissive-1.0",
    folder="terra_incognita",
    page="https://lila.science/datasets/caltech-camera-traps",
    files=(
        File(
            name="eccv_18_annotations.tar.gz",
            url=f"{ADDRESS}/eccv_18_annotations.tar.gz",
            size=3_000_000,
        ),
        File(
            name="eccv_18_all_images_sm.tar.gz",
            url=f"{ADDRESS}/eccv_18_all_images_sm.tar.gz",
            size=6_500_000_000,
        ),
    ),
    remark="today's download has about 24,330 images; the published results used 24,788",
    arrange=arrange,
)
