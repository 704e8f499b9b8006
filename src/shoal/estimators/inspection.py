"""What a user's data is: read in full before anything is trained, and refused where it is wrong."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..datasets import DomainDataset, image_folders, image_manifest, verify
from ..datasets.folders import empty_folders, name_of, some
from ..datasets.images import Broken, Copies, find_copies, why_broken
from ..datasets.manifest import COLUMNS, MANIFESTS
from ..datasets.tables import TableData, read_table, table_data
from ..storage import read_json, write_json
from .layout import arranged
from .remarks import remarks

SUFFIXES = (*MANIFESTS, ".parquet")


@dataclass(frozen=True)
class Material:
    """Data that a model can be fitted to, and all that was found in it.

    ``dataset`` has what can be used: broken files and ``empty`` folders are left out. ``table`` is
    there for tables.
    """

    dataset: DomainDataset
    broken: tuple[Broken, ...] = ()
    copies: tuple[Copies, ...] = ()
    table: TableData | None = None
    empty: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What is unusual and may be as it should, a line each."""
        repeats = self.table.repeats if self.table is not None else {}
        return remarks(self.dataset, self.copies, self.empty, repeats)


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
    broken = broken_files(dataset, progress, record)
    dataset = without(dataset, {line.path for line in broken})
    _check(dataset)
    counts = dataset.counts().values()
    for kind in dataset.classes:
        if not any(domain[kind] for domain in counts):
            raise ValueError(f"no image of the class {kind!r} can be read")
    empty = tuple(empty_folders(data)) if data.is_dir() else ()
    return Material(dataset, broken, tuple(find_copies(dataset)), empty=empty)


def broken_files(
    dataset: DomainDataset,
    progress: Callable[[int, int], object] | None,
    record: Path | None,
) -> tuple[Broken, ...]:
    """Return the files that cannot be read.

    The record knows them by domain and place, because the data may have moved; whether they can be
    read by now is tried again.
    """
    known = read_json(record) if record is not None and record.exists() else {}
    if known.get("fingerprint") == dataset.fingerprint:
        again = [(domain, Path(str(dataset[domain].images[k]))) for domain, k, _ in known["broken"]]
        found = [(domain, path, why_broken(path)) for domain, path in again]
        return tuple(Broken(domain, path, why) for domain, path, why in found if why is not None)
    broken = verify(dataset, progress=progress).broken
    if record is not None:
        places = {
            (domain.name, path): k
            for domain in dataset.domains
            for k, path in enumerate(domain.images)
        }
        lines = [[one.domain, places[one.domain, one.path], one.why] for one in broken]
        write_json(record, {"fingerprint": dataset.fingerprint, "broken": lines})
    return broken


def is_table(data: Path) -> bool:
    """Return whether a file is a table of features, and no manifest of images."""
    if data.suffix.lower() == ".parquet":
        return True
    if data.suffix.lower() not in (".csv", ".tsv"):
        return False
    return not set(COLUMNS) <= set(read_table(data))


def _images(data: Path, layout: str | None) -> DomainDataset:
    if data.is_file():
        if data.suffix.lower() not in SUFFIXES:
            raise ValueError(
                f"{data} must be a folder of images, or a file that ends in one of "
                f"{', '.join(SUFFIXES)}"
            )
        return image_manifest(data.stem, data)
    dataset = image_folders(name_of(data), data)
    return arranged(dataset, layout, data)


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
        counts = Counter(map(_letters, names))
        alike = [name for name in names if counts[_letters(name)] > 1]
        if alike:
            raise ValueError(
                f"{dataset.name} has {kind} that differ by case, spaces or the encoding of their "
                f"letters only: {some([repr(name) for name in alike])}; give what belongs together "
                "one name"
            )


def _letters(name: str) -> str:
    """Return the name as people read it: an é may be one sign or two."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def without(dataset: DomainDataset, broken: Collection[Path]) -> DomainDataset:
    """Return the data set without these files."""
    if not broken:
        return dataset
    domains = []
    for domain in dataset.domains:
        pairs = zip(domain.images, domain.labels.tolist(), strict=True)
        kept = [(Path(path), label) for path, label in pairs if path not in broken]
        if not kept:
            raise ValueError(f"no image of the domain {domain.name!r} can be read")
        labels = torch.tensor([label for _, label in kept], dtype=torch.int64)
        domains.append(replace(domain, labels=labels, images=tuple(path for path, _ in kept)))
    return replace(dataset, domains=tuple(domains))
