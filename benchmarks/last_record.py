"""Luck of the last record: how much test-domain selection depends on where a training ends.

DomainBed's rule reads the last record of every draw. If accuracies move by tens of points between
records, the best of many draws is a matter of luck. Here every training ends instead at one of its
late records, drawn at random for each run. The rule then chooses as usual, and a cell is the mean
over trials. The spread of such cells is what another sweep with the same draws could find.

A network whose risk is that of guessing can be right on the test domain by chance at that update,
and wrong on its training domains. So each cell is reported with the models that were chosen, their
accuracy on the training domains, and the cell of those that are accurate enough there.
"""

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean, quantiles, stdev
from typing import Any

from shoal.results.records import HELD_OUT, Record, RunResult, read_runs
from shoal.results.selection import TEST_DOMAIN, choose_runs

from .recording import options, write

# Updates after the start of a penalty in which a training is unsettled, so that it cannot end.
SETTLING = 100


def late(run: RunResult, after: int) -> list[Record]:
    """Return the records at which the training could have ended, including the last."""
    acts = run.hparams.get("warmup_steps")
    never = acts is None or acts >= run.last.step
    begin = after if never else max(after, acts + SETTLING)
    return [each for each in run.records if each.step >= begin] or [run.last]


def cell(runs: list[RunResult]) -> float:
    """Return the accuracy selected on the test domain, mean over trials, in %."""
    return 100 * fmean(choice.accuracy for choice in choose_runs(runs, TEST_DOMAIN))


def drawn_cells(runs: list[RunResult], after: int, times: int, random: Random) -> list[float]:
    """Return the cells of ``times`` random draws of where each training ends."""
    ends = [(run, late(run, after)) for run in runs]
    return [
        cell([replace(run, records=(random.choice(mine),)) for run, mine in ends])
        for _ in range(times)
    ]


def chosen(runs: list[RunResult]) -> list[dict[str, Any]]:
    """Return the accuracy that the rule chooses in each trial after the last update, in %."""
    return [
        {
            "trial": choice.trial,
            "draw": choice.draw,
            "accuracy": round(100 * choice.accuracy, 1),
            "on_training_domains": round(100 * choice.inside, 1),
        }
        for choice in sorted(choose_runs(runs, TEST_DOMAIN), key=lambda choice: choice.trial)
    ]


def unrest(run: RunResult, after: int) -> float:
    """Return the deviation of the accuracy on the test domain over late records, in points."""
    return 100 * stdev(one.of(run.test_domains[0], HELD_OUT) for one in late(run, after))


def beside(runs: list[RunResult], others: list[RunResult], after: int) -> dict[str, Any] | None:
    """Return the differences between the same draws of two sweeps, and how much each fluctuates.

    None if fewer than two draws are in both.
    """
    theirs = {run.identity: run for run in others}
    pairs = [(run, theirs[run.identity]) for run in runs if run.identity in theirs]
    if len(pairs) < 2:
        return None
    gaps = [100 * (other.last_accuracy - run.last_accuracy) for run, other in pairs]
    moving = [pair for pair in pairs if all(len(late(run, after)) > 1 for run in pair)]
    return {
        "draws": len(pairs),
        "theirs_less_ours": round(fmean(gaps), 1),
        "error": round(stdev(gaps) / math.sqrt(len(gaps)), 1),
        "unrest": round(fmean(unrest(run, after) for run, _ in moving), 1),
        "their_unrest": round(fmean(unrest(other, after) for _, other in moving), 1),
        "they_choose": chosen([other for _, other in pairs]),
    }


def row(
    method: str, domain: str, at_the_end: float, trained: float, cells: list[float]
) -> dict[str, Any]:
    cuts = quantiles(cells, n=20)
    return {
        "method": method,
        "test_domain": domain,
        "at_the_end": round(at_the_end, 1),
        "of_trained": round(trained, 1),
        "mean": round(fmean(cells), 1),
        "deviation": round(stdev(cells), 1),
        "from_5_to_95_percent": [round(cuts[0], 1), round(cuts[-1], 1)],
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--work", type=Path, required=True, help="folder of the sweep")
    parser.add_argument(
        "--beside", type=Path, help="folder of another sweep with the same draws, to compare with"
    )
    parser.add_argument("--methods", nargs="+", required=True)
    parser.add_argument(
        "--after",
        type=int,
        default=4001,
        help="first step of the late records (default: %(default)s)",
    )
    parser.add_argument(
        "--times",
        type=int,
        default=1000,
        help="number of random draws of all ends (default: %(default)s)",
    )
    parser.add_argument(
        "--trained",
        type=float,
        default=50,
        help="accuracy in %% on the training domains from which a network counts as trained",
    )
    asked = parser.parse_args()
    found: dict[str, dict[str, list[RunResult]]] = {
        method: defaultdict(list) for method in asked.methods
    }
    for run in read_runs([asked.work]):
        if run.algorithm in found:
            found[run.algorithm][run.test_domains[0]].append(run)
    others = list(read_runs([asked.beside])) if asked.beside else []
    rows = []
    for method, domains in found.items():
        ended = {domain: cell(runs) for domain, runs in domains.items()}
        drawn = {
            domain: drawn_cells(runs, asked.after, asked.times, Random(f"{method} {domain}"))
            for domain, runs in domains.items()
        }
        trained = {
            domain: cell([run for run in runs if 100 * run.last_inside >= asked.trained])
            for domain, runs in domains.items()
        }
        rows += [
            row(method, domain, ended[domain], trained[domain], drawn[domain])
            | {"chosen": chosen(domains[domain])}
            | {"beside": beside(domains[domain], others, asked.after)}
            for domain in sorted(domains)
        ]
        averages = [fmean(cells) for cells in zip(*drawn.values(), strict=True)]
        rows.append(
            row(method, "average", fmean(ended.values()), fmean(trained.values()), averages)
        )
    for one in rows:
        print(*one.values())
    print(write(f"last_record_{asked.work.name}", asked, {"rows": rows}))


if __name__ == "__main__":
    main()
