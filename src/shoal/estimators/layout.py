"""Which level of folders is the domains: by their names, and by what the images look like."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..datasets import DomainDataset
from ..datasets.folders import of_files, some
from ..datasets.images import look_of

LAYOUTS = ("domain/class", "class/domain")
# Images of every class in every domain that are looked at.
LOOKED = 4
# Words of folders that are domains more often than classes.
PLACES = frozenset(
    (
        *("photo", "photos", "sketch", "sketches", "cartoon", "painting", "art", "clipart"),
        *("infograph", "quickdraw", "real", "product", "hospital", "clinic", "site", "center"),
        *("centre", "camera", "scanner", "location", "loc", "city", "country", "region", "lab"),
        *("device", "sensor", "day", "night", "summer", "winter", "year", "batch", "source"),
        *("domain", "env", "environment"),
    )
)


def arranged(dataset: DomainDataset, layout: str | None, where: Path) -> DomainDataset:
    """Return the data set with domains and classes as ``layout`` says.

    Raise where nobody says it, and the folders look like the other way round.

    Args:
        dataset: read as ``domain/class``.
        where: its folder, for an error.
    """
    if layout == LAYOUTS[1]:
        return swapped(dataset)
    if layout is None and (why := why_swapped(dataset)):
        raise ValueError(
            f"{where} looks like <class>/<domain>/<file>, expected <domain>/<class>/<file>: {why}. "
            f"Its domains would be {some(dataset.names)}, its classes {some(dataset.classes)}; if "
            f"they are swapped, add --layout {LAYOUTS[1]}, if not, --layout {LAYOUTS[0]}"
        )
    return dataset


def why_swapped(dataset: DomainDataset) -> str | None:
    """Return what speaks for domains and classes being swapped; None where nothing does."""
    if named_swapped(dataset.names, dataset.classes):
        return "the inner folders have names of domains"
    if _disjoint(dataset):
        return "no class is in more than one domain"
    if _looks_swapped(dataset):
        return (
            "images of one inner folder have one size, whichever outer folder it is in, as those "
            "of one camera or site have"
        )
    return None


def named_swapped(domains: Sequence[str], classes: Sequence[str]) -> bool:
    """Return whether classes have names of domains, and domains have not."""

    def like_domains(names: Sequence[str]) -> int:
        words = [set(re.split(r"[\W_\d]+", name.lower())) for name in names]
        return sum(
            bool(found & PLACES) or bool(re.fullmatch(r"(19|20)\d\d", name))
            for found, name in zip(words, names, strict=True)
        )

    return like_domains(domains) == 0 and like_domains(classes) > len(classes) / 2


def _disjoint(dataset: DomainDataset) -> bool:
    counts = list(dataset.counts().values())
    return len(counts) > 1 and all(
        sum(domain[kind] > 0 for domain in counts) < 2 for kind in dataset.classes
    )


def _looks_swapped(dataset: DomainDataset) -> bool:
    """Return whether every class has a look of its own, and no domain has one.

    A camera, a scanner or a style gives all its images one size; what is on them does not.
    """
    of_classes: dict[int, set[object]] = {}
    of_domains: dict[str, set[object]] = {}
    for domain in dataset.domains:
        seen: dict[int, int] = {}
        for path, label in zip(domain.images, domain.labels.tolist(), strict=True):
            seen[label] = seen.get(label, 0) + 1
            if seen[label] <= LOOKED and (look := look_of(Path(path))) is not None:
                of_classes.setdefault(label, set()).add(look)
                of_domains.setdefault(domain.name, set()).add(look)
    alone = [next(iter(looks)) for looks in of_classes.values() if len(looks) == 1]
    return (
        len(alone) == len(of_classes) == len(set(alone)) > 1
        and len(of_domains) == len(dataset.names)
        and all(len(looks) > 1 for looks in of_domains.values())
    )


def swapped(dataset: DomainDataset) -> DomainDataset:
    """Return the data set whose domains are the classes of this one, and the other way round."""
    files: dict[str, list[tuple[str, Path]]] = {kind: [] for kind in dataset.classes}
    for domain in dataset.domains:
        for path, label in zip(domain.images, domain.labels.tolist(), strict=True):
            files[dataset.classes[label]].append((domain.name, Path(path)))
    return of_files(dataset.name, list(files), files)
