"""Which method to deploy, and how sure that is: from runs that left each domain out in turn."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from ..datasets import DomainDataset, splits
from ..protocol.aggregation import Comparison, Row, compare, rows_of
from ..protocol.records import HELD_OUT, KEPT, Finished
from ..protocol.selection import Choice, choose_runs

BASELINE = "erm"
# Student's t: beyond so many standard errors are 2.5 % of differences of nothing, by the pairs.
STUDENT = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
MANY = 2.2


@dataclass(frozen=True)
class Verdict:
    """Estimates of all methods, how each compares to ERM, and what follows.

    ``inside`` is the accuracy on held-out examples of the domains that were trained on, by method;
    ``sure`` is "clear", "likely", "undecided" or "untested".
    """

    rows: tuple[Row, ...]
    comparisons: dict[str, Comparison]
    inside: dict[str, float]
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
                    "domains": {name: asdict(cell) for name, cell in row.domains.items()},
                    "average": asdict(row.average) if row.average else None,
                    "worst": asdict(row.worst) if row.worst else None,
                    "calibration_error": (
                        asdict(row.calibration_error) if row.calibration_error else None
                    ),
                    "inside": self.inside[row.algorithm],
                }
                for row in self.rows
            },
            "differences": {name: asdict(one) for name, one in self.comparisons.items()},
        }


def verdict_of(runs: Sequence[Finished], dataset: DomainDataset, holdout: float) -> Verdict:
    """Return what runs with one domain left out say, after their last update."""
    # With one draw there is nothing to select: this rule reads the last record.
    choices = [_whole(one, dataset, holdout) for one in choose_runs(runs, "test-domain")]
    domains = [name for name in dataset.names if any(c.test_domain == name for c in choices)]
    rows = tuple(rows_of(choices, {dataset.name: domains}))
    places = {row.algorithm: _places(choices, row.algorithm) for row in rows}
    compared = {
        name: compare(choices, name, BASELINE)
        for name, mine in places.items()
        if name != BASELINE and len(mine & places.get(BASELINE, set())) > 1
    }
    inside = {
        row.algorithm: fmean(_inside(c) for c in choices if c.algorithm == row.algorithm)
        for row in rows
    }
    deploy, sure = _decided(rows, compared)
    trials = len({choice.trial for choice in choices})
    sentences = _sentences(deploy, sure, compared, rows, trials, len(domains))
    return Verdict(rows, compared, inside, deploy, sure, sentences, trials)


def _places(choices: Sequence[Choice], algorithm: str) -> set[tuple[str, int]]:
    return {(one.test_domain, one.trial) for one in choices if one.algorithm == algorithm}


def _whole(choice: Choice, dataset: DomainDataset, holdout: float) -> Choice:
    """Return the choice with the accuracy on all examples of its test domain."""
    name = choice.test_domain
    parts = splits(dataset, choice.trial, holdout)[name]
    measured = next(one for one in choice.run.measured if one.step == choice.step)
    sizes = {KEPT: len(parts.kept), HELD_OUT: len(parts.held_out)}
    right = sum(n * measured.of(name, split) for split, n in sizes.items() if n)
    return replace(choice, accuracy=right / sum(sizes.values()))


def _inside(choice: Choice) -> float:
    measured = next(one for one in choice.run.measured if one.step == choice.step)
    found = [
        splits[HELD_OUT]
        for name, splits in measured.accuracy.items()
        if name != choice.test_domain and HELD_OUT in splits
    ]
    return fmean(found) if found else float("nan")


def _decided(rows: Sequence[Row], compared: dict[str, Comparison]) -> tuple[str, str]:
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
    rows: Sequence[Row],
    trials: int,
    domains: int,
) -> tuple[str, ...]:
    measured = f"{domains} domains left out, {trials} trial{'s' if trials > 1 else ''}"
    row = next(row for row in rows if row.algorithm == deploy)
    mean = fmean(cell.mean for cell in row.domains.values())
    low = min(row.domains, key=lambda name: row.domains[name].mean)
    found = [f"Deploy {deploy}."]
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
            f"It is {strength}: {_points(one)} over {BASELINE}, in {one.wins} of {one.pairs} "
            f"comparisons ({measured})."
        )
    found += [
        f"{name}: {_points(one)} against {BASELINE}, better in {one.wins} of {one.pairs}."
        for name, one in compared.items()
        if name != deploy
    ]
    found.append(
        f"On a domain like these that it never saw, expect about {100 * mean:.1f} % right; it was "
        f"{100 * row.domains[low].mean:.1f} % on the hardest, {low!r}."
    )
    if len(compared) > 1 and sure in ("clear", "likely"):
        found.append(f"The best of {len(compared)} methods looks a little better than it is.")
    return tuple(found)


def _points(one: Comparison) -> str:
    return f"{100 * one.difference:+.1f} ± {100 * one.error:.1f} points"
