"""Stable columns: a table without its unstable columns, found anew for the domains trained on.

Leaving unstable columns out is a policy that is fixed beforehand. It is no candidate: accuracy on
the known domains nearly always prefers to keep them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from statistics import fmean

import torch

from ..datasets import DomainDataset
from ..datasets.encoding import Encoding
from ..results.metrics import Metric
from .estimates import Estimates
from .inspection import FitData
from .unstable_columns import ERRORS, ColumnStability, GroupEffects, unstable_columns

# Columns that are named in one sentence.
NAMED = 5


class StableColumns:
    """The data set of a table, without the columns that are unstable among the training domains.

    Args:
        dataset, encoding: of the table with all its columns.
    """

    def __init__(self, dataset: DomainDataset, encoding: Encoding) -> None:
        self.dataset, self.encoding = dataset, encoding
        # By name, for the runs that name them.
        self.datasets = {dataset.name: dataset}
        self._known: dict[frozenset[str], ColumnStability] = {}

    def stability(self, left_out: tuple[str, ...] = ()) -> ColumnStability:
        """Return the stability of all columns among the domains that are not left out."""
        key = frozenset(left_out)
        if key not in self._known:
            domains = [one for one in self.dataset.domains if one.name not in key]
            sizes = torch.tensor([len(one) for one in domains])
            self._known[key] = unstable_columns(
                torch.cat([one.tensor for one in domains]),
                torch.cat([one.labels for one in domains]),
                torch.arange(len(domains)).repeat_interleave(sizes),
                self.encoding.positions(),
            )
        return self._known[key]

    def flagged(self, left_out: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the unstable columns; none if no other column would be left."""
        found = self.stability(left_out).flagged
        return found if len(found) < len(self.encoding.columns) else ()

    def dataset_without(self, left_out: tuple[str, ...] = ()) -> DomainDataset:
        """Return all domains, without the columns that are unstable among those not left out."""
        flagged = self.flagged(left_out)
        if not flagged:
            return self.dataset
        name = f"{self.dataset.name} without {', '.join(flagged)}"
        if name not in self.datasets:
            kept = self.stability(left_out).remaining(self.encoding.positions())
            domains = [
                replace(one, images=one.tensor[:, kept].contiguous())
                for one in self.dataset.domains
            ]
            self.datasets[name] = replace(self.dataset, name=name, domains=tuple(domains))
        return self.datasets[name]


@dataclass(frozen=True, kw_only=True)
class Price:
    """What leaving out unstable columns changes, on the domains that were left out.

    Args:
        name: of the candidate that it was measured with.
        columns: those that all domains together find unstable.
        differences: by domain, the score without them minus the score with all columns. The
            columns were found without the domain.
        unseen: domains without which no column is unstable, so that none was left out there.
    """

    name: str
    columns: tuple[str, ...]
    differences: Mapping[str, float]
    unseen: Collection[str] = ()


def without_columns(data: FitData, stable: StableColumns) -> FitData:
    """Return the data as a model sees it that is trained without the unstable columns."""
    flagged = stable.flagged()
    if not flagged or data.table is None:
        return data
    dataset = stable.dataset_without()
    table = replace(data.table, dataset=dataset, encoding=data.table.encoding.without(flagged))
    return replace(data, dataset=dataset, table=table)


def describe_columns(
    stable: StableColumns | None, policy: bool, estimates: Estimates, price: Price | None
) -> list[str]:
    """Return sentences on the unstable columns of a table; none if it has none.

    Where they are left out, it is also said if they could not be found.

    Args:
        policy: whether they are left out.
    """
    if stable is None:
        return []
    found, names = stable.stability(), stable.dataset.names
    if found.note and policy:
        return [f"No column is left out: none could be tested for stability, because {found.note}."]
    if not found.flagged:
        return []
    reasons = [_reason(one, names) for one in found.groups if one.flagged]
    more = f", and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
    sentences = [
        f"Unstable column{'s' * (len(found.flagged) > 1)}: {', '.join(reasons[:NAMED])}{more}. A "
        "new domain may differ again."
    ]
    them = "it" if len(found.flagged) == 1 else "them"
    if not stable.flagged():
        sentences.append("No column is left out, because none would remain.")
    elif policy:
        sentences.append(f"The model does not use {them}, because the worst domain judges.")
    elif price is not None:
        sentences.append(_price_sentence(price, estimates.measure))
    else:
        sentences.append(
            f"There was no time to measure the model without {them}; --judge worst leaves such "
            "columns out."
        )
    if absent := [f"{names[k]!r} ({why})" for k, why in found.absent.items()]:
        sentences.append(f"Their effect is not known on {', '.join(absent)}.")
    return sentences


def _reason(group: GroupEffects, domains: Sequence[str]) -> str:
    """Return the columns and how their effect differs, in a few words.

    A sign is that of an effect which is sure of it; one of nearly zero has none.
    """
    names = " and ".join(group.names[:2])
    if len(group.names) > 2:
        names = f"{group.names[0]} and {len(group.names) - 1} like it"
    sure = {k: effect / group.errors[k] for k, effect in group.effects.items()}
    positive = [domains[k] for k, value in sure.items() if value > ERRORS]
    negative = [domains[k] for k, value in sure.items() if value < -ERRORS]
    fewer = min(positive, negative, key=len)
    if fewer:
        return f"{names} (its effect has the other sign on {', '.join(map(repr, fewer[:3]))})"
    sign = -1 if group.mean < 0 else 1
    sizes = [sign * effect for effect in group.effects.values()]
    low, high = (f"{size:z.1f}" for size in (min(sizes), max(sizes)))
    return f"{names} (its effect is between {low} and {high}, by domain)"


def _price_sentence(price: Price, metric: Metric) -> str:
    """Return what leaving the columns out costs and gains, on the domains left out."""
    seen = {d: v for d, v in price.differences.items() if d not in price.unseen}
    better = {d: v for d, v in seen.items() if metric.sign * v > 0}
    worse = {d: v for d, v in seen.items() if metric.sign * v < 0}
    equal = [d for d, v in seen.items() if v == 0]
    parts = []
    for some in (worse, better):
        if not some:
            continue
        mean = metric.scale * fmean(some.values())
        unit = " points" if metric.percent else ""
        parts.append(f"{mean:+.{metric.digits}f}{unit}{_on(list(some))}")
    if equal:
        parts.append(f"no difference{_on(equal) if parts or price.unseen else ''}")
    names = ", ".join(price.columns[:NAMED])
    names += f" and {len(price.columns) - NAMED} more" if len(price.columns) > NAMED else ""
    without = f"Without {names}, {price.name} would have: {', '.join(parts)}. " if parts else ""
    unseen = ""
    if price.unseen:
        them = "it" if len(price.columns) == 1 else "them"
        unseen = (
            f" That changes nothing{_on(list(price.unseen))}: the other domains alone give no "
            f"reason to leave a column out. --leave-out {' '.join(map(quote, price.columns))} "
            f"leaves {them} out everywhere."
        )
    return f"{without}--judge worst leaves such columns out.{unseen}"


def _on(domains: Sequence[str]) -> str:
    return f" on {domains[0]!r}" if len(domains) == 1 else f" on {len(domains)} domains"
