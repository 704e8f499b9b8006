"""What a user's data is: read in full before anything is trained, and refused where it is wrong."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..datasets import DomainDataset, image_folders, image_manifest, verify
from ..datasets.duplicates import Copies, find_copies
from ..datasets.examination import unusual
from ..datasets.faults import some
from ..datasets.images import Broken
from ..datasets.manifest import COLUMNS
from ..datasets.table import TableData, read_table, table_data
from ..storage import read_json, write_json

LAYOUTS = ("domain/class", "class/domain")
# A class or domain so much larger than another is worth a word.
UNEVEN = 10
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


@dataclass(frozen=True)
class Material:
    """Data that a model can be fitted to, and all that was found in it.

    ``dataset`` has what can be used: broken files are left out. ``table`` is there for tables.
    """

    dataset: DomainDataset
    broken: tuple[Broken, ...] = ()
    copies: tuple[Copies, ...] = ()
    table: TableData | None = None

    @property
    def notes(self) -> list[str]:
        """What is unusual and may be as it should, a line each."""
        return [*unusual(self.dataset), *_uneven(self.dataset), *_copied(self.copies)]


def material_of(
    data: Path,
    layout: str | None = None,
    class_column: str = "class",
    domain_column: str = "domain",
    leave_out: Collection[str] = (),
    progress: Callable[[int, int], object] | None = None,
    record: Path | None = None,
) -> Material:
    """Return the data at ``data``, every image of it read once.

    Args:
        data: folders of images, a manifest of them, or a table (CSV or Parquet).
        layout: of folders, one of ``LAYOUTS``; None is the first, unless they look swapped.
        class_column, domain_column, leave_out: of a table, as in ``table_data``.
        progress: called after every image with how many were read, of how many.
        record: a file that keeps what was found, so that the same images are not read again.
    """
    if is_table(data):
        table = table_data(data.stem, data, class_column, domain_column, leave_out)
        _check(table.dataset)
        return Material(table.dataset, table=table)
    dataset = _images(data, layout)
    _check(dataset)
    known = read_json(record) if record is not None and record.exists() else {}
    if known.get("fingerprint") == dataset.fingerprint:
        broken = tuple(Broken(one[0], Path(one[1]), one[2]) for one in known["broken"])
    else:
        broken = verify(dataset, progress=progress).broken
        if record is not None:
            lines = [[one.domain, str(one.path), one.why] for one in broken]
            write_json(record, {"fingerprint": dataset.fingerprint, "broken": lines})
    dataset = _without(dataset, {line.path for line in broken})
    _check(dataset)
    return Material(dataset, broken, tuple(find_copies(dataset)))


def is_table(data: Path) -> bool:
    """Return whether a file is a table of features, and no manifest of images."""
    if data.suffix.lower() == ".parquet":
        return True
    if data.suffix.lower() not in (".csv", ".tsv"):
        return False
    return not set(COLUMNS) <= set(read_table(data))


def _images(data: Path, layout: str | None) -> DomainDataset:
    if data.is_file():
        return image_manifest(data.stem, data)
    dataset = image_folders(data.resolve().name, data)
    if layout == LAYOUTS[1]:
        return _swapped(dataset)
    if layout is None and looks_swapped(dataset.names, dataset.classes):
        raise ValueError(
            f"{data} looks like <class>/<domain>/<file>, expected <domain>/<class>/<file>: its "
            f"domains would be {some(dataset.names)}, its classes {some(dataset.classes)}; if they "
            f"are swapped, add --layout {LAYOUTS[1]}, if not, --layout {LAYOUTS[0]}"
        )
    return dataset


def looks_swapped(domains: Sequence[str], classes: Sequence[str]) -> bool:
    """Return whether classes have names of domains, and domains have not."""

    def like_domains(names: Sequence[str]) -> int:
        words = [set(re.split(r"[\W_\d]+", name.lower())) for name in names]
        return sum(
            bool(found & PLACES) or bool(re.fullmatch(r"(19|20)\d\d", name))
            for found, name in zip(words, names, strict=True)
        )

    return like_domains(domains) == 0 and like_domains(classes) > len(classes) / 2


def _swapped(dataset: DomainDataset) -> DomainDataset:
    """Return the data set whose domains are the classes of this one, and the other way round."""
    from ..datasets.folder import of_files

    files: dict[str, list[tuple[str, Path]]] = {kind: [] for kind in dataset.classes}
    for domain in dataset.domains:
        for path, label in zip(domain.images, domain.labels.tolist(), strict=True):
            files[dataset.classes[label]].append((domain.name, path))
    return of_files(dataset.name, list(files), files)


def _check(dataset: DomainDataset) -> None:
    """Raise where nothing can be learned, or estimated, from this data."""
    if len(dataset.names) < 2:
        raise ValueError(
            f"{dataset.name} has one domain only, {dataset.names[0]!r}: how a model does on a "
            "domain it never saw can only be estimated with two or more, and is better with three"
        )
    if len(dataset.classes) < 2:
        raise ValueError(f"{dataset.name} has one class only, {dataset.classes[0]!r}")
    for kind, names in (("classes", dataset.classes), ("domains", dataset.names)):
        counts = Counter(name.lower() for name in names)
        alike = [name for name in names if counts[name.lower()] > 1]
        if alike:
            raise ValueError(
                f"{dataset.name} has {kind} that differ by case only: {some(alike)}; give what "
                "belongs together one name"
            )


def _without(dataset: DomainDataset, broken: Collection[Path]) -> DomainDataset:
    """Return the data set without these files."""
    if not broken:
        return dataset
    domains = []
    for domain in dataset.domains:
        pairs = zip(domain.images, domain.labels.tolist(), strict=True)
        kept = [(Path(path), label) for path, label in pairs if path not in broken]
        if not kept:
            raise ValueError(f"no image of the domain {domain.name!r} can be read")
        labels = torch.tensor([label for _, label in kept])
        domains.append(replace(domain, labels=labels, images=tuple(path for path, _ in kept)))
    return replace(dataset, domains=tuple(domains))


def _uneven(dataset: DomainDataset) -> list[str]:
    counts = dataset.counts()
    by_class = {kind: sum(domain[kind] for domain in counts.values()) for kind in dataset.classes}
    by_domain = {name: sum(domain.values()) for name, domain in counts.items()}
    found = []
    for kind, sizes in (("class", by_class), ("domain", by_domain)):
        low, high = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        if sizes[high] > UNEVEN * sizes[low]:
            found.append(
                f"the {kind} {high!r} has {sizes[high]:,} examples and {low!r} {sizes[low]:,}"
            )
    return found


def _copied(copies: Sequence[Copies]) -> list[str]:
    found = []
    across = [one for one in copies if one.across]
    within = [one for one in copies if not one.across]
    if across:
        pairs = ["  =  ".join(map(str, one.paths[:3])) for one in across]
        found.append(
            f"{len(across):,} files are in several domains, so that a domain that is left out is "
            f"partly known: {some(pairs)}"
        )
    if within:
        found.append(f"{len(within):,} files are more than once in their domain")
    if wrong := [one for one in copies if one.contradict]:
        found.append(
            f"{len(wrong):,} files are of several classes: {some([one.paths[0] for one in wrong])}"
        )
    return found
