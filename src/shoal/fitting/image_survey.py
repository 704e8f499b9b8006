"""Image survey: every file read once: which are broken, how to read the others, what is odd."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import DomainDataset, verify
from ..datasets.images import Broken, look_at_files, why_broken
from ..datasets.properties import ImageProperties, properties_of
from ..datasets.reading import AS_STORED, Reading, Window
from ..documents import damage_named, read_object
from ..storage import write_json
from .image_findings import Surveyed, find_in_images

# Grey values for a window: of each image with more than 8 bits, and of all together.
LEAST_VALUES, MOST_VALUES, ALL_VALUES = 64, 4096, 1_000_000


@dataclass(frozen=True)
class ImageSurvey:
    """The findings of ``survey_images``.

    Args:
        broken: files that cannot be read.
        reading: how to read the others: upright if any says that it is not, and with a window if
            any has more than 8 bits. Otherwise as stored, so that such data keeps its fingerprint.
        findings: notes, a line each.
    """

    broken: tuple[Broken, ...]
    reading: Reading
    findings: tuple[str, ...]


def survey_images(
    dataset: DomainDataset,
    progress: Callable[[int, int], object] | None,
    record: Path | None,
) -> ImageSurvey:
    """Return the findings about all images of a data set; the record keeps them.

    It is used as long as the files are the same and those that could not be read still cannot be.
    """
    known = _read_record(dataset, record)
    if "findings" in known:
        with damage_named(record):
            found = ImageSurvey(
                _still_broken(dataset, known, Reading.from_json(known["reading"])),
                Reading.from_json(known["reading"]),
                tuple(known["findings"]),
            )
        if len(found.broken) == len(known["broken"]):
            return found
    found = _read_all(dataset, progress)
    if record is not None:
        write_json(record, record_of(dataset, found))
    return found


def _read_all(dataset: DomainDataset, progress: Callable[[int, int], object] | None) -> ImageSurvey:
    total = sum(map(len, dataset.domains))
    values = min(MOST_VALUES, max(LEAST_VALUES, ALL_VALUES // total))
    broken, paths, places = [], [], []
    properties: list[ImageProperties] = []
    for domain, path, found in look_at_files(
        dataset, partial(properties_of, values=values), progress
    ):
        if isinstance(found, str):
            broken.append(Broken(domain, path, found))
        else:
            paths.append(str(path))
            properties.append(found)
        places.append(not isinstance(found, str))
    if not properties:
        return ImageSurvey(tuple(broken), AS_STORED, ())
    good = np.array(places)
    labels = np.concatenate([domain.labels.numpy() for domain in dataset.domains])[good]
    sizes = [len(domain) for domain in dataset.domains]
    domains = np.repeat(np.arange(len(sizes)), sizes)[good]
    reading = reading_for(properties)
    images = Surveyed(domains, labels, properties)
    findings = find_in_images(dataset.names, paths, images, reading)
    return ImageSurvey(tuple(broken), reading, tuple(findings))


def reading_for(properties: list[ImageProperties]) -> Reading:
    """Return how to read images with these properties."""
    samples = [one.values for one in properties if one.values is not None]
    window = Window.of(samples) if samples else None
    return Reading(upright=any(one.turned for one in properties), window=window)


def broken_files(
    dataset: DomainDataset,
    progress: Callable[[int, int], object] | None,
    record: Path | None,
    reading: Reading = AS_STORED,
) -> tuple[Broken, ...]:
    """Return the files that cannot be read in this way.

    The record keeps their domains and positions, because the data can move. Recorded files are
    tried again, because they can be repaired.
    """
    known = _read_record(dataset, record)
    if known:
        with damage_named(record):
            return _still_broken(dataset, known, reading)
    broken = verify(replace(dataset, reading=reading), progress=progress).broken
    if record is not None:
        write_json(record, _broken_record(dataset, broken))
    return broken


def record_of(dataset: DomainDataset, survey: ImageSurvey) -> dict[str, Any]:
    """Return the record of a survey, as plain values."""
    return {
        **_broken_record(dataset, survey.broken),
        "reading": survey.reading.as_json(),
        "findings": list(survey.findings),
    }


def _broken_record(dataset: DomainDataset, broken: tuple[Broken, ...]) -> dict[str, Any]:
    places = {
        (domain.name, path): k for domain in dataset.domains for k, path in enumerate(domain.files)
    }
    lines = [[one.domain, places[one.domain, one.path], one.why] for one in broken]
    return {"fingerprint": files_fingerprint(dataset), "broken": lines}


def files_fingerprint(dataset: DomainDataset) -> str:
    """Return the fingerprint of the files alone, without groups and however they are read."""
    return replace(dataset, groups=None, reading=AS_STORED).fingerprint


def _read_record(dataset: DomainDataset, record: Path | None) -> dict[str, Any]:
    """Return the record of these files; nothing if there is none."""
    found = read_object(record) if record is not None and record.exists() else {}
    return found if found.get("fingerprint") == files_fingerprint(dataset) else {}


def _still_broken(
    dataset: DomainDataset, known: dict[str, Any], reading: Reading
) -> tuple[Broken, ...]:
    again = [(domain, dataset[domain].files[k]) for domain, k, _ in known["broken"]]
    found = [(domain, path, why_broken(path, reading)) for domain, path in again]
    return tuple(Broken(domain, path, why) for domain, path, why in found if why is not None)
