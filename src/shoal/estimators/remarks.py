"""What is unusual in a user's data and may be as it should: imbalance, and files that are twice."""

from collections.abc import Mapping, Sequence

from ..datasets import DomainDataset
from ..datasets.folders import some
from ..datasets.images import Copies
from ..datasets.verification import unusual

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
