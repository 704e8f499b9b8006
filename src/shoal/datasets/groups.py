"""Groups: examples of one patient, animal or device, which a split keeps together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..randomness import domainbed_hash

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of every example of a data set.

    Args:
        column: what the groups are called, such as "patient".
        names: of the groups.
        ids: the index of every example's group in ``names``, int64 ``[n]``, by domain.
    """

    column: str
    names: tuple[str, ...]
    ids: Mapping[str, Tensor]
    _known: dict[tuple[int, float], Tensor] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(column: str, domains: Mapping[str, Sequence[str]]) -> "Groups":
        """Return the groups with these names, one for each example of every domain."""
        names = sorted({name for given in domains.values() for name in given})
        place = {name: k for k, name in enumerate(names)}
        ids = {
            domain: torch.tensor([place[name] for name in given], dtype=torch.int64)
            for domain, given in domains.items()
        }
        return Groups(column, tuple(names), ids)

    def take(self, examples: Mapping[str, Sequence[int]]) -> "Groups":
        """Return the groups of some examples only, given by domain."""
        ids = {domain: self.ids[domain][list(places)] for domain, places in examples.items()}
        return Groups(self.column, self.names, ids)

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise if a domain of these sizes does not have one group per example."""
        for domain, size in sizes.items():
            count = len(self.ids[domain]) if domain in self.ids else 0
            if count != size:
                raise ValueError(
                    f"the domain {domain!r} must have one group per example, got {count} for "
                    f"{size} examples"
                )

    def shared(self) -> dict[str, tuple[str, ...]]:
        """Return the domains of every group that is in more than one, by its name."""
        domains = list(self.ids)
        found: dict[str, tuple[str, ...]] = {}
        for group, places, _ in self._members():
            if len(places) > 1:
                found[self.names[group]] = tuple(domains[place] for place in places)
        return found

    def held_out(self, trial: int, holdout: float) -> Tensor:
        """Return which groups are held out in a trial, bool ``[G]``.

        Groups come in random order. One is held out if that brings the held-out shares of its
        domains nearer to ``holdout``, summed over them, and leaves each of them an example to
        train on. So a domain of one or two groups has nothing held out.
        """
        key = (trial, holdout)
        if key not in self._known:
            self._known[key] = self._draw(trial, holdout)
        return self._known[key]

    def _draw(self, trial: int, holdout: float) -> Tensor:
        sizes = np.array([len(ids) for ids in self.ids.values()])
        wanted = (holdout * sizes).astype(np.int64)
        members = self._members()
        order = np.random.RandomState(domainbed_hash(trial, "groups")).permutation(len(members))
        held, found = np.zeros_like(sizes), torch.zeros(len(self.names), dtype=torch.bool)
        for group, places, counts in (members[k] for k in order):
            after = held[places] + counts
            nearer = abs(held[places] - wanted[places]) - abs(after - wanted[places])
            if (nearer / sizes[places]).sum() > 0 and (after < sizes[places]).all():
                held[places], found[group] = after, True
        return found

    def _members(self) -> list[tuple[int, Array, Array]]:
        """Return every group with the indices of its domains, and its examples in each of them."""
        number = len(self.ids)
        keys = [number * ids.numpy() + place for place, ids in enumerate(self.ids.values())]
        pairs, counts = np.unique(np.concatenate(keys), return_counts=True)
        groups, starts = np.unique(pairs // number, return_index=True)
        ends = [*starts[1:], len(pairs)]
        return [
            (int(group), pairs[start:end] % number, counts[start:end])
            for group, start, end in zip(groups, starts, ends, strict=True)
        ]
