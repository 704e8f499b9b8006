"""The paper's main tables from the published cells alone, and what to know when reading them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..reference import BENCHMARKS, published_rules, published_table, remarks
from ..results.aggregation import printed, ranks
from .grid import BASELINE, Accuracy, Benchmark, GridMethod, grid
from .views import LEGEND, markdown

__all__ = [
    "COLORED_MNIST",
    "averages_that_differ",
    "method_remarks",
    "published_as_data",
    "published_benchmark",
    "published_cells",
    "published_domains",
    "published_notes",
    "published_page",
    "remark_lines",
]

COLORED_MNIST = frozenset({"colored-mnist"})
LEFT_OUT = "domainbed:leave-one-domain-out"
# The paper's tables by test domain: its ablations.
BY_DOMAIN = {
    "colored-mnist": ("table:ablationemacmnist", "table:igacmnist"),
    "office-home": ("table:ablationemahome", "table:igahome"),
}
_SELECTION = {
    "test-domain": "selected on the test domain",
    "training-domain": "selected on the training domains",
}


def published_benchmark(rule: str) -> Benchmark:
    """Return the paper's main table for a selection rule; its ranks are computed, not read."""
    table = published_table(BENCHMARKS[rule], rule)
    methods = {
        key: GridMethod(
            row.name,
            {column: Accuracy(*cell) for column, cell in row.cells.items()},
            row.average,
            apart=key == "fishr",
        )
        for key, row in table.rows.items()
    }
    title = f"DomainBed in the paper, models {_SELECTION[rule]}"
    return Benchmark(title, table.label, table.columns, methods)


def published_cells(rule: str) -> Benchmark | None:
    """Return published averages by data set for a selection rule; None where there are none."""
    if rule in BENCHMARKS:
        return published_benchmark(rule)
    return _merged("Published", [LEFT_OUT], rule)


def published_domains(dataset: str, rule: str) -> Benchmark | None:
    """Return published cells by test domain: DomainBed's, and the paper's where it prints any."""
    labels = [f"domainbed:{dataset}", *BY_DOMAIN.get(dataset, ())]
    return _merged(f"{dataset}, published by test domain", labels, rule)


def _merged(title: str, labels: Sequence[str], rule: str) -> Benchmark | None:
    """Return the rows of these tables for a rule, of one method those of the first."""
    columns: dict[str, str] = {}
    methods: dict[str, GridMethod] = {}
    for label in labels:
        if rule not in published_rules(label):
            continue
        table = published_table(label, rule)
        columns |= {column: column for column in table.columns}
        for key, row in table.rows.items():
            cells = {column: Accuracy(*cell) for column, cell in row.cells.items()}
            methods.setdefault(key, GridMethod(row.name, cells, row.average))
    return Benchmark(title, "", columns, methods) if methods else None


def averages_that_differ(benchmark: Benchmark) -> dict[str, tuple[str, str]]:
    """Return the printed average and that of the printed cells, by method, where they differ."""
    own, shown = benchmark.averages(), benchmark.shown_averages()
    pairs = {key: (printed(shown[key]), printed(own[key])) for key in own}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def published_notes(rule: str) -> list[str]:
    """Return what to know about one table: its average, that without Colored MNIST, its marks."""
    benchmark = published_benchmark(rule)
    names = {key: method.name for key, method in benchmark.methods.items()}
    differing = [
        f"{names[key]} {own} (printed {shown})"
        for key, (shown, own) in averages_that_differ(benchmark).items()
    ]
    without = benchmark.averages(COLORED_MNIST)
    places = ranks(without)
    listed = [
        f"{places[key]}. {names[key]} {printed(without[key])}"
        for key in sorted(without, key=lambda key: -without[key])
        if places[key] <= places[BASELINE]
    ]
    notes = [
        "Avg is as printed, a mean of unrounded values. The mean of the printed cells differs by "
        f"0.1 in {len(differing)} of {len(names)} rows: {', '.join(differing)}.",
        f"Average of the printed cells without Colored MNIST: {', '.join(listed)}; the other "
        "methods are worse than ERM.",
    ]
    slip = published_table(BENCHMARKS[rule], rule).slip
    return [*notes, slip] if slip else notes


def remark_lines() -> list[str]:
    """Return how the published cells were obtained, where today's code differs."""
    methods = published_benchmark("test-domain").methods
    names = {key: method.name for key, method in methods.items()}
    return [*remarks().sweep, *(f"{line}." for line in method_remarks(names))]


def method_remarks(names: Mapping[str, str]) -> list[str]:
    """Return how the published cells of these methods were obtained, by the names given."""
    by_text: dict[str, list[str]] = {}
    for key, text in remarks().methods.items():
        if key in names:
            by_text.setdefault(text, []).append(names[key])
    return [f"{', '.join(who)}: {text}" for text, who in by_text.items()]


def published_page(rules: Iterable[str]) -> str:
    """Return the tables with their notes as one page of Markdown."""
    parts = [
        "# The paper's main tables, from the published cells",
        "Made by `shoal report --published --format markdown`. Accuracy in percent, mean ± "
        "standard error over three trials. Ranks are computed from the cells: the place on each "
        "data set, of numbers rounded to one decimal, where equal ones share the best; then its "
        f"means over the data sets. {LEGEND}",
    ]
    for rule in rules:
        benchmark = published_benchmark(rule)
        parts += [f"## {benchmark.label}", markdown(grid(benchmark)).strip()]
        parts += published_notes(rule)
    parts.append("## How these cells were obtained")
    parts.append("\n".join(f"- {line}" for line in remark_lines()))
    return "\n\n".join(parts) + "\n"


def published_as_data(rules: Iterable[str]) -> dict[str, Any]:
    """Return the tables, their computed columns and the remarks as plain values."""
    return {"tables": [_as_data(rule) for rule in rules], "remarks": asdict(remarks())}


def _as_data(rule: str) -> dict[str, Any]:
    benchmark = published_benchmark(rule)
    places, rankings = benchmark.ranks(), benchmark.rankings()
    own, without = benchmark.averages(), benchmark.averages(COLORED_MNIST)
    return {
        "label": benchmark.label,
        "rule": rule,
        "columns": dict(benchmark.columns),
        "methods": {
            key: {
                "name": method.name,
                "cells": {column: asdict(cell) for column, cell in method.cells.items()},
                "ranks": {column: places[column][key] for column in method.cells},
                "average_printed": method.printed_average,
                "average_of_cells": own[key],
                "average_without_colored_mnist": without[key],
                "ranking": asdict(rankings[key]),
            }
            for key, method in benchmark.methods.items()
        },
        "notes": published_notes(rule),
    }
