"""All that the page of a sweep shows, as plain data: from its tables to sample images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..results.records import Failure, Finished, Timing, timing_of
from ..results.selection import WORDS, choose_runs
from .benchmark import BASELINE
from .departures import Searched
from .grid import Entry, Grid
from .order import in_order
from .page_curves import SCALE, accuracy, curves_of
from .paired import PAIRED, against_each
from .sweeps import FURTHER, Chapter, chapters, domains_of, not_searched, nothing_chosen

__all__ = ["Samples", "page_data"]

# By data set and domain: the class of an image, "" where it is not known, and its data URI.
Samples = Mapping[str, Mapping[str, Sequence[tuple[str, str]]]]


def page_data(
    runs: Sequence[Finished],
    rules: Iterable[str],
    failed: Sequence[Failure] = (),
    samples: Samples | None = None,
    searched: Searched = not_searched,
) -> dict[str, Any]:
    """Return what the page shows; lists of runs go by their place in the order of tables."""
    runs, rules = in_order(runs), tuple(rules)
    shown = [_chapter(one, runs) for one in chapters(runs, rules, (), failed, searched)]
    if not shown:
        raise ValueError(nothing_chosen(len(runs), rules))
    curves, steps = curves_of(runs)
    return {
        "scale": SCALE,
        "baseline": BASELINE,
        "domains": domains_of(runs),
        "further": FURTHER,
        "differences": PAIRED,
        "chapters": shown,
        "runs": curves,
        "steps": steps,
        "costs": _costs(runs),
        "failures": [_failure(one) for one in in_order(failed)],
        "samples": samples or {},
    }


def _chapter(found: Chapter, runs: Sequence[Finished]) -> dict[str, Any]:
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
        "readings": readings,
        "chosen": chosen,
    }


def _readings(rule: str, runs: Sequence[Finished]) -> list[list[int | None] | None]:
    """Return the step at which the rule reads each run, were its draw the only one, and what."""
    mates: dict[tuple[str, str, int, int], list[Finished]] = {}
    for run in runs:
        if len(run.test_domains) > 1:
            key = (run.dataset, run.algorithm, run.trial, run.draw)
            mates.setdefault(key, []).append(run)
    found: list[list[int | None] | None] = []
    for run in runs:
        beside = mates.get((run.dataset, run.algorithm, run.trial, run.draw), [])
        alone = choose_runs([run, *beside], rule) if len(run.test_domains) == 1 else []
        found.append([alone[0].step, accuracy(alone[0].accuracy)] if alone else None)
    return found


def _grid(table: Grid) -> dict[str, Any]:
    lines = [
        {"name": line.name, "cells": [_entry(entry) for entry in (*line.cells, *line.summary)]}
        for line in table.lines
    ]
    shift = len(table.columns)
    return {
        "title": table.title,
        "columns": [*table.columns, *table.summary],
        "smallest": [shift + table.summary.index(heading) for heading in table.smallest],
        "lines": lines,
    }


def _entry(entry: Entry) -> list[Any]:
    return [entry.text, entry.error, entry.mark.place, entry.mark.worse]


def _costs(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """Return what the runs of each data set and method took, those that wrote it down."""
    groups: dict[tuple[str, str], list[Timing]] = {}
    for run in runs:
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
