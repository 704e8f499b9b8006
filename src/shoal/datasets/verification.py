"""Verification of a data set's files: faults, counts, and notes on unusual domains and classes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..catalogue import own_dataset
from . import PUBLISHED, SOURCES, find
from .base import HOLDOUT, Domain, DomainDataset
from .fetch import RECORD, read_record
from .folders import Faults, first_few, folder_name, survey_folders
from .images import Published, Verification, verify
from .manifest import is_manifest, survey_manifest

# Up to this number of notes of a kind are printed one by one; more would flood a terminal.
FEW = 3


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The findings about a data set at a place; ``found`` is None if there is no image."""

    name: str
    place: str
    found: Verification | None
    published: Published | None
    faults: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether every image can be read, every count is right and no file is out of place."""
        return self.found is not None and self.found.good and not self.faults


def examine(
    text: str, root: Path, progress: Callable[[int, int], object] | None = None
) -> Examination:
    """Read every image of a folder, a manifest, or a published set under ``root``.

    ``text`` is a path if such a folder exists, or if it has a slash or the suffix of a manifest.
    """
    path = Path(text)
    if is_manifest(path):
        dataset, faults = survey_manifest(path.stem, path)
        return _examine(path.stem, text, dataset, faults, None, progress)
    if "/" in text or path.is_dir():
        name = folder_name(path)
        dataset, faults = survey_folders(name, path)
        return _examine(name, text, dataset, faults, None, progress)
    text = own_dataset(text)
    load = find(text)
    source = SOURCES[text]
    if source.embedded:
        return _examine(text, "embedded", load(None, 0), Faults(), None, progress)
    folder = root / source.folder
    if not folder.is_dir():
        raise ValueError(f"{text} is not at {folder}; to download it: shoal data download {text}")
    dataset, faults = source.survey(root)
    if dataset is not None and _has_changed(dataset, root):
        faults.changed.append(str(root / RECORD))
    return _examine(text, str(folder), dataset, faults, PUBLISHED[text], progress)


def _examine(
    name: str,
    place: str,
    dataset: DomainDataset | None,
    faults: Faults,
    published: Published | None,
    progress: Callable[[int, int], object] | None,
) -> Examination:
    found, notes = None, [f"{path}: not used" for path in faults.unused]
    if dataset is not None:
        found = verify(dataset, published, progress)
        notes += find_unusual(dataset)
        if found.differences and SOURCES[name].remark:
            notes.append(SOURCES[name].remark)
    return Examination(
        name=name,
        place=place,
        found=found,
        published=published,
        faults=tuple(faults.lines()),
        notes=tuple(notes),
    )


def _has_changed(dataset: DomainDataset, root: Path) -> bool:
    before = read_record(root)["sets"].get(dataset.name)
    return before is not None and before["fingerprint"] != dataset.fingerprint


def find_unusual(dataset: DomainDataset) -> list[str]:
    """Return notes on unusual domains and classes, which can be intended."""
    notes = []
    if len(dataset.names) == 1:
        notes.append(f"there is only one domain, {dataset.names[0]!r}; training needs two or more")
    return notes + _rare_classes(dataset) + _lacking_domains(dataset) + _small_domains(dataset)


def _rare_classes(dataset: DomainDataset) -> list[str]:
    counts, notes = dataset.counts(), []
    for kind in dataset.classes:
        where = [domain for domain in counts if counts[domain][kind]]
        if len(where) == 1 < len(counts):
            notes.append(f"the class {kind!r} is only in the domain {where[0]!r}")
    return _limit(notes, f"{len(notes):,} classes are in one domain only: {first_few(notes)}")


def _lacking_domains(dataset: DomainDataset) -> list[str]:
    notes, lacking = [], dataset.missing_classes()
    for name, missing in lacking.items():
        classes = "a class" if len(missing) == 1 else f"{len(missing):,} classes"
        notes.append(f"the domain {name!r} lacks {classes}: {first_few(missing)}")
    named = first_few([f"{name!r} ({len(missing):,})" for name, missing in lacking.items()])
    return _limit(notes, f"{len(notes):,} domains lack classes: {named}")


def _small_domains(dataset: DomainDataset) -> list[str]:
    few = [domain for domain in dataset.domains if int(HOLDOUT * len(domain)) == 0]
    notes = [
        f"the domain {domain.name!r} has {_examples(domain)}: too few to hold any out"
        for domain in few
    ]
    named = first_few([f"{domain.name!r} ({len(domain)})" for domain in few])
    kind = _unit(dataset.domains[0])
    return _limit(notes, f"{len(few):,} domains have too few {kind}s to hold any out: {named}")


def _limit(notes: list[str], summary: str) -> list[str]:
    """Return the notes, or their summary if there are many."""
    return notes if len(notes) <= FEW else [summary]


def _examples(domain: Domain) -> str:
    return f"{len(domain):,} {_unit(domain)}{'' if len(domain) == 1 else 's'}"


def _unit(domain: Domain) -> str:
    return "row" if domain.kind == "vectors" else "image"
