"""Which method to deploy, and how sure that is: from runs that left each domain out in turn."""

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch

from ..datasets import DomainDataset, splits
from ..results.aggregation import Comparison, MethodRow, TrialMean, compare, rows_of
from ..results.records import HELD_OUT, KEPT, RunResult
from ..results.selection import Choice, choose_runs

BASELINE = "erm"
GUESS = "most frequent class"
# Student's t: beyond so many standard errors are 2.5 % of differences of nothing, by the domains.
STUDENT = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
MANY = 2.2
# Accuracies are shares of examples in float64: what is nearer than this is equal.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Guess:
    """What always saying the most frequent class of the other domains gives, without any model.

    ``gain`` is how much better the deployed method is, None on one domain; ``beaten`` is whether
    that is more than its error.
    """

    row: MethodRow
    gain: Comparison | None
    beaten: bool


@dataclass(frozen=True)
class Verdict:
    """Estimates of all methods, how each compares to ERM, and what follows.

    ``inside`` is the accuracy on held-out examples of the domains that were trained on, by method,
    None where there are too few; ``sure`` is "clear", "likely", "undecided" or "untested".
    """

    rows: tuple[MethodRow, ...]
    comparisons: dict[str, Comparison]
    inside: dict[str, float | None]
    guess: Guess
    deploy: str
    sure: str
    sentences: tuple[str, ...]
    trials: int

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
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
                **_cells(self.guess.row),
                "gain": _plain(self.guess.gain),
                "beaten": self.guess.beaten,
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


def verdict_of(runs: Sequence[RunResult], dataset: DomainDataset, holdout: float) -> Verdict:
    """Return what runs with one domain left out say, after their last update."""
    # With one draw there is nothing to select: this rule reads the last record.
    choices = [_whole(one, dataset, holdout) for one in choose_runs(runs, "test-domain")]
    domains = [name for name in dataset.names if any(c.test_domain == name for c in choices)]
    rows = tuple(rows_of(choices, {dataset.name: domains}))
    compared = _compared(choices, [row.algorithm for row in rows])
    inside = {
        row.algorithm: _inside([c for c in choices if c.algorithm == row.algorithm]) for row in rows
    }
    deploy, sure = _decided(rows, compared)
    trials = len({choice.trial for choice in choices})
    share = f"{len(domains)} of {len(dataset.names)}" if len(domains) < len(dataset.names) else ""
    measured = f"{share or len(domains)} domains left out, {trials} trial{'s' * (trials > 1)}"
    guess = _guess([one for one in choices if one.algorithm == deploy], dataset, domains)
    sentences = _sentences(deploy, sure, compared, rows, guess, measured)
    return Verdict(rows, compared, inside, guess, deploy, sure, sentences, trials)


def _compared(choices: Sequence[Choice], names: Sequence[str]) -> dict[str, Comparison]:
    """Return how each method compares to ERM, on the trials that both have; a pair is a domain.

    Trials of one domain are no new domains: to count them as such would be surer than one can be.
    """
    places = {
        name: {(one.test_domain, one.trial) for one in choices if one.algorithm == name}
        for name in (*names, BASELINE)
    }
    found = {}
    for name in names:
        both = places[name] & places[BASELINE]
        domains = sorted({domain for domain, _ in both})
        means = [
            _mean(choices, one, domain, both) for one in (name, BASELINE) for domain in domains
        ]
        if name != BASELINE and len(domains) > 1:
            found[name] = compare(means, name, BASELINE)
    return found


def _mean(
    choices: Sequence[Choice], algorithm: str, domain: str, places: Collection[tuple[str, int]]
) -> Choice:
    """Return a choice with the mean accuracy of those of a method on a domain."""
    mine = [
        one
        for one in choices
        if one.algorithm == algorithm
        and one.test_domain == domain
        and (domain, one.trial) in places
    ]
    return replace(mine[0], trial=0, accuracy=fmean(one.accuracy for one in mine))


def _guess(deployed: Sequence[Choice], dataset: DomainDataset, domains: Sequence[str]) -> Guess:
    """Return the guess on each domain left out, compared with the choices of the deployed method.

    A pair is a domain, as in ``_compared``.
    """
    accuracy = {name: _guessed(dataset, name) for name in domains}
    cells = {name: TrialMean.of([value]) for name, value in accuracy.items()}
    average, worst = (
        TrialMean.of([fmean(accuracy.values())]),
        TrialMean.of([min(accuracy.values())]),
    )
    row = MethodRow(dataset.name, GUESS, cells, average, worst, None)
    name = deployed[0].algorithm
    places = {(one.test_domain, one.trial) for one in deployed}
    means = [_mean(deployed, name, domain, places) for domain in sorted({d for d, _ in places})]
    guesses = [replace(m, algorithm=GUESS, accuracy=accuracy[m.test_domain]) for m in means]
    if len(means) < 2:
        return Guess(row, None, means[0].accuracy - guesses[0].accuracy > ROUNDING)
    gain = compare([*means, *guesses], name, GUESS)
    return Guess(row, gain, gain.difference - gain.error > ROUNDING)


def _guessed(dataset: DomainDataset, domain: str) -> float:
    """Return the share of a domain that is of the most frequent class of the others."""
    others = torch.cat([one.labels for one in dataset.domains if one.name != domain])
    return float((dataset[domain].labels == others.bincount().argmax()).double().mean())


def _whole(choice: Choice, dataset: DomainDataset, holdout: float) -> Choice:
    """Return the choice with the accuracy on all examples of its test domain."""
    name = choice.test_domain
    parts = splits(dataset, choice.trial, holdout)[name]
    measured = next(one for one in choice.run.measured if one.step == choice.step)
    sizes = {KEPT: len(parts.kept), HELD_OUT: len(parts.held_out)}
    right = sum(n * measured.of(name, split) for split, n in sizes.items() if n)
    return replace(choice, accuracy=right / sum(sizes.values()))


def _inside(choices: Sequence[Choice]) -> float | None:
    found = []
    for choice in choices:
        measured = next(one for one in choice.run.measured if one.step == choice.step)
        found += [
            splits[HELD_OUT]
            for name, splits in measured.accuracy.items()
            if name != choice.test_domain and HELD_OUT in splits
        ]
    known = [value for value in found if not math.isnan(value)]
    return fmean(known) if known else None


def _decided(rows: Sequence[MethodRow], compared: dict[str, Comparison]) -> tuple[str, str]:
    """Return what to deploy and how sure that is; ERM, where no method is better for certain."""
    known = {row.algorithm for row in rows}
    if BASELINE not in known or not compared:
        best = max(rows, key=lambda row: fmean(cell.mean for cell in row.domains.values()))
        return best.algorithm, "untested"
    better = {name: one for name, one in compared.items() if one.difference > one.error}
    if not better:
        return BASELINE, "undecided"
    name = max(better, key=lambda one: better[one].difference)
    limit = STUDENT.get(better[name].pairs, MANY) * better[name].error
    return name, "clear" if better[name].difference > limit else "likely"


def _sentences(
    deploy: str,
    sure: str,
    compared: dict[str, Comparison],
    rows: Sequence[MethodRow],
    guess: Guess,
    measured: str,
) -> tuple[str, ...]:
    row = next(row for row in rows if row.algorithm == deploy)
    mean = fmean(cell.mean for cell in row.domains.values())
    low = min(row.domains, key=lambda name: row.domains[name].mean)
    found = [f"Deploy {deploy}."] if guess.beaten else _useless(row, mean, guess)
    if sure == "untested":
        found.append(f"It was not compared with {BASELINE}: {measured}.")
    elif sure == "undecided":
        found.append(
            f"No method beats {BASELINE} by more than its error, so the simplest one is as good "
            f"({measured})."
        )
    else:
        one = compared[deploy]
        strength = "clearly better" if sure == "clear" else "probably better, not certainly"
        found.append(
            f"It is {strength}: {_points(one)} over {BASELINE}, on {one.wins} of {one.pairs} "
            f"domains ({measured})."
        )
    found += [
        f"{name}: {_points(one)} against {BASELINE}, better on {one.wins} of {one.pairs} domains."
        for name, one in compared.items()
        if name != deploy
    ]
    if guess.beaten:
        found.append(
            f"On a domain like these that it never saw, expect about {100 * mean:.1f} % right; it "
            f"was {100 * row.domains[low].mean:.1f} % on the hardest, {low!r}."
        )
        found.append(
            f"Always saying the most frequent class of the other domains is {_right(row, guess)}."
        )
    if len(compared) > 1 and sure in ("clear", "likely"):
        found.append(f"The best of {len(compared)} methods looks a little better than it is.")
    return tuple(found)


def _useless(row: MethodRow, mean: float, guess: Guess) -> list[str]:
    """Return what to say in place of a recommendation."""
    gain = f" ({_points(guess.gain)})" if guess.gain else ""
    return [
        "Nothing useful was learned for an unseen domain.",
        f"{row.algorithm} is {100 * mean:.1f} % right there, and always saying the most frequent "
        f"class of the other domains is {_right(row, guess)}{gain}. Check the labels and the "
        "layout (--layout for folders, --class-column and --domain-column for a table); where "
        "there are few examples, fewer updates may do better (--steps).",
        f"Deploy none of these models; the one that was written is of {row.algorithm}.",
    ]


def _right(row: MethodRow, guess: Guess) -> str:
    """Return how often the guess is right, on the domains of a method's row."""
    return f"{100 * fmean(guess.row.domains[name].mean for name in row.domains):.1f} % right"


def _points(one: Comparison) -> str:
    return f"{100 * one.difference:+z.1f} ± {100 * one.error:.1f} points"
