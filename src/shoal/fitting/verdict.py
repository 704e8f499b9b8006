"""Verdict: the method to deploy and how certain that is, from leave-one-domain-out runs."""

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch

from ..catalogue import title_of
from ..datasets import DomainDataset, splits
from ..results.aggregation import (
    Comparison,
    MethodRow,
    TrialMean,
    compare,
    compare_over_domains,
    rows_of,
)
from ..results.records import HELD_OUT, KEPT, RunResult
from ..results.selection import Choice, choose_runs

BASELINE = "erm"
MAJORITY = "most frequent class"
# Student's t by the number of domains: if two methods are equal, 2.5 % of the differences are
# larger than this many standard errors.
STUDENT = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
MANY = 2.2
# Accuracies are shares of examples in float64; closer than this, they are equal.
ROUNDING = 1e-9


@dataclass(frozen=True)
class MajorityClass:
    """The baseline without a model: always predict the other domains' most frequent class.

    Args:
        row: its accuracies.
        gain: the deployed method minus this baseline; None on one domain.
        beaten: whether the gain is larger than its error.
    """

    row: MethodRow
    gain: Comparison | None
    beaten: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Accuracies of all methods on unseen domains, and the method to deploy.

    Args:
        comparisons: each method minus ERM.
        inside: accuracy on held-out examples of the training domains, by method; None if there
            are too few.
        deploy: the chosen method.
        sure: "clear", "likely", "undecided" or "untested".
        sentences: the verdict in words.
    """

    rows: tuple[MethodRow, ...]
    comparisons: dict[str, Comparison]
    inside: dict[str, float | None]
    majority: MajorityClass
    deploy: str
    sure: str
    sentences: tuple[str, ...]
    trials: int

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return {
            "deploy": self.deploy,
            "sure": self.sure,
            "sentences": list(self.sentences),
            "trials": self.trials,
            "methods": {
                row.algorithm: {
                    **_cells(row),
                    "calibration_error": _plain(row.calibration_error),
                    "inside": self.inside[row.algorithm],
                }
                for row in self.rows
            },
            "differences": {name: asdict(one) for name, one in self.comparisons.items()},
            "most_frequent_class": {
                **_cells(self.majority.row),
                "gain": _plain(self.majority.gain),
                "beaten": self.majority.beaten,
            },
        }


def _cells(row: MethodRow) -> dict[str, Any]:
    return {
        "domains": {name: asdict(cell) for name, cell in row.domains.items()},
        "average": _plain(row.average),
        "worst": _plain(row.worst),
    }


def _plain(one: TrialMean | Comparison | None) -> dict[str, Any] | None:
    return None if one is None else asdict(one)


def decide(runs: Sequence[RunResult], dataset: DomainDataset, holdout: float) -> Verdict:
    """Return the verdict from leave-one-domain-out runs, after their last update.

    Args:
        holdout: the share of each domain that the runs held out.
    """
    # With one draw there is nothing to select: this rule reads the last record.
    choices = [_on_whole_domain(one, dataset, holdout) for one in choose_runs(runs, "test-domain")]
    domains = [name for name in dataset.names if any(c.test_domain == name for c in choices)]
    rows = tuple(rows_of(choices, {dataset.name: domains}))
    comparisons = _compare_with_erm(choices, [row.algorithm for row in rows])
    inside = {
        row.algorithm: _inside([c for c in choices if c.algorithm == row.algorithm]) for row in rows
    }
    deploy, sure = _choose(rows, comparisons)
    trials = len({choice.trial for choice in choices})
    share = f"{len(domains)} of {len(dataset.names)}" if len(domains) < len(dataset.names) else ""
    measured = f"{share or len(domains)} domains held out, {trials} split{'s' * (trials > 1)}"
    deployed = [one for one in choices if one.algorithm == deploy]
    majority = _majority_class(deployed, dataset, domains)
    return Verdict(
        rows=rows,
        comparisons=comparisons,
        inside=inside,
        majority=majority,
        deploy=deploy,
        sure=sure,
        sentences=_sentences(deploy, sure, comparisons, rows, majority, measured),
        trials=trials,
    )


def average_and_worst(
    row: MethodRow, domains: Sequence[str]
) -> tuple[TrialMean | None, TrialMean | None]:
    """Return a row's average and worst accuracy, to be shown.

    If the time ended within a split, ``row.average`` is None. Then take the average and the minimum
    of the domains' means, without an error; None if a domain is missing altogether.
    """
    if row.average is not None or set(row.domains) != set(domains):
        return row.average, row.worst
    means = [cell.mean for cell in row.domains.values()]
    return TrialMean.of([fmean(means)]), TrialMean.of([min(means)])


def _compare_with_erm(choices: Sequence[Choice], names: Sequence[str]) -> dict[str, Comparison]:
    """Return each method minus ERM, on the trials that both have; a pair is a domain."""
    found = {}
    for name in names:
        with suppress(ValueError):  # they share fewer than two domains
            if name != BASELINE:
                found[name] = compare_over_domains(choices, name, BASELINE)
    return found


def _mean(
    choices: Sequence[Choice], algorithm: str, domain: str, places: Collection[tuple[str, int]]
) -> Choice:
    """Return a choice with the mean accuracy of a method's choices on a domain."""
    mine = [
        one
        for one in choices
        if one.algorithm == algorithm
        and one.test_domain == domain
        and (domain, one.trial) in places
    ]
    first = mine[0]
    run = replace(first.run, trial=0)
    return replace(first, run=run, accuracy=fmean(one.accuracy for one in mine))


def _majority_class(
    deployed: Sequence[Choice], dataset: DomainDataset, domains: Sequence[str]
) -> MajorityClass:
    """Return the baseline on each held-out domain, compared with the deployed method's choices.

    A pair is a domain, as in ``_compare_with_erm``.
    """
    accuracy = {name: _majority_accuracy(dataset, name) for name in domains}
    cells = {name: TrialMean.of([value]) for name, value in accuracy.items()}
    average = TrialMean.of([fmean(accuracy.values())])
    worst = TrialMean.of([min(accuracy.values())])
    row = MethodRow(
        dataset=dataset.name, algorithm=MAJORITY, domains=cells, average=average, worst=worst
    )
    name = deployed[0].algorithm
    places = {(one.test_domain, one.trial) for one in deployed}
    means = [_mean(deployed, name, domain, places) for domain in sorted({d for d, _ in places})]
    baseline = [
        replace(m, run=replace(m.run, algorithm=MAJORITY), accuracy=accuracy[m.test_domain])
        for m in means
    ]
    if len(means) < 2:
        return MajorityClass(row, None, means[0].accuracy - baseline[0].accuracy > ROUNDING)
    gain = compare([*means, *baseline], name, MAJORITY)
    return MajorityClass(row, gain, gain.difference - gain.error > ROUNDING)


def _majority_accuracy(dataset: DomainDataset, domain: str) -> float:
    """Return the share of a domain that belongs to the most frequent class of the others."""
    others = torch.cat([one.labels for one in dataset.domains if one.name != domain])
    return float((dataset[domain].labels == others.bincount().argmax()).double().mean())


def _on_whole_domain(choice: Choice, dataset: DomainDataset, holdout: float) -> Choice:
    """Return the choice with the accuracy on all examples of its test domain."""
    name = choice.test_domain
    parts = splits(dataset, choice.trial, holdout)[name]
    measured = next(one for one in choice.run.records if one.step == choice.step)
    sizes = {KEPT: len(parts.kept), HELD_OUT: len(parts.held_out)}
    right = sum(n * measured.of(name, split) for split, n in sizes.items() if n)
    return replace(choice, accuracy=right / sum(sizes.values()))


def _inside(choices: Sequence[Choice]) -> float | None:
    """Return the mean accuracy on held-out examples of the training domains."""
    found = []
    for choice in choices:
        measured = next(one for one in choice.run.records if one.step == choice.step)
        found += [
            splits[HELD_OUT]
            for name, splits in measured.accuracy.items()
            if name != choice.test_domain and HELD_OUT in splits
        ]
    known = [value for value in found if not math.isnan(value)]
    return fmean(known) if known else None


def _choose(rows: Sequence[MethodRow], comparisons: dict[str, Comparison]) -> tuple[str, str]:
    """Return the method to deploy and how sure that is; ERM if no method is reliably better."""
    known = {row.algorithm for row in rows}
    if BASELINE not in known or not comparisons:
        best = max(rows, key=lambda row: fmean(cell.mean for cell in row.domains.values()))
        return best.algorithm, "untested"
    better = {name: one for name, one in comparisons.items() if one.difference > one.error}
    if not better:
        return BASELINE, "undecided"
    name = max(better, key=lambda one: better[one].difference)
    limit = STUDENT.get(better[name].pairs, MANY) * better[name].error
    return name, "clear" if better[name].difference > limit else "likely"


def _sentences(
    deploy: str,
    sure: str,
    comparisons: dict[str, Comparison],
    rows: Sequence[MethodRow],
    majority: MajorityClass,
    measured: str,
) -> tuple[str, ...]:
    row = next(row for row in rows if row.algorithm == deploy)
    baseline, title = title_of(BASELINE), title_of(deploy)
    found = [f"Deploy {title}."] if majority.beaten else _useless(row, majority)
    if sure == "untested":
        found.append(f"{title} was not compared with {baseline} ({measured}).")
    elif sure == "undecided":
        found.append(
            f"No method is reliably better than plain training ({baseline}), so we keep {baseline} "
            f"({measured})."
        )
    else:
        one = comparisons[deploy]
        strength = "clearly" if sure == "clear" else "probably, but not certainly,"
        found.append(
            f"{title} is {strength} better than {baseline}: {_points(one)}, better on {one.wins} "
            f"of {one.pairs} domains ({measured})."
        )
    found += [
        f"{title_of(name)} compared with {baseline}: {_points(one)}, better on {one.wins} of "
        f"{one.pairs} domains."
        for name, one in comparisons.items()
        if name != deploy
    ]
    if majority.beaten:
        found.append(_expected(row))
        found.append(
            "For comparison: always predicting the other domains' most common class scores "
            f"{_majority_score(row, majority)}."
        )
    if len(comparisons) > 1 and sure in ("clear", "likely"):
        found.append(
            f"Picking the best of {len(comparisons)} methods makes its score slightly optimistic."
        )
    return tuple(found)


def _expected(row: MethodRow) -> str:
    """Return the sentence on the accuracy to expect, from a method's accuracy on each domain."""
    means = {name: cell.mean for name, cell in row.domains.items()}
    lowest = min(means, key=means.__getitem__)
    low, high = f"{100 * means[lowest]:.0f}", f"{100 * max(means.values()):.0f}"
    tested = f"tested only on {lowest!r}"
    if len(means) > 1:
        span = low if low == high else f"{low}–{high}"
        tested = f"{span} % across the {len(means)} tested, lowest on {lowest!r}"
    average = fmean(means.values())
    return f"Expected accuracy on a new domain: about {100 * average:.0f} % ({tested})."


def _useless(row: MethodRow, majority: MajorityClass) -> list[str]:
    """Return the sentences that replace a recommendation."""
    title, mean = title_of(row.algorithm), fmean(cell.mean for cell in row.domains.values())
    gain = f" ({_points(majority.gain)})" if majority.gain else ""
    return [
        "Nothing useful was learned for an unseen domain.",
        f"{title} scores {100 * mean:.1f} % there, but always predicting the other domains' most "
        f"common class scores {_majority_score(row, majority)}{gain}. Check the labels and the "
        "layout (--layout for folders, --class-column and --domain-column for a table); with few "
        "examples, fewer updates (--steps) may do better.",
        f"Deploy none of these models; the one that was written is {title}'s.",
    ]


def _majority_score(row: MethodRow, majority: MajorityClass) -> str:
    """Return the baseline's accuracy on the domains of a method's row."""
    return f"{100 * fmean(majority.row.domains[name].mean for name in row.domains):.1f} %"


def _points(one: Comparison) -> str:
    return f"{100 * one.difference:+z.1f} ± {100 * one.error:.1f} points"
