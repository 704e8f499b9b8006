"""Inspection: a user's data, read in full before training, with its faults and oddities."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from ..datasets import DomainDataset, image_folders, image_manifest, splits
from ..datasets.appearance import Appearance
from ..datasets.cache import ImageCache
from ..datasets.domain_columns import DomainColumns
from ..datasets.encoding import Encoding
from ..datasets.folders import dataset_of_files, empty_folders, first_few, folder_name
from ..datasets.images import Broken, Copies, find_copies, image_size
from ..datasets.manifest import COLUMNS, MANIFESTS
from ..datasets.tables import TableData, column_names, table_data
from ..datasets.verification import find_unusual
from ..documents import damage_named, read_object
from ..storage import write_json
from .class_shares import describe_shares, differing_shares
from .image_survey import survey_images
from .table_findings import find_in_table

LAYOUTS = ("domain/class", "class/domain")
# Images of each class in each domain whose size is compared.
LOOKED = 4
# Words in folder names that more often mean a domain than a class.
PLACES = frozenset(
    (
        *("photo", "photos", "sketch", "sketches", "cartoon", "painting", "art", "clipart"),
        *("infograph", "quickdraw", "real", "product", "hospital", "clinic", "site", "center"),
        *("centre", "camera", "scanner", "location", "loc", "city", "country", "region", "lab"),
        *("device", "sensor", "day", "night", "summer", "winter", "year", "batch", "source"),
        *("domain", "env", "environment"),
    )
)


def with_layout(dataset: DomainDataset, layout: str | None, where: Path) -> DomainDataset:
    """Return the data set with domains and classes as ``layout`` names them.

    Raise if no layout is given and the folders look swapped.

    Args:
        dataset: read as ``domain/class``.
        where: its folder, for the error message.
    """
    if layout == LAYOUTS[1]:
        return swap_domains_and_classes(dataset)
    if layout is None and (why := why_swapped(dataset)):
        raise ValueError(
            f"{where} looks like <class>/<domain>/<file>, expected <domain>/<class>/<file>: {why}. "
            f"As it is, the domains are {first_few(dataset.names)} and the classes "
            f"{first_few(dataset.classes)}. If they are swapped, add --layout {LAYOUTS[1]}; if "
            f"not, --layout {LAYOUTS[0]}"
        )
    return dataset


def why_swapped(dataset: DomainDataset) -> str | None:
    """Return the reason to think that domains and classes are swapped, or None."""
    if names_look_swapped(dataset.names, dataset.classes):
        return "the inner folders have names of domains"
    if _disjoint(dataset):
        return "no class is in more than one domain"
    if _sizes_look_swapped(dataset):
        return (
            "images of one inner folder all have the same size, whichever outer folder they are "
            "in, like images of one camera or site"
        )
    return None


def names_look_swapped(domains: Sequence[str], classes: Sequence[str]) -> bool:
    """Return whether the classes are named like domains and the domains are not."""

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


def _sizes_look_swapped(dataset: DomainDataset) -> bool:
    """Return whether each class has one image size of its own, and no domain has.

    A camera, a scanner or a style gives all its images one size; their content does not.
    """
    of_classes: dict[int, set[object]] = {}
    of_domains: dict[str, set[object]] = {}
    for domain in dataset.domains:
        seen: dict[int, int] = {}
        for path, label in zip(domain.images, domain.labels.tolist(), strict=True):
            seen[label] = seen.get(label, 0) + 1
            if seen[label] <= LOOKED and (look := image_size(Path(path))) is not None:
                of_classes.setdefault(label, set()).add(look)
                of_domains.setdefault(domain.name, set()).add(look)
    alone = [next(iter(looks)) for looks in of_classes.values() if len(looks) == 1]
    return (
        len(alone) == len(of_classes) == len(set(alone)) > 1
        and len(of_domains) == len(dataset.names)
        and all(len(looks) > 1 for looks in of_domains.values())
    )


def swap_domains_and_classes(dataset: DomainDataset) -> DomainDataset:
    """Return the data set with domains as classes and classes as domains."""
    files: dict[str, list[tuple[str, Path]]] = {kind: [] for kind in dataset.classes}
    for domain in dataset.domains:
        for path, label in zip(domain.images, domain.labels.tolist(), strict=True):
            files[dataset.classes[label]].append((domain.name, Path(path)))
    return dataset_of_files(dataset.name, list(files), files)


# A domain of fewer examples says little.
TINY = 3
# A note is printed if a column has so many categories and this many rows or fewer for each.
MANY, ROWS = 50, 10
# A note is printed if one class or domain is this many times larger than another.
UNEVEN = 10
# Why to leave out a column that determines the class or the domain.
REPEATS = {
    "class": "if it is not known at prediction time, leave it out",
    "domain": "it cannot help on a new domain, so leave it out",
}


def notes_on(
    dataset: DomainDataset,
    copies: Sequence[Copies],
    empty: Sequence[str],
    repeats: Mapping[str, str],
) -> list[str]:
    """Return the notes for the user, a line each.

    Args:
        empty: names of empty folders.
        repeats: columns of a table, as in ``TableData``.
    """
    notes = _few_domains(dataset) + _tiny_domains(dataset) + find_unusual(dataset)
    notes += [*_uneven(dataset), *describe_shares(dataset), *_duplicates(copies)]
    notes += _groups(dataset)
    if empty:
        notes.append(f"empty folders, skipped: {first_few(empty)}")
    return notes + [
        f"the column {column!r} determines the {kind}; {REPEATS[kind]}: --leave-out {quote(column)}"
        for column, kind in repeats.items()
    ]


def _few_domains(dataset: DomainDataset) -> list[str]:
    if len(dataset.names) > 2:
        return []
    return [
        "there are two domains, so each estimate comes from a model trained on one, and methods "
        "that compare domains have nothing to compare; three or more domains are better"
    ]


def _tiny_domains(dataset: DomainDataset) -> list[str]:
    tiny = sum(len(domain) < TINY for domain in dataset.domains)
    if 2 * tiny <= len(dataset.names):
        return []
    return [
        f"{tiny:,} of {len(dataset.names):,} domains have fewer than {TINY} examples, which say "
        "little about a domain; is this the right column or folder?"
    ]


def _many_categories(
    dataset: DomainDataset, encoding: Encoding, known: Collection[str]
) -> Iterator[str]:
    """Yield notes on columns of texts with few rows for each, but those ``known``."""
    rows = sum(map(len, dataset.domains))
    for column in encoding.columns:
        count = len(column.values or ())
        if column.name not in known and count > MANY and rows <= ROWS * count:
            yield (
                f"the column {column.name!r} has {count:,} categories in {rows:,} rows; if they "
                "are people, things or days, a new domain has others, so leave it out "
                f"(--leave-out {quote(column.name)}), or give it as --group-column if rows of one "
                "belong together"
            )


def _uneven(dataset: DomainDataset) -> list[str]:
    counts = dataset.counts()
    by_class = {kind: sum(domain[kind] for domain in counts.values()) for kind in dataset.classes}
    by_domain = {name: sum(domain.values()) for name, domain in counts.items()}
    found = []
    for kind, sizes in (("class", by_class), ("domain", by_domain)):
        low, high = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        if sizes[high] > UNEVEN * sizes[low]:
            found.append(
                f"the {kind} {high!r} has {sizes[high]:,} examples, {low!r} only {sizes[low]:,}"
            )
    return found


def _duplicates(copies: Sequence[Copies]) -> list[str]:
    found = []
    across = [one for one in copies if one.across]
    within = [one for one in copies if not one.across]
    if across:
        files = _count(len(across), "file is", "files are")
        found.append(
            f"{files} in several domains, so scores on a held-out domain may be too high: "
            f"{first_few(_equations(across))}"
        )
    if within:
        files = _count(len(within), "duplicate file", "duplicate files")
        found.append(
            f"{files} within a domain; scores on seen domains may be too high: "
            f"{first_few(_equations(within))}"
        )
    if wrong := [one for one in copies if one.contradict]:
        files = _count(len(wrong), "file has", "files have")
        found.append(f"{files} several classes: {first_few([one.paths[0] for one in wrong])}")
    return found


def _groups(dataset: DomainDataset) -> list[str]:
    """Return notes on groups that are in several domains, and on domains of too few groups."""
    groups = dataset.groups
    if groups is None:
        return []
    found, name = [], groups.column
    if shared := groups.shared():
        values = _count(len(shared), f"{name} is", f"values of {name!r} are")
        examples = [f"{group} ({', '.join(domains)})" for group, domains in shared.items()]
        found.append(
            f"{values} in several domains, so the estimate for a new domain may be too high: "
            f"{first_few(examples)}"
        )
    few = [domain for domain, parts in splits(dataset, 0).items() if not len(parts.held_out)]
    if few:
        found.append(
            f"too few values of {name!r} to hold any of them out in: {first_few(few)}; scores on "
            "seen domains leave these out"
        )
    return found


def _equations(copies: Sequence[Copies]) -> list[str]:
    return ["  =  ".join(map(str, one.paths[:3])) for one in copies]


def _count(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many}"


SUFFIXES = (*MANIFESTS, ".parquet")


@dataclass(frozen=True, kw_only=True)
class FitData:
    """Data to fit a model to, and all that the inspection found in it.

    ``dataset`` holds the usable examples: it excludes ``broken`` files and ``empty`` folders.
    ``table`` is None for images. ``findings`` are notes that took reading all of the data.
    """

    dataset: DomainDataset
    broken: tuple[Broken, ...] = ()
    copies: tuple[Copies, ...] = ()
    table: TableData | None = None
    empty: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Oddities that can be intended, a line each."""
        repeats = self.table.repeats if self.table is not None else {}
        notes = notes_on(self.dataset, self.copies, self.empty, repeats)
        if self.table is not None:
            notes += _many_categories(self.dataset, self.table.encoding, repeats)
        return [*notes, *self.findings]

    @property
    def shares_differ(self) -> bool:
        """Whether a class is much more frequent in one domain than in another."""
        return bool(differing_shares(self.dataset))

    @property
    def kind(self) -> str:
        """Either "images" or "table"."""
        return "images" if self.table is None else "table"


def inspect_data(
    data: Path,
    layout: str | None = None,
    class_column: str = "class",
    domain_column: DomainColumns = "domain",
    leave_out: Collection[str] = (),
    group_column: str | None = None,
    keep: Collection[str] = (),
    progress: Callable[[int, int], object] | None = None,
    record: Path | None = None,
) -> FitData:
    """Return the data at ``data`` after reading every image once.

    Args:
        data: folders of images, a manifest of images, or a table (CSV or Parquet).
        layout: of folders, one of ``LAYOUTS``; None is the first, unless they look swapped.
        class_column, domain_column, leave_out, keep: of a table, as in ``table_data``.
        group_column: of a table or a manifest.
        progress: called after every image with the number read and the total; of a table, now and
            then with bytes.
        record: a file that keeps what was found in images, so that they are not read again.
    """
    if is_table(data):
        columns = class_column, domain_column, leave_out, group_column, keep
        table = table_data(data.stem, data, *columns, progress=progress)
        _check_names(table.dataset)
        return FitData(dataset=table.dataset, table=table, findings=tuple(find_in_table(table)))
    return _inspect_images(data, layout, group_column, progress, record)


def record_notes(record: Path, data: FitData) -> None:
    """Add the notes to the record, which the survey of images has begun."""
    known = read_object(record) if record.exists() else {}
    table = {"fingerprint": data.dataset.fingerprint, "broken": []}
    mine = {**(known if data.table is None else table), "notes": data.notes}
    if mine != known:
        write_json(record, mine)


def recorded_appearance(
    record: Path, dataset: DomainDataset, decode: Callable[[], ImageCache]
) -> Appearance:
    """Return what the images look like; it is added to the record, so it is found out once.

    Args:
        record: of the inspection of these images.
    """
    known = read_object(record)
    if "appearance" in known:
        with damage_named(record):
            return Appearance.from_json(known["appearance"])
    cache = decode()
    found = Appearance.of(cache[name].evaluation for name in dataset.names)
    write_json(record, {**known, "appearance": found.as_json()})
    return found


def _inspect_images(
    data: Path,
    layout: str | None,
    group_column: str | None,
    progress: Callable[[int, int], object] | None,
    record: Path | None,
) -> FitData:
    dataset = _read_images(data, layout, group_column)
    _check_names(dataset)
    survey = survey_images(dataset, progress, record)
    dataset = without(dataset, {line.path for line in survey.broken})
    _check_names(dataset)
    counts = dataset.counts().values()
    for kind in dataset.classes:
        if not any(domain[kind] for domain in counts):
            raise ValueError(f"no image of the class {kind!r} can be read")
    return FitData(
        dataset=replace(dataset, reading=survey.reading),
        broken=survey.broken,
        copies=tuple(find_copies(dataset)),
        empty=tuple(empty_folders(data)) if data.is_dir() else (),
        findings=survey.findings,
    )


def check_kind(
    data: Path,
    for_tables: Mapping[str, bool],
    for_images: Mapping[str, bool],
    for_lists: Mapping[str, bool],
) -> None:
    """Raise if an option was given that has no effect on this kind of data.

    Args:
        for_tables, for_images: whether each option was given, by its name.
        for_lists: the same for tables and for manifests of images.
    """
    if data.is_dir():
        useless, kind, what = for_tables, "tables", "a folder of images"
        if any(for_lists.values()):
            useless, kind = for_lists, "tables and lists of images"
    elif not data.is_file():
        return  # reading it raises a better error
    elif is_table(data):
        useless, kind, what = for_images, "images", "a table"
    elif data.suffix.lower() not in SUFFIXES:
        return  # likewise
    else:
        useless, kind, what = for_tables, "tables", "a manifest of images"
    for name, given in useless.items():
        if given:
            hint = "; to ignore a domain, remove it from the data" if name == "--leave-out" else ""
            raise ValueError(f"{name} is for {kind}, but {data} is {what}{hint}")


def is_table(data: Path) -> bool:
    """Return whether a file is a table of features rather than a manifest of images."""
    if data.suffix.lower() == ".parquet":
        return True
    if data.suffix.lower() not in (".csv", ".tsv"):
        return False
    return not set(COLUMNS) <= set(column_names(data))


def _read_images(data: Path, layout: str | None, group_column: str | None) -> DomainDataset:
    if data.is_file():
        if data.suffix.lower() not in SUFFIXES:
            raise ValueError(
                f"{data} must be a folder of images, or a file with one of the suffixes "
                f"{', '.join(SUFFIXES)}"
            )
        return image_manifest(data.stem, data, group_column)
    dataset = image_folders(folder_name(data), data)
    return with_layout(dataset, layout, data)


def _check_names(dataset: DomainDataset) -> None:
    """Raise if there are too few domains or classes, or two names that look alike."""
    if len(dataset.names) < 2:
        raise ValueError(
            f"{dataset.name} has only one domain, {dataset.names[0]!r}; to estimate the accuracy "
            "on an unseen domain, two or more are needed, better three"
        )
    if len(dataset.classes) < 2:
        raise ValueError(f"{dataset.name} has only one class, {dataset.classes[0]!r}; give two")
    for kind, names in (("classes", dataset.classes), ("domains", dataset.names)):
        counts = Counter(map(_letters, names))
        alike = [name for name in names if counts[_letters(name)] > 1]
        if alike:
            raise ValueError(
                f"{dataset.name} has {kind} that differ only by case, spaces or the encoding of "
                f"their letters: {first_few([repr(name) for name in alike])}; give them one name"
            )


def _letters(name: str) -> str:
    """Return the name as people read it: an é can be one code point or two."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def without(dataset: DomainDataset, broken: Collection[Path]) -> DomainDataset:
    """Return the data set without these files."""
    if not broken:
        return dataset
    domains, places = [], {}
    for domain in dataset.domains:
        kept = [k for k, path in enumerate(domain.files) if path not in broken]
        if not kept:
            raise ValueError(f"no image of the domain {domain.name!r} can be read")
        files = tuple(domain.files[k] for k in kept)
        domains.append(replace(domain, labels=domain.labels[kept], images=files))
        places[domain.name] = kept
    groups = None if dataset.groups is None else dataset.groups.take(places)
    return replace(dataset, domains=tuple(domains), groups=groups)
