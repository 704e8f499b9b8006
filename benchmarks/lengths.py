"""ERM and Fishr, with λ that jumps and λ that rises, by the number of updates of a run.

Reads finished runs of sweeps on one data set, their last weights and their averages. A row is a
length, a method and one of these; its numbers are means over test domains of means over trials.
Differences between rows of one length are paired by test domain, with the standard error over
domains. ``--figure`` draws accuracy and calibration error over the length.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from shoal.report.figures import canvas, look_of, render
from shoal.results.averages import with_averages
from shoal.results.records import RunResult, read_runs

from .recording import options, write

METHODS = ("ERM", "Fishr", "Fishr, rising λ")
ROWS = {"": "last", "sma": "SMA", "half": "second half", "swad": "SWAD"}
# Accuracy and calibration error in %, of one run.
Scores = tuple[float, float]
# By length, method and row: the scores of a test domain, one for each trial.
Cells = Mapping[tuple[int, str, str], Mapping[str, Sequence[Scores]]]


def method_of(run: RunResult) -> str:
    """Return the method that a run stands for."""
    if not run.algorithm.startswith("fishr"):
        return METHODS[0]
    return METHODS[2 if run.hparams.get("ramp_steps", 0) else 1]


def cells_of(runs: Sequence[RunResult]) -> Cells:
    """Return the scores after the last update, on the kept part of the test domain."""
    found: dict[tuple[int, str, str], dict[str, list[Scores]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in with_averages(runs):
        domain = run.test_domains[0]
        row = ROWS[run.algorithm.partition("+")[2]]
        error = run.last.calibration_error[domain]["kept"]
        scores = (100 * run.last.of(domain, "kept"), 100 * error)
        found[run.protocol["steps"], method_of(run), row][domain].append(scores)
    return found


def domain_means(cell: Mapping[str, Sequence[Scores]], which: int) -> dict[str, float]:
    """Return the mean over trials of each domain: accuracies, or calibration errors."""
    return {domain: fmean(score[which] for score in scores) for domain, scores in cell.items()}


def difference(cells: Cells, one: Any, other: Any, which: int) -> dict[str, float] | None:
    """Return a row minus another on the domains that both have; None with fewer than two."""
    if one == other:
        return None
    mine, theirs = (domain_means(cells.get(key, {}), which) for key in (one, other))
    gaps = [mine[domain] - theirs[domain] for domain in mine if domain in theirs]
    if len(gaps) < 2:
        return None
    return {
        "difference": round(fmean(gaps), 2),
        "error": round(stdev(gaps) / math.sqrt(len(gaps)), 2),
        "domains": len(gaps),
    }


def numbers_of(cells: Cells) -> list[dict[str, Any]]:
    """Return a row of numbers for each length, method and kind of weights."""
    found = []
    for length, method, row in sorted(
        cells, key=lambda k: (k[0], METHODS.index(k[1]), list(ROWS.values()).index(k[2]))
    ):
        cell = cells[length, method, row]
        accuracy, error = (domain_means(cell, which) for which in (0, 1))
        erm = (length, METHODS[0], row)
        found.append(
            {
                "updates": length,
                "method": method,
                "weights": row,
                "runs": sum(map(len, cell.values())),
                "accuracy": round(fmean(accuracy.values()), 2),
                "calibration_error": round(fmean(error.values()), 2),
                "domains": {domain: round(value, 2) for domain, value in accuracy.items()},
                "minus_erm": difference(cells, (length, method, row), erm, 0),
                "calibration_minus_erm": difference(cells, (length, method, row), erm, 1),
            }
        )
    return found


def draw(cells: Cells, rows: Sequence[str], path: Path) -> None:
    """Draw accuracy and calibration error over the length, a line for each method and row."""
    lengths = sorted({length for length, *_ in cells})
    names = ("accuracy in %", "calibration error in %")
    with canvas(1, 2, width=3.6, height=2.9) as (figure, axes):
        for which, (axis, name) in enumerate(zip(axes[0], names, strict=True)):
            for number, method in enumerate(METHODS):
                for row in rows:
                    known = [n for n in lengths if (n, method, row) in cells]
                    values = [
                        fmean(domain_means(cells[n, method, row], which).values()) for n in known
                    ]
                    look = look_of(number)
                    axis.plot(
                        known,
                        values,
                        color=look.colour,
                        marker=look.marker,
                        linestyle="-" if row != "last" else ":",
                        markersize=4,
                        label=f"{method}, {row}",
                    )
            axis.set(xlabel="updates", ylabel=name, xscale="log")
            axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
            axis.minorticks_off()
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    for ending, content in render(figure).items():
        path.with_suffix(f".{ending}").write_bytes(content)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--work", type=Path, nargs="+", required=True, help="folders of sweeps")
    parser.add_argument(
        "--figure", type=Path, help="path of a figure without suffix, written as .png and .pdf"
    )
    asked = parser.parse_args()
    cells = cells_of([run for run in read_runs(asked.work) if len(run.test_domains) == 1])
    rows = numbers_of(cells)
    for row in rows:
        gap = row["minus_erm"]
        against = f"{gap['difference']:+.1f} ± {gap['error']:.1f}" if gap else ""
        print(
            f"{row['updates']:5d}  {row['method']:16s} {row['weights']:12s} {row['runs']:3d} runs  "
            f"{row['accuracy']:5.1f}  calibration {row['calibration_error']:4.1f}  {against}"
        )
    if asked.figure:
        draw(cells, ["last", "second half"], asked.figure)
    print(write("lengths", asked, {"rows": rows}))


if __name__ == "__main__":
    main()
