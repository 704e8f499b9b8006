"""Folds: the domains that are left out together; usually each domain alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..datasets import DomainDataset

# With more domains than this, some are left out together: every fold costs a run of each candidate.
MOST = 12


@dataclass(frozen=True)
class Fold:
    """Domains that are left out together.

    Args:
        name: of the only domain, or of the first one and the number of the others.
    """

    name: str
    domains: tuple[str, ...]


def make_folds(sizes: Mapping[str, int], most: int = MOST) -> tuple[Fold, ...]:
    """Return a fold for each domain, or ``most`` folds of about equally many examples.

    Args:
        sizes: the number of examples of each domain, by name.
    """
    if len(sizes) <= most:
        return tuple(Fold(name, (name,)) for name in sizes)
    members: list[list[str]] = [[] for _ in range(most)]
    examples = [0] * most
    # The largest first, each to the fold that has the fewest examples so far.
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        fewest = min(range(most), key=lambda k: (examples[k], len(members[k])))
        members[fewest].append(name)
        examples[fewest] += sizes[name]
    place = {name: k for k, name in enumerate(sizes)}
    in_order = sorted(
        (sorted(fold, key=place.__getitem__) for fold in members), key=lambda fold: place[fold[0]]
    )
    return tuple(Fold(_name(fold), tuple(fold)) for fold in in_order)


def folds_of(dataset: DomainDataset) -> tuple[Fold, ...]:
    """Return the folds of a data set."""
    return make_folds({domain.name: len(domain) for domain in dataset.domains})


def _name(domains: list[str]) -> str:
    more = len(domains) - 1
    return f"{domains[0]} and {more} more" if more else domains[0]
