"""Image findings: properties of files that give the class or the domain away, and odd files."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..datasets.properties import ImageProperties
from ..datasets.reading import Reading
from .domain_shift import describe_shift, domain_accuracy
from .rules import RuleScore, combine, score_categories, score_numbers

Array = np.ndarray[Any, Any]
# Properties by their names in notes, and what to do if one gives the class away.
NUMBERS = {
    "width": "check where each class comes from, and scale all images alike",
    "height": "check where each class comes from, and scale all images alike",
    "aspect": "check where each class comes from, and crop all images to one shape",
    "brightness": "check whether the classes were photographed in another light",
    "contrast": "check whether the classes were photographed in another light",
    "sharpness": "check whether the classes were photographed or scaled in another way",
    "colour": "check whether the classes were photographed in another way",
    "quality": "save all images in one format, with one quality",
}
CATEGORIES = {
    "camera": "check whether each class has its own camera",
    "format": "save all images in one format",
}
TITLES = {
    "aspect": "shape (width over height)",
    "colour": "amount of colour",
    "quality": "JPEG quality",
    "camera": "camera (by EXIF)",
    "format": "file format",
}
# Images that a domain must have to be judged.
FEWEST = 20
# A property gives the class away if a rule on it avoids this share of the errors of the most
# frequent class over all domains, or in one of them, surely. On PACS the largest shares are 0.10
# and 0.14, on Office-31 0.06 and 0.10.
SKILL, SKILL_IN_ONE, SURE = 0.3, 0.5, 4.0
# Pillow's own warning begins here.
HUGE = 89_478_485


class Surveyed(NamedTuple):
    """Readable images of a data set, in order: domains and classes by number, and properties."""

    domains: Array
    labels: Array
    properties: Sequence[ImageProperties]


def find_in_images(
    names: Sequence[str], paths: Sequence[str], images: Surveyed, reading: Reading
) -> list[str]:
    """Return the notes on a data set's image files, a line each.

    Args:
        names: of the domains.
        paths: of the images.
        reading: how they will be read.
    """
    columns = property_columns(images.properties)
    numbers = [key for key in columns if key in NUMBERS]
    matrix = np.stack([columns[key] for key in numbers], 1)
    titles = [TITLES.get(key, key) for key in numbers]
    shift = domain_accuracy(matrix, titles, images.domains)
    return [
        *_giveaways(names, columns, images),
        *describe_shift(shift, "size, light and sharpness of the images"),
        *_readings(images.properties, reading),
        *_huge(paths, images.properties),
    ]


def property_columns(properties: Sequence[ImageProperties]) -> dict[str, Array]:
    """Return the properties by name: numbers with NaN, and codes of categories."""
    found: dict[str, Array] = {
        name: np.array([getattr(one, name) for one in properties], dtype=np.float64)
        for name in NUMBERS
    }
    for name in CATEGORIES:
        found[name] = np.unique([getattr(one, name) for one in properties], return_inverse=True)[1]
    return found


def _giveaways(names: Sequence[str], columns: Mapping[str, Array], images: Surveyed) -> list[str]:
    """Return notes on properties that give the class away within domains.

    Between domains they may differ as much as they like.
    """
    found = []
    for key, values in columns.items():
        scores = _scores(names, key, values, images)
        if not scores:
            continue
        everywhere = combine(list(scores.values()))
        best = max(scores, key=lambda name: scores[name].skill)
        if everywhere.skill >= SKILL and everywhere.sure >= SURE:
            found.append((everywhere.skill, key, everywhere, "within each domain"))
        elif scores[best].skill >= SKILL_IN_ONE and scores[best].sure >= SURE:
            found.append((scores[best].skill, key, scores[best], f"in the domain {best!r}"))
    found.sort(key=lambda one: -one[0])
    return [
        f"the {TITLES.get(key, key)} of an image alone gives the class in "
        f"{100 * score.accuracy:.0f} % of the images {where} (the most frequent class: "
        f"{100 * score.majority:.0f} %); a model may learn that instead of the content, so "
        f"{(NUMBERS | CATEGORIES)[key]}"
        for _, key, score, where in found
    ]


def _scores(
    names: Sequence[str], key: str, values: Array, images: Surveyed
) -> dict[str, RuleScore]:
    """Return the score of a rule on one property, for each domain with enough images."""
    rule = score_numbers if key in NUMBERS else score_categories
    found = {}
    for number, name in enumerate(names):
        mine = np.flatnonzero(images.domains == number)
        if len(mine) >= FEWEST:
            found[name] = rule(values[mine], images.labels[mine])
    return found


def _readings(properties: Sequence[ImageProperties], reading: Reading) -> list[str]:
    found = []
    if turned := sum(one.turned for one in properties):
        found.append(f"{_images(turned, 'is', 'are')} turned as the EXIF orientation says")
    deep = sum(one.values is not None for one in properties)
    if deep and reading.window is not None:
        low, high = (f"{value:,.6g}" for value in (reading.window.low, reading.window.high))
        rest = "" if deep == len(properties) else f" (of {len(properties):,})"
        found.append(
            f"{_images(deep, 'has', 'have')} more than 8 bits a channel{rest}; the grey values "
            f"from {low} to {high} are used, in prediction too"
        )
    return found


def _images(count: int, one: str, many: str) -> str:
    return f"1 image {one}" if count == 1 else f"{count:,} images {many}"


def _huge(paths: Sequence[str], properties: Sequence[ImageProperties]) -> list[str]:
    sizes = [one.width * one.height for one in properties]
    huge = [size for size in sizes if size > HUGE]
    if not huge:
        return []
    largest = paths[sizes.index(max(sizes))]
    return [
        f"{_images(len(huge), 'has', 'have')} more than {HUGE // 10**6} megapixels, which takes "
        f"long to read (the largest, {largest}, has {math.ceil(max(sizes) / 1e6)}); a network sees "
        "224 × 224 of them, so make them smaller"
    ]
