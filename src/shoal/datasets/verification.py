"""All that can be said about a data set's files: what is wrong, and what is only worth knowing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import PUBLISHED, SOURCES, find
from .base import HOLDOUT, Domain, DomainDataset
from .fetch import RECORD, recorded
from .folders import Faults, name_of, some, survey_folders
from .images import Published, Verification, verify
from .manifest import is_manifest, survey_manifest

# So many classes or domains get a line each; more would flood a terminal.
FEW = 3


@dataclass(frozen=True)
class Examination:
    """What was found of a data set and at which place; None where no image was found."""

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
    asked: str, root: Path, progress: Callable[[int, int], object] | None = None
) -> Examination:
    """Read every image of a folder, a manifest, or a published set under ``root``.

    What looks like a path is one: a folder that is there, or a text with a slash or a suffix.
    """
    path = Path(asked)
    if is_manifest(path):
        dataset, faults = survey_manifest(path.stem, path)
        return _examination(path.stem, asked, dataset, faults, None, progress)
    if "/" in asked or path.is_dir():
        name = name_of(path)
        dataset, faults = survey_folders(name, path)
        return _examination(name, asked, dataset, faults, None, progress)
    load = find(asked)
    source = SOURCES[asked]
    if source.embedded:
        dataset, faults = load(None, 0), Faults()
        return _examination(asked, "embedded", dataset, faults, None, progress)
    folder = root / source.folder
    if not folder.is_dir():
        raise ValueError(f"{asked} is not at {folder}; to fetch it: shoal data download {asked}")
    dataset, faults = source.survey(root)
    if dataset is not None and _changed(dataset, root):
        faults.changed.append(str(root / RECORD))
    return _examination(asked, str(folder), dataset, faults, PUBLISHED[asked], progress)


def _examination(
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
        notes += unusual(dataset)
        if found.differences and SOURCES[name].remark:
            notes.append(SOURCES[name].remark)
    return Examination(name, place, found, published, tuple(faults.lines()), tuple(notes))


def _changed(dataset: DomainDataset, root: Path) -> bool:
    before = recorded(root)["sets"].get(dataset.name)
    return before is not None and before["fingerprint"] != dataset.fingerprint


def unusual(dataset: DomainDataset) -> list[str]:
    """Return what is unusual, and may be as it should."""
    notes = []
    if len(dataset.names) == 1:
        notes.append(f"there is one domain only, {dataset.names[0]!r}; training needs two or more")
    return [*notes, *_alone(dataset), *_lacking(dataset), *_small(dataset)]


def _alone(dataset: DomainDataset) -> list[str]:
    counts, alone = dataset.counts(), []
    for kind in dataset.classes:
        where = [domain for domain in counts if counts[domain][kind]]
        if len(where) == 1 < len(counts):
            alone.append(f"the class {kind!r} is in the domain {where[0]!r} only")
    return _grouped(alone, f"{len(alone):,} classes are in one domain only: {some(alone)}")


def _lacking(dataset: DomainDataset) -> list[str]:
    lines, lacking = [], dataset.missing_classes()
    for name, missing in lacking.items():
        classes = "a class" if len(missing) == 1 else f"{len(missing):,} classes"
        lines.append(f"the domain {name!r} lacks {classes}: {some(missing)}")
    named = some([f"{name!r} ({len(missing):,})" for name, missing in lacking.items()])
    return _grouped(lines, f"{len(lines):,} domains lack classes: {named}")


def _small(dataset: DomainDataset) -> list[str]:
    few = [domain for domain in dataset.domains if int(HOLDOUT * len(domain)) == 0]
    lines = [
        f"the domain {domain.name!r} has {_examples(domain)}: too few to hold any out"
        for domain in few
    ]
    named = some([f"{domain.name!r} ({len(domain)})" for domain in few])
    kind = _kind(dataset.domains[0])
    return _grouped(lines, f"{len(few):,} domains have too few {kind}s to hold any out: {named}")


def _grouped(lines: list[str], all_of_them: str) -> list[str]:
    """Return the lines, or one for all of them where they are many."""
    return lines if len(lines) <= FEW else [all_of_them]


def _examples(domain: Domain) -> str:
    return f"{len(domain):,} {_kind(domain)}{'' if len(domain) == 1 else 's'}"


def _kind(domain: Domain) -> str:
    return "row" if domain.kind == "vectors" else "image"
