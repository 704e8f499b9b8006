"""Soups: averages and ensembles of the runs of a sweep, beside one run, and what a start costs.

Reads sweeps that ``shoal soup`` has measured, one for each method. A row is a model; its numbers
are means over test domains. Beside them stand the runs of ``--beside``: the same method, length and
hyperparameters, started with a random head. Draw 0 of a sweep has these hyperparameters, too, so
the two starts are compared in pairs of one test domain.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from shoal.documents import read_json
from shoal.results.averages import with_averages
from shoal.results.records import RunResult, read_runs
from shoal.results.soups import BEST, ENSEMBLE, GREEDY, MEAN, UNIFORM, Soup

from .recording import options, write

KINDS = {
    MEAN: "mean of the members",
    BEST: "best member by validation",
    UNIFORM: "uniform soup",
    GREEDY: "greedy soup",
    ENSEMBLE: "ensemble",
}
WEIGHTS = {"": "last", "sma": "SMA", "half": "second half"}
# Accuracy and calibration error in %, by test domain.
Scores = Mapping[str, tuple[float, float]]


def soups_of(folder: Path) -> list[Soup]:
    """Return what ``shoal soup`` measured of a sweep."""
    groups = read_json(folder / "soups" / "soups.json")["groups"]
    return [Soup.from_json(group) for group in groups.values()]


def soup_scores(soups: Sequence[Soup], of: str) -> dict[str, Scores]:
    """Return the scores of each kind of model made of these weights, and of the interpolation."""
    asked = [soup for soup in soups if soup.of == of]
    found: dict[str, Scores] = {}
    for kind, name in KINDS.items():
        rows = {soup.test_domain: soup.of_kind(kind)[0] for soup in asked}
        found[name] = {
            domain: (100 * row.test, 100 * row.calibration_error) for domain, row in rows.items()
        }
    chosen = {soup.test_domain: soup.chosen for soup in asked}
    found["interpolated with the start, α by validation"] = {
        domain: (100 * row.test, 100 * row.calibration_error)
        for domain, row in chosen.items()
        if row is not None
    }
    return found


def run_scores(runs: Sequence[RunResult]) -> dict[str, Scores]:
    """Return the scores of draw 0 and trial 0 after the last update, by kind of weights."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for run in with_averages(runs):
        name = WEIGHTS.get(run.algorithm.partition("+")[2])
        if name is None or run.draw or run.trial:
            continue
        domain = run.test_domains[0]
        error = run.last.calibration_error[domain]["kept"]
        found.setdefault(name, {})[domain] = (100 * run.last.of(domain, "kept"), 100 * error)
    return dict(found)


def row_of(name: str, scores: Scores) -> dict[str, Any]:
    """Return the means of a model over its test domains."""
    return {
        "model": name,
        "accuracy": round(fmean(accuracy for accuracy, _ in scores.values()), 2),
        "calibration_error": round(fmean(error for _, error in scores.values()), 2),
        "domains": {domain: round(scores[domain][0], 2) for domain in sorted(scores)},
    }


def difference(one: Scores, other: Scores) -> dict[str, float]:
    """Return the accuracy of a model minus another's, with the standard error over domains."""
    gaps = [one[domain][0] - other[domain][0] for domain in sorted(one.keys() & other.keys())]
    return {
        "difference": round(fmean(gaps), 2),
        "error": round(stdev(gaps) / math.sqrt(len(gaps)), 2),
        "domains": len(gaps),
    }


def numbers_of(sweep: Path, beside: Path) -> dict[str, Any]:
    """Return the rows of a method, and what its start from a linear probe costs."""
    soups, members, others = soups_of(sweep), read_runs([sweep]), read_runs([beside])
    models = soup_scores(soups, "best")
    averages = soup_scores(soups, "sma")
    probe, network = run_scores(members), run_scores(others)
    mean = models[KINDS[MEAN]]
    return {
        "method": members[0].algorithm,
        "members": len({run.draw for run in members}),
        "updates": members[0].protocol["steps"],
        "rows": [
            *({**row_of(name, found), "minus_mean": difference(found, mean)}
              for name, found in models.items()),
            row_of("ensemble of SMA (EoA)", averages[KINDS[ENSEMBLE]]),
            *(row_of(f"one run, {name}", found) for name, found in probe.items()),
            *(row_of(f"one run from a random head, {name}", found)
              for name, found in network.items()),
        ],
        "probe_minus_random_head": {
            name: difference(found, network[name]) for name, found in probe.items()
        },
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--work", type=Path, nargs="+", required=True, help="sweeps that shoal soup has measured"
    )
    parser.add_argument(
        "--beside",
        type=Path,
        nargs="+",
        required=True,
        help="for each of them a sweep of the same runs from a random head",
    )
    asked = parser.parse_args()
    methods = [numbers_of(*pair) for pair in zip(asked.work, asked.beside, strict=True)]
    for method in methods:
        print(f"{method['method']}, {method['members']} members, {method['updates']:,} updates")
        for row in method["rows"]:
            print(
                f"  {row['model']:46s} {row['accuracy']:5.1f}  "
                f"calibration {row['calibration_error']:4.1f}"
            )
        for name, gap in method["probe_minus_random_head"].items():
            gain = f"{gap['difference']:+.1f} ± {gap['error']:.1f}"
            print(f"  probe minus random head, {name:20s} {gain}")
    print(write("soups", asked, {"methods": methods}))


if __name__ == "__main__":
    main()
