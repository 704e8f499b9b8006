"""The same file in several places: what is trained on must not stand in the domain left out."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from .base import DomainDataset


class Copies(NamedTuple):
    """Files with the same content, and the domain and class of each."""

    paths: tuple[Path, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def across(self) -> bool:
        """Whether they are in more than one domain."""
        return len(set(self.domains)) > 1

    @property
    def contradict(self) -> bool:
        """Whether they are of more than one class."""
        return len(set(self.classes)) > 1


def find_copies(dataset: DomainDataset) -> list[Copies]:
    """Return the files that have the same content, byte for byte; none in memory."""
    sizes: dict[int, list[tuple[Path, str, str]]] = {}
    for domain in dataset.domains:
        if isinstance(domain.images, Tensor):
            continue
        for path, label in zip(domain.images, domain.labels.tolist(), strict=True):
            place = (path, domain.name, dataset.classes[label])
            sizes.setdefault(path.stat().st_size, []).append(place)
    found: dict[str, list[tuple[Path, str, str]]] = {}
    for places in sizes.values():
        if len(places) > 1:  # only these need to be read
            for place in places:
                digest = hashlib.sha256(place[0].read_bytes()).hexdigest()
                found.setdefault(digest, []).append(place)
    groups = [places for places in found.values() if len(places) > 1]
    return [Copies(*(tuple(part) for part in zip(*places, strict=True))) for places in groups]
