"""Two methods of a sweep over the whole training, so that no single record decides.

Selection reads one record of a run, and on images neighbouring records differ by points. For pairs
of runs that differ only in the method this reports the mean accuracy on the test domain at every
record, the difference of the means of all late records, and their spread. ``--figure`` draws the
same by test domain.
"""

import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from shoal.report.figures import canvas, look_of, render
from shoal.results.records import RunResult, read_runs

from .recording import options, write


def accuracies(run: RunResult) -> dict[int, float]:
    """Return the accuracy in % on the kept split of the test domain, by step."""
    return {each.step: 100 * each.of(run.test_domains[0], "kept") for each in run.records}


def draw(pairs: dict[Any, dict[str, dict[int, float]]], methods: list[str], path: Path) -> None:
    """Draw mean, smallest and largest accuracy over training, one panel for each test domain."""
    domains = sorted({tests[0] for _, tests, _, _ in pairs})
    with canvas(1, len(domains), width=2.4, height=2.7) as (figure, axes):
        for axis, domain in zip(axes[0], domains, strict=True):
            for number, method in enumerate(methods):
                mine = [runs[method] for place, runs in pairs.items() if place[1][0] == domain]
                steps = sorted(mine[0])[1:]  # before the first update all runs are equal
                by_step = [[run[step] for run in mine] for step in steps]
                look = look_of(number)
                low, high = list(map(min, by_step)), list(map(max, by_step))
                axis.fill_between(steps, low, high, color=look.colour, alpha=0.15, linewidth=0)
                axis.plot(steps, list(map(fmean, by_step)), label=method, **look.line)
            axis.set(title=domain, xlabel="updates")
        axes[0][0].set_ylabel("accuracy in %")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    for ending, content in render(figure).items():
        path.with_suffix(f".{ending}").write_bytes(content)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--work", type=Path, required=True, help="folder of the sweep")
    parser.add_argument("--methods", nargs=2, default=["fishr", "erm"])
    parser.add_argument(
        "--after",
        type=int,
        default=2100,
        help="first step of the late records (default: %(default)s)",
    )
    parser.add_argument(
        "--figure", type=Path, help="path of a figure without suffix, written as .png and .pdf"
    )
    asked = parser.parse_args()
    found: dict[Any, dict[str, dict[int, float]]] = defaultdict(dict)
    for run in read_runs([asked.work]):
        found[run.dataset, run.test_domains, run.trial, run.draw][run.algorithm] = accuracies(run)
    one, other = asked.methods
    paired = {place: runs for place, runs in found.items() if one in runs and other in runs}
    pairs = list(paired.values())
    late = {
        method: [[a for step, a in runs[method].items() if step >= asked.after] for runs in pairs]
        for method in asked.methods
    }
    gaps = [fmean(a) - fmean(b) for a, b in zip(late[one], late[other], strict=True)]
    numbers = {
        "pairs": len(pairs),
        "late_records": {
            method: {
                "mean": round(fmean(map(fmean, runs)), 2),
                "deviation_within_a_run": round(fmean(map(stdev, runs)), 2),
            }
            for method, runs in late.items()
        },
        "difference": round(fmean(gaps), 2),
        "error": round(stdev(gaps) / math.sqrt(len(gaps)), 2),
        "won": sum(gap > 0 for gap in gaps),
        "by_step": {
            step: {m: round(fmean(runs[m][step] for runs in pairs), 1) for m in asked.methods}
            for step in sorted(pairs[0][one])
        },
    }
    if asked.figure:
        draw(paired, asked.methods, asked.figure)
    print(numbers)
    print(write(f"over_training_{asked.work.name}", asked, numbers))


if __name__ == "__main__":
    main()
