"""The league: methods and averages side by side, from committed records, as a document and a page.

python tools/league.py           # writes docs/league.md and docs/league.html
python tools/league.py --check   # exits with 1 if they are out of date
"""

import argparse
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import NamedTuple

from shoal.catalogue import AVERAGES, DATASETS, title_of
from shoal.report.template import read_part
from shoal.results.aggregation import (
    Comparison,
    MethodRow,
    TrialMean,
    compare_over_domains,
    ranks,
    rows_of,
)
from shoal.results.averages import with_averages
from shoal.results.records import RunResult, read_runs
from shoal.results.selection import choose_runs

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE, HTML = REPOSITORY / "docs" / "league.md", REPOSITORY / "docs" / "league.html"
AVERAGED = "docs/results/averages"
# The times of updates, one method after the other on one GPU.
COSTS = REPOSITORY / "benchmarks" / "results" / "league_costs.json"
RISING = "Fishr with rising λ"


class Source(NamedTuple):
    """A folder of an archive with runs of the league, and names of methods that differ there."""

    archive: str
    folder: str
    named: Mapping[str, str] = {}


SOURCES = (
    Source(f"{AVERAGED}/pacs-efficientnet-lite0.tar.gz", "pacs-averages"),
    Source(f"{AVERAGED}/pacs-starts.tar.gz", "pacs-5001-ramp600", {"fishr": RISING}),
    Source(f"{AVERAGED}/pacs-league.tar.gz", "pacs-league"),
)
DATASET, RULE = "pacs", "training-domain"
# Methods of the league, in its order; those without records are named as not run.
LEAGUE = ("erm", "fishr", RISING, "coral", "vrex", "mixup", "sd", "sagm", "miro")
TRIALS = 3
LAST = ""
WEIGHTS = (LAST, *AVERAGES)
BASELINE = "erm"
INTRODUCTION = """\
Which method should I use? PACS, EfficientNet-Lite0 with ImageNet weights, default hyperparameters,
5,001 updates, 3 trials, each of the four domains left out in turn; the record is chosen on
held-out images of the training domains. Every method has four rows of the same runs: its own
weights, and three averages of the weights along the run. Fishr is there twice: as published, and
with a λ that rises from update 300 to 900, as `shoal fit` trains it."""


@dataclass(frozen=True)
class LeagueRow:
    """One row of the league.

    Args:
        gap: from ERM with the same weights, over the means of the domains; None for ERM.
        gained: from the method's own weights, not averaged, likewise; None for those.
        place: among all rows.
    """

    method: str
    weights: str
    found: MethodRow
    average: TrialMean
    worst: TrialMean
    calibration_error: TrialMean
    gap: Comparison | None
    gained: Comparison | None
    place: int

    @property
    def whole(self) -> bool:
        """Whether it has all trials."""
        return self.average.trials == TRIALS

    @property
    def title(self) -> str:
        title = title_of(row_name(self.method, self.weights))
        return title if self.whole else f"{title} ({self.average.trials} of {TRIALS} trials)"


def row_name(method: str, weights: str) -> str:
    return f"{method}+{weights}" if weights else method


def read_sources(sources: Iterable[Source]) -> list[RunResult]:
    """Return the runs of these folders with their averages."""
    runs: list[RunResult] = []
    for source in sources:
        with tempfile.TemporaryDirectory() as scratch:
            with tarfile.open(REPOSITORY / source.archive) as tar:
                tar.extractall(scratch, filter="data")
            found = [
                replace(run, algorithm=source.named.get(run.algorithm, run.algorithm))
                for run in read_runs([Path(scratch) / source.folder])
                if run.dataset == DATASET
            ]
            runs += with_averages(found)
    return runs


def in_whole_trials(runs: Sequence[RunResult]) -> list[RunResult]:
    """Return the runs of trials in which the method has left out every domain."""
    left_out: dict[tuple[str, int], set[tuple[str, ...]]] = {}
    for run in runs:
        left_out.setdefault((run.algorithm, run.trial), set()).add(tuple(run.test_domains))
    every = {(name,) for name in DATASETS[DATASET].domains}
    return [run for run in runs if left_out[run.algorithm, run.trial] >= every]


def league(runs: Sequence[RunResult]) -> list[LeagueRow]:
    """Return all rows with a whole trial; differences are over the trials that both have."""
    choices = choose_runs(in_whole_trials(runs), RULE)
    found = {row.algorithm: row for row in rows_of(choices, {DATASET: DATASETS[DATASET].domains})}
    whole = {name: 100 * row.average.mean for name, row in found.items() if row.average}
    places = ranks(whole)

    def minus(name: str, other: str) -> Comparison | None:
        alike = name == other or other not in whole
        return None if alike else compare_over_domains(choices, name, other)

    rows = []
    for method in LEAGUE:
        for weights in WEIGHTS:
            name = row_name(method, weights)
            mine = found.get(name)
            if mine is None or not (mine.average and mine.worst and mine.calibration_error):
                continue
            rows.append(
                LeagueRow(
                    method,
                    weights,
                    found=mine,
                    average=mine.average,
                    worst=mine.worst,
                    calibration_error=mine.calibration_error,
                    gap=minus(name, row_name(BASELINE, weights)),
                    gained=minus(name, method),
                    place=places[name],
                )
            )
    return rows


def not_run(rows: Sequence[LeagueRow]) -> list[str]:
    """Return the titles of the league's methods without a row."""
    there = {row.method for row in rows}
    return [title_of(method) for method in LEAGUE if method not in there]


def best_of(rows: Sequence[LeagueRow]) -> LeagueRow:
    """Return the best row with all trials."""
    return min((row for row in rows if row.whole), key=lambda row: row.place)


def answers(rows: Sequence[LeagueRow]) -> list[str]:
    """Return what the rows with all trials say, in five sentences."""
    whole = [row for row in rows if row.whole]
    best, leader = best_of(rows), min(rows, key=lambda row: row.place)
    first = f"{best.title} is best on average, with {100 * best.average.mean:.1f} %"
    if leader is not best:
        first = (
            f"Of the rows with {TRIALS} trials {first}; so far {leader.title} has "
            f"{100 * leader.average.mean:.1f} %"
        )
    plain = [row for row in whole if row.method == BASELINE and row.gained is not None]
    gain = max(plain, key=lambda row: row.gained.difference if row.gained else 0.0)
    others = [(row, row.gap) for row in whole if row.gap is not None]
    rival, apart = max(others, key=lambda one: one[0].average.mean)
    calm = min(whole, key=lambda row: row.calibration_error.mean)
    dear = max({row.method for row in rows}, key=lambda method: update_cost(method).ratio)
    missing = not_run(rows)
    open_yet = f" Not run yet: {', '.join(missing)}." if missing else ""
    return [
        f"{first}.",
        f"Averaging weights gains ERM {points(gain.gained)} points ({gain.title}).",
        f"The best row of another method is {rival.title}, {distance(apart)} ERM with the same "
        "weights.",
        f"{calm.title} has the lowest calibration error: "
        f"{100 * calm.calibration_error.mean:.1f} %.",
        f"An update of {title_of(dear)} takes longest, {update_cost(dear).ratio:.1f} times as long "
        f"as ERM's.{open_yet}",
    ]


class Cost(NamedTuple):
    """GPU seconds of the updates of a run, and how many times as long as ERM's they take."""

    seconds: float
    ratio: float


def update_cost(method: str) -> Cost:
    """Return the cost of a method, measured alone on a GPU."""
    measured = json.loads(COSTS.read_text("utf-8"))["rows"]
    name = "fishr" if method == RISING else method
    row = next(row for row in measured if row["method"] == name)
    return Cost(row["seconds"], row["times_erm"])


def points(gap: Comparison | None) -> str:
    """Return a difference in points with its error."""
    if gap is None:
        return "–"
    return f"{100 * gap.difference:+z.1f} ± {100 * gap.error:.1f}".replace("-", "−")


def distance(gap: Comparison) -> str:
    """Return in words how far one row is from another."""
    side = "ahead of" if gap.difference > 0 else "behind"
    return f"{100 * abs(gap.difference):.1f} ± {100 * gap.error:.1f} points {side}"


HEADER = (
    "row",
    "place",
    "average",
    "minus ERM",
    "minus its last",
    "worst domain",
    "calibration error",
    "GPU seconds",
    "in ERM's",
    *DATASETS[DATASET].domains,
)


def cells(row: LeagueRow) -> list[str]:
    """Return the cells of a row as text."""
    domains = [row.found.domains[name].mean for name in DATASETS[DATASET].domains]
    error = f" ± {100 * row.average.error:.1f}" if row.average.trials > 1 else ""
    cost = update_cost(row.method)
    return [
        row.title,
        str(row.place),
        f"{100 * row.average.mean:.1f}{error}",
        points(row.gap),
        points(row.gained),
        f"{100 * row.worst.mean:.1f}",
        f"{100 * row.calibration_error.mean:.1f}",
        f"{cost.seconds:.0f}",
        f"{cost.ratio:.2f}",
        *(f"{100 * one:.1f}" for one in domains),
    ]


NOTE = """\
Accuracy in %; ± is the standard error over trials, and over the means of the four domains in the
columns *minus*: trials of a domain are no new domains. *Minus ERM*: ERM with the same kind of
weights. *Minus its last*: the method's own weights, not averaged. *Place*: among all rows.
*Worst domain*: the mean over trials of the lowest. *Calibration error*: in %, the mean over
domains. *GPU seconds*: what the 5,001 updates of a run take alone on an H200, without evaluations
and averages, which cost every method the same. *In ERM's*: the same in times of ERM's seconds. Both
are from benchmarks/results/league_costs.json. MIRO's λ and first variances are those that its
authors chose for a ResNet-50."""


def write_page(rows: Sequence[LeagueRow]) -> str:
    """Return the document."""
    lines = ["# The league", "", INTRODUCTION, "", "## What should I use?", ""]
    lines += [f"{number}. {answer}" for number, answer in enumerate(answers(rows), 1)]
    lines += ["", "## PACS", "", "| " + " | ".join(HEADER) + " |"]
    lines += ["| --- |" + " --: |" * (len(HEADER) - 1)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    sources = ", ".join(
        f"[{Path(archive).name}]({archive.removeprefix('docs/')})" for archive, *_ in SOURCES
    )
    lines += [
        "",
        NOTE,
        "",
        f"Records: {sources}. This page and [a page for browsers](league.html) are",
    ]
    lines += ["generated from them by `python tools/league.py`.", ""]
    return "\n".join(lines)


def write_html(rows: Sequence[LeagueRow]) -> str:
    """Return the page: one file that opens offline, without a script."""

    best = best_of(rows)

    def line(row: LeagueRow) -> str:
        first, *others = map(escape, cells(row))
        kind = ' class="deploy"' if row is best else ""
        return f"<tr{kind}><th>{first}</th>{''.join(f'<td>{one}</td>' for one in others)}</tr>"

    head = "".join(f"<th>{escape(one)}</th>" for one in HEADER)
    said = "".join(f"<p>{escape(one)}</p>" for one in answers(rows))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>The league</title>
<style>
{read_part("fit.css")}
tbody th {{ min-width: 9em; }}
</style>
</head>
<body>
<header><h1>The league</h1><p class="soft">{escape(INTRODUCTION.replace("`", ""))}</p></header>
<section class="verdict">{said}</section>
<section><h2>PACS</h2>
<div class="scroll"><table><thead><tr>{head}</tr></thead>
<tbody>
{chr(10).join(map(line, rows))}
</tbody></table></div>
<p class="note">{escape(NOTE.replace("*", ""))}</p></section>
</body>
</html>
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files, or compare them with the records; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file is out of date"
    )
    options = parser.parse_args(arguments)
    rows = league(read_sources(SOURCES))
    status = 0
    for path, content in ((PAGE, write_page(rows)), (HTML, write_html(rows))):
        current = path.read_text("utf-8") if path.exists() else None
        if content == current:
            continue
        if options.check:
            print(f"{path.relative_to(REPOSITORY)} is out of date: python tools/league.py")
            status = 1
        else:
            path.write_text(content, "utf-8")
            print(f"Written: {path.relative_to(REPOSITORY)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
