"""What a user's data is: read in full before anything is trained, and refused where it is wrong."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..datasets import DomainDataset, image_folders, image_manifest, verify
from ..datasets.folders import empty_folders, name_of, of_files, some
from ..datasets.images import Broken, Copies, find_copies, look_of, why_broken
from ..datasets.manifest import COLUMNS, MANIFESTS
from ..datasets.tables import TableData, read_table, table_data
from ..datasets.verification import unusual
from ..storage import read_json, write_json

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


# A class or domain so much larger than another is worth a word.
UNEVEN = 10
# Why a column that repeats another is better left out.
REPEATS = {
    "class": "; if it is not known before the class is, leave it out",
    "domain": ", and nothing of a domain that was never seen; leave it out",
}


def remarks(
    dataset: DomainDataset,
    copies: Sequence[Copies],
    empty: Sequence[str],
    repeats: Mapping[str, str],
) -> list[str]:
    """Return what a user should know, a line each.

    Args:
        empty: folders without anything in them.
        repeats: of a table, as in ``TableData``.
    """
    notes = [*_few(dataset), *unusual(dataset), *_uneven(dataset), *_copied(copies)]
    if empty:
        notes.append(f"folders that are empty, and left out: {some(empty)}")
    return notes + [
        f"the column {column!r} says one to one what the {kind} is{REPEATS[kind]}: --leave-out "
        f"{column}"
        for column, kind in repeats.items()
    ]


def _few(dataset: DomainDataset) -> list[str]:
    if len(dataset.names) > 2:
        return []
    return [
        "there are two domains, so that every estimate is of a model that was trained on one, "
        "where methods that compare domains have nothing to compare; three or more tell more"
    ]


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
            f"{_files(len(across))} in several domains, so that a domain that is left out is "
            f"partly known: {some(pairs)}"
        )
    if within:
        whose = "its" if len(within) == 1 else "their"
        twice = ["  =  ".join(map(str, one.paths[:3])) for one in within]
        found.append(f"{_files(len(within))} more than once in {whose} domain: {some(twice)}")
    if wrong := [one for one in copies if one.contradict]:
        found.append(
            f"{_files(len(wrong))} of several classes: {some([one.paths[0] for one in wrong])}"
        )
    return found


def _files(count: int) -> str:
    return "1 file is" if count == 1 else f"{count:,} files are"


SUFFIXES = (*MANIFESTS, ".parquet")


@dataclass(frozen=True)
class FitData:
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
) -> FitData:
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
        return FitData(table.dataset, table=table)
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
    return FitData(dataset, broken, tuple(find_copies(dataset)), empty=empty)


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
