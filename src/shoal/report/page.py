"""The page of a sweep: one HTML file with its data, style and script inside.

The script builds the page from a block of JSON and inserts every name as text, never as markup. The
page's policy allows only the script with its hash to run.
"""

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..catalogue import in_order, method_and_average, title_of
from ..results.averages import without_averages
from ..results.best_of_n import best_of_n
from ..results.records import KEPT, Failure, Record, RunResult, RunTiming, timing_of
from ..results.selection import WORDS, read_alone
from .grid import BASELINE, Grid, GridEntry
from .sweep import (
    FURTHER,
    PAIRED,
    SEARCHED,
    RuleReport,
    against_each,
    domains_of,
    no_choice_message,
    rule_reports,
)
from .template import data_block, read_part, render

# Accuracies are whole numbers in units of 1 / SCALE: four digits, and few bytes.
SCALE = 10_000
# Most values of all curves together; with more, curves are thinned.
MOST_VALUES = 1_600_000


# Marks the place of the data in the page while it is rendered.
PLACE = "the data of the sweep"


def curves_of(
    runs: Sequence[RunResult],
) -> tuple[Iterator[dict[str, Any]], Iterator[tuple[int, ...]]]:
    """Return the runs with their curves, and then the lists of steps that these refer to.

    Both are made when they are asked for, because those of a whole benchmark would fill the memory.
    """
    steps: dict[tuple[int, ...], int] = {}
    most = _most_points(runs)
    return (_run(run, most, steps) for run in runs), _later(steps)


def _later(found: Mapping[tuple[int, ...], int]) -> Iterator[tuple[int, ...]]:
    """Yield what a mapping has by the time that it is asked."""
    yield from found


def accuracy(value: float) -> int | None:
    """Return the accuracy as a whole number; None if it is not a number."""
    return round(value * SCALE) if math.isfinite(value) else None


def _run(run: RunResult, most: int, steps: dict[tuple[int, ...], int]) -> dict[str, Any]:
    kept = [*_thin(run.records, most)]  # each record is made once
    at = tuple(one.step for one in kept)
    return {
        "dataset": run.dataset,
        "method": run.algorithm,
        "test": run.test_domains,
        "trial": run.trial,
        "draw": run.draw,
        "hparams": {name: _plain(value) for name, value in run.hparams.items()},
        # An average can begin long after it, and its curve shows no jump there.
        "warmup": None if method_and_average(run.algorithm)[1] else _warmup(run.hparams),
        "steps": steps.setdefault(at, len(steps)),
        "accuracy": {
            domain: {split: [accuracy(one.of(domain, split)) for one in kept] for split in splits}
            for domain, splits in kept[0].accuracy.items()
        },
        "terms": {
            name: [_number(one.terms.get(name, math.nan)) for one in kept] for name in kept[0].terms
        },
        "gaps": {
            name: [_number(one.gaps.get(name, math.nan)) for one in kept]
            for name in dict.fromkeys(name for one in kept for name in one.gaps)
        },
    }


def _most_points(runs: Sequence[RunResult]) -> int:
    series = 0
    for run in runs:
        first = run.records[0]
        series += len(first.terms) + len(run.records[-1].gaps)
        series += sum(len(splits) for splits in first.accuracy.values())
    return max(2, MOST_VALUES // max(series, 1))


def _thin(measured: Sequence[Record], most: int) -> Sequence[Record]:
    """Return at most this many records, evenly spaced, with the first and the last."""
    if len(measured) <= most:
        return measured
    last = len(measured) - 1
    return [measured[round(k * last / (most - 1))] for k in range(most)]


def _warmup(hparams: Mapping[str, Any]) -> float | None:
    """Return the step from which the penalty acts, under our name for it or DomainBed's."""
    for name, value in hparams.items():
        named = name == "warmup_steps" or name.endswith("penalty_anneal_iters")
        if named and isinstance(value, (int, float)):
            return value
    return None


def _number(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Return a value that JSON has; anything else as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (bool, int, str)) else str(value)


# By data set and domain: the class of an image, "" if it is not known, and its data URI.
Samples = Mapping[str, Mapping[str, Sequence[tuple[str, str]]]]


def page_data(
    runs: Sequence[RunResult],
    rules: Iterable[str],
    failed: Sequence[Failure] = (),
    samples: Samples | None = None,
) -> dict[str, Any]:
    """Return the contents of the page; a run is referred to by its place in ``runs``."""
    found = _contents(runs, rules, failed, samples)
    return {
        name: list(value) if isinstance(value, Iterator) else value for name, value in found.items()
    }


def _contents(
    runs: Sequence[RunResult],
    rules: Iterable[str],
    failed: Sequence[Failure],
    samples: Samples | None,
) -> dict[str, Any]:
    """Return the contents of the page, long lists as iterators, to be read in this order."""
    runs, rules = in_order(runs), tuple(rules)
    shown = [_chapter(one, runs) for one in rule_reports(runs, rules, (), failed)]
    if not shown:
        raise ValueError(no_choice_message(runs, rules))
    curves, steps = curves_of(runs)
    names = [*(run.algorithm for run in runs), *(one.algorithm for one in failed)]
    return {
        "scale": SCALE,
        "baseline": BASELINE,
        "titles": {name: title_of(name) for name in dict.fromkeys(names)},
        "averages": [name for name in dict.fromkeys(names) if method_and_average(name)[1]],
        "domains": domains_of(runs),
        "further": FURTHER,
        "differences": PAIRED,
        "searched": SEARCHED,
        "chapters": shown,
        "runs": curves,
        "steps": steps,
        "costs": _costs(runs),
        "failures": [_failure(one) for one in in_order(failed)],
        "samples": samples or {},
    }


def _chapter(found: RuleReport, runs: Sequence[RunResult]) -> dict[str, Any]:
    places = {id(run): place for place, run in enumerate(runs)}
    readings = _readings(found.rule, runs)
    chosen = []
    for choice in found.choices:
        place = places[id(choice.run)]
        readings[place] = [choice.step, accuracy(choice.accuracy)]
        score = round(choice.score, 5) if math.isfinite(choice.score) else None
        counts = {"draws": choice.draws, "record": choice.record, "records": choice.records}
        chosen.append({"run": place, "score": score, "inside": accuracy(choice.inside), **counts})
    first, *published = found.tables
    return {
        "rule": found.rule,
        "words": WORDS[found.rule],
        "leaderboard": _grid(first),
        "published": [_grid(table) for table in published],
        "by_domain": [_grid(table) for table in found.by_domain],
        "paired": {name: _grid(table) for name, table in against_each(found.choices).items()},
        "about": found.about,
        "cautions": found.cautions,
        "best_of_n": _best_of_n(found),
        "readings": readings,
        "chosen": chosen,
    }


def _best_of_n(found: RuleReport) -> list[dict[str, Any]]:
    """Return the curves of each data set with several draws."""
    curves = best_of_n(found.choices)
    return [
        {
            "dataset": dataset,
            "curves": [
                {
                    "method": curve.algorithm,
                    "values": [accuracy(cell.mean) for cell in curve.accuracies],
                }
                for curve in curves
                if curve.dataset == dataset
            ],
        }
        for dataset in dict.fromkeys(curve.dataset for curve in curves)
    ]


def _readings(rule: str, runs: Sequence[RunResult]) -> list[list[int | None] | None]:
    """Return the step and accuracy that the rule would read of each run if it had no other draw."""
    mates: dict[tuple[str, str, int, int], list[RunResult]] = {}
    for run in runs:
        if len(run.test_domains) > 1:
            key = (run.dataset, run.algorithm, run.trial, run.draw)
            mates.setdefault(key, []).append(run)
    found: list[list[int | None] | None] = []
    for run in runs:
        partners = mates.get((run.dataset, run.algorithm, run.trial, run.draw), [])
        one = read_alone(run, partners, rule) if len(run.test_domains) == 1 else None
        read = None if one is None else [one.step, accuracy(one.of(run.test_domains[0], KEPT))]
        found.append(read)
    return found


def _grid(table: Grid) -> dict[str, Any]:
    lines = [
        {"name": line.key, "cells": [_entry(entry) for entry in (*line.cells, *line.summary)]}
        for line in table.lines
    ]
    shift = len(table.columns)
    return {
        "title": table.title,
        "columns": [*table.columns, *table.summary],
        "smallest": [shift + table.summary.index(heading) for heading in table.smallest],
        "lines": lines,
    }


def _entry(entry: GridEntry) -> list[Any]:
    return [entry.text, entry.error, entry.mark.place, entry.mark.worse]


def _costs(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return the times of the runs of each data set and method, as far as they were recorded."""
    groups: dict[tuple[str, str], list[RunTiming]] = {}
    for run in without_averages(runs):
        timing = timing_of(run)
        if timing is not None:
            groups.setdefault((run.dataset, run.algorithm), []).append(timing)
    return [
        {
            "dataset": dataset,
            "method": method,
            "runs": len(mine),
            "seconds": round(fmean(one.seconds for one in mine), 3),
            "updating": round(fmean(one.updating for one in mine), 3),
            "evaluating": round(fmean(one.evaluating for one in mine), 3),
            "updates": sum(one.updates for one in mine),
            "total": round(sum(one.seconds for one in mine), 3),
            "machines": list(dict.fromkeys(one.machine for one in mine if one.machine)),
        }
        for (dataset, method), mine in groups.items()
    ]


def _failure(failed: Failure) -> dict[str, Any]:
    return {
        "dataset": failed.dataset,
        "method": failed.algorithm,
        "test": failed.test_domains,
        "trial": failed.trial,
        "draw": failed.draw,
        "reason": failed.reason,
        "folder": str(failed.path),
    }


# Parts of one script, in this order.
SCRIPTS = (
    "sweep_tables.js",
    "sweep_charts.js",
    "sweep_runs.js",
    "sweep_gaps.js",
    "sweep_search.js",
    "sweep_page.js",
)


def sweep_page(
    runs: Sequence[RunResult],
    rules: Iterable[str],
    failed: Sequence[Failure] = (),
    samples: Samples | None = None,
) -> str:
    """Return the sweep as one HTML page that needs no other file and no network."""
    return "".join(page_parts(runs, rules, failed, samples))


def page_parts(
    runs: Sequence[RunResult],
    rules: Iterable[str],
    failed: Sequence[Failure] = (),
    samples: Samples | None = None,
) -> Iterator[str]:
    """Yield the text of the page in parts, so that it is never in memory as a whole."""
    made = len(without_averages(runs))
    script = "\n".join(map(read_part, SCRIPTS))
    page = render(
        "sweep.html.jinja",
        {},
        title=f"Sweep of {made:,} {'run' if made == 1 else 'runs'}",
        data=PLACE,
        style=read_part("sweep.css"),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    before, after = page.split(PLACE)
    yield before
    yield from _blocks(_contents(runs, rules, failed, samples))
    yield after


def _blocks(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield an object as JSON in parts, its iterators as lists."""
    joint = "{"
    for name, value in data.items():
        yield f"{joint}{data_block(name)}:"
        if isinstance(value, Iterator):
            yield "["
            for number, one in enumerate(value):
                yield f"{',' if number else ''}{data_block(one)}"
            yield "]"
        else:
            yield data_block(value)
        joint = ","
    yield "}"
