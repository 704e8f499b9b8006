"""ERM and Fishr, with λ that jumps and λ that rises, by the number of updates of a run.

Reads finished runs of sweeps on one data set, their last weights and their averages. A row is a
length, a method and one of these; its numbers are means over test domains of means over trials.
Differences between rows of one length are paired by test domain and trial, with the standard error
over domains. The course of the longest runs shows risk and calibration error of the current weights
at some of their records. ``--figure`` draws accuracy and calibration error over the length.
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

ERM, JUMP = "ERM", "Fishr, λ jumps"
ROWS = {"": "last", "sma": "SMA", "half": "second half", "swad": "SWAD"}
# Accuracy and calibration error in %, of one run.
Scores = tuple[float, float]
# The scores of a test domain, by trial.
Trials = Mapping[int, Scores]
# By length, method and row: the scores of each test domain.
Cells = Mapping[tuple[int, str, str], Mapping[str, Trials]]


def method_of(run: RunResult) -> str:
    """Return the method that a run stands for; if λ rises, with the first and last update of it."""
    if not run.algorithm.startswith("fishr"):
        return ERM
    begin, ramp = (run.hparams.get(name, 0) for name in ("warmup_steps", "ramp_steps"))
    return f"Fishr, λ rises {begin:,} to {begin + ramp:,}" if ramp else JUMP


def methods_of(cells: Cells) -> list[str]:
    """Return the methods: ERM, λ that jumps, and λ that rises, the earliest first."""
    fixed = [ERM, JUMP]
    found = {method for _, method, _ in cells}
    rising = sorted(found.difference(fixed), key=_updates)
    return [*(method for method in fixed if method in found), *rising]


def _updates(method: str) -> list[int]:
    return [int(word.replace(",", "")) for word in method.split() if word[0].isdigit()]


def cells_of(runs: Sequence[RunResult]) -> Cells:
    """Return the scores after the last update, on the kept part of the test domain."""
    found: dict[tuple[int, str, str], dict[str, dict[int, Scores]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for run in with_averages(runs):
        domain = run.test_domains[0]
        row = ROWS[run.algorithm.partition("+")[2]]
        error = run.last.calibration_error[domain]["kept"]
        scores = (100 * run.last.of(domain, "kept"), 100 * error)
        of_domain = found[run.protocol["steps"], method_of(run), row][domain]
        if run.trial in of_domain:
            raise ValueError(
                f"two runs of {method_of(run)}, {run.protocol['steps']} updates, {domain}, trial "
                f"{run.trial}: give only sweeps that differ in one of these"
            )
        of_domain[run.trial] = scores
    return found


def domain_means(cell: Mapping[str, Trials], which: int) -> dict[str, float]:
    """Return the mean over trials of each domain: accuracies, or calibration errors."""
    return {
        domain: fmean(scores[which] for scores in trials.values())
        for domain, trials in sorted(cell.items())
    }


def difference(cells: Cells, one: Any, other: Any, which: int) -> dict[str, float] | None:
    """Return a row minus another on the runs that both have; None with fewer than two domains."""
    if one == other:
        return None
    mine, theirs = (cells.get(key, {}) for key in (one, other))
    pairs = {
        domain: [
            mine[domain][trial][which] - theirs[domain][trial][which]
            for trial in mine[domain].keys() & theirs[domain].keys()
        ]
        for domain in mine.keys() & theirs.keys()
    }
    gaps = [fmean(found) for _, found in sorted(pairs.items()) if found]
    if len(gaps) < 2:
        return None
    return {
        "difference": round(fmean(gaps), 2),
        "error": round(stdev(gaps) / math.sqrt(len(gaps)), 2),
        "domains": len(gaps),
        "pairs": sum(map(len, pairs.values())),
    }


def numbers_of(cells: Cells) -> list[dict[str, Any]]:
    """Return a row of numbers for each length, method and kind of weights."""
    found = []
    methods = methods_of(cells)
    for length, method, row in sorted(
        cells, key=lambda k: (k[0], methods.index(k[1]), list(ROWS.values()).index(k[2]))
    ):
        cell = cells[length, method, row]
        accuracy, error = (domain_means(cell, which) for which in (0, 1))
        erm = (length, ERM, row)
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


def course_of(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return the mean risk and calibration error along the longest runs, by method and update.

    The risk is that of the last batches before a record. Runs of all domains and trials enter with
    the same weight, so methods must have the same ones to be compared.
    """
    longest = max(run.protocol["steps"] for run in runs)
    found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        if run.protocol["steps"] != longest:
            continue
        for record in run.records:
            risk = record.terms["risk" if "risk" in record.terms else "loss"]
            error = record.calibration_error[run.test_domains[0]]["kept"]
            found[method_of(run), record.step].append((risk, 100 * error))
    return [
        {
            "method": method,
            "updates": step,
            "runs": len(values),
            "risk": round(fmean(risk for risk, _ in values), 4),
            "calibration_error": round(fmean(error for _, error in values), 2),
        }
        for (method, step), values in sorted(found.items())
        if step % 900 == 0 or step == longest - 1
    ]


def draw(cells: Cells, rows: Mapping[str, str], path: Path) -> None:
    """Draw accuracy and calibration error over the length, a line for each method and row.

    Rows that lack a test domain are left out: their means are of other domains.

    Args:
        rows: the style of line of each row that is drawn.
    """
    from matplotlib.lines import Line2D

    domains = {domain for cell in cells.values() for domain in cell}
    cells = {key: cell for key, cell in cells.items() if cell.keys() == domains}
    lengths = sorted({length for length, *_ in cells})
    names = ("accuracy in %", "calibration error in %")
    methods = methods_of(cells)
    with canvas(1, 2, width=3.6, height=3.1) as (figure, axes):
        for which, (axis, name) in enumerate(zip(axes[0], names, strict=True)):
            for number, method in enumerate(methods):
                look = look_of(number)
                for row, style in rows.items():
                    known = [n for n in lengths if (n, method, row) in cells]
                    values = [
                        fmean(domain_means(cells[n, method, row], which).values()) for n in known
                    ]
                    hollow = "none" if style != "-" else look.colour
                    axis.plot(
                        known,
                        values,
                        color=look.colour,
                        marker=look.marker,
                        markerfacecolor=hollow,
                        linestyle=style,
                    )
            axis.set(xlabel="updates", ylabel=name, xscale="log")
            axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
            axis.minorticks_off()
        looks = [look_of(number) for number in range(len(methods))]
        shown = [Line2D([], [], color=look.colour, marker=look.marker) for look in looks]
        lines = [Line2D([], [], color="grey", linestyle=style) for style in rows.values()]
        figure.legend([*shown, *lines], [*methods, *rows], loc="outside lower center", ncols=3)
    for ending, content in render(figure).items():
        path.with_suffix(f".{ending}").write_bytes(content)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--work", type=Path, nargs="+", required=True, help="folders of sweeps")
    parser.add_argument(
        "--figure", type=Path, help="path of a figure without suffix, written as .png and .pdf"
    )
    asked = parser.parse_args()
    runs = [run for run in read_runs(asked.work) if len(run.test_domains) == 1]
    cells = cells_of(runs)
    rows = numbers_of(cells)
    for row in rows:
        gap = row["minus_erm"]
        against = f"{gap['difference']:+.1f} ± {gap['error']:.1f}" if gap else ""
        print(
            f"{row['updates']:5d}  {row['method']:30s} {row['weights']:12s} {row['runs']:3d} runs  "
            f"{row['accuracy']:5.1f}  calibration {row['calibration_error']:4.1f}  {against}"
        )
    if asked.figure:
        draw(cells, {"last": ":", "second half": "-"}, asked.figure)
    print(write("lengths", asked, {"rows": rows, "course": course_of(runs)}))


if __name__ == "__main__":
    main()
