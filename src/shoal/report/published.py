"""Published results: the paper's main tables, with ranks computed from their cells, and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ..reference import BENCHMARKS, published_rules, published_table, remarks
from ..results.aggregation import one_decimal, ranks
from .grid import BASELINE, Accuracy, Benchmark, GridMethod, grid
from .views import Document, Section

COLORED_MNIST = frozenset({"colored-mnist"})
LEFT_OUT = "domainbed:leave-one-domain-out"
# The paper prints accuracies by test domain in its ablations only.
BY_DOMAIN = {
    "colored-mnist": ("table:ablationemacmnist", "table:igacmnist"),
    "office-home": ("table:ablationemahome", "table:igahome"),
}
_SELECTION = {
    "test-domain": "selected on the test domain",
    "training-domain": "selected on the training domains",
}


def published_benchmark(rule: str) -> Benchmark:
    """Return the paper's main table for a selection rule, without its printed ranks."""
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
    """Return published averages by data set for a selection rule; None if there are none."""
    if rule in BENCHMARKS:
        return published_benchmark(rule)
    return _merged("Published", [LEFT_OUT], rule)


def published_domains(dataset: str, rule: str) -> Benchmark | None:
    """Return published cells by test domain: DomainBed's, and the paper's if it prints any."""
    labels = [f"domainbed:{dataset}", *BY_DOMAIN.get(dataset, ())]
    return _merged(f"{dataset}, published by test domain", labels, rule)


def _merged(title: str, labels: Sequence[str], rule: str) -> Benchmark | None:
    """Return the rows of these tables for a rule; for each method, those of the first table."""
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
    """Return the printed average and that of the printed cells, for methods with two different."""
    own, shown = benchmark.averages(), benchmark.shown_averages()
    pairs = {key: (one_decimal(shown[key]), one_decimal(own[key])) for key in own}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def published_notes(rule: str) -> list[str]:
    """Return notes on one table: its average, that without Colored MNIST, its marks."""
    benchmark = published_benchmark(rule)
    names = {key: method.name for key, method in benchmark.methods.items()}
    differing = [
        f"{names[key]} {own} (printed {shown})"
        for key, (shown, own) in averages_that_differ(benchmark).items()
    ]
    without = benchmark.averages(COLORED_MNIST)
    places = ranks(without)
    listed = [
        f"{places[key]}. {names[key]} {one_decimal(without[key])}"
        for key in sorted(without, key=lambda key: -without[key])
        if places[key] <= places[BASELINE]
    ]
    notes = [
        "Avg is the printed average, of unrounded values. The mean of the printed cells differs by "
        f"0.1 in {len(differing)} of {len(names)} rows: {', '.join(differing)}.",
        f"Average of the printed cells without Colored MNIST: {', '.join(listed)}; the other "
        "methods are worse than ERM.",
    ]
    slip = published_table(BENCHMARKS[rule], rule).slip
    return [*notes, slip] if slip else notes


def remark_lines() -> list[str]:
    """Return how the published cells were obtained, if today's code differs."""
    methods = published_benchmark("test-domain").methods
    names = {key: method.name for key, method in methods.items()}
    return [*remarks().sweep, *(f"{line}." for line in method_remarks(names))]


def method_remarks(names: Mapping[str, str]) -> list[str]:
    """Return how the published cells of these methods were obtained, under the names given."""
    by_text: dict[str, list[str]] = {}
    for key, text in remarks().methods.items():
        if key in names:
            by_text.setdefault(text, []).append(names[key])
    return [f"{', '.join(who)}: {text}" for text, who in by_text.items()]


def published_document(rules: Sequence[str]) -> Document:
    """Return the tables with their notes."""
    sections = []
    for rule in rules:
        benchmark = published_benchmark(rule)
        sections.append(
            Section(heading=benchmark.label, tables=[grid(benchmark)], notes=published_notes(rule))
        )
    sections.append(Section(heading="How these cells were obtained", notes=remark_lines()))
    introduction = (
        "Written by `shoal report --published --format markdown`. Accuracy in percent, mean ± "
        "standard error over three trials. Ranks are computed from the cells: the place on each "
        "data set, of numbers rounded to one decimal, with equal numbers sharing the best place; "
        "then the means of the places over the data sets."
    )
    title = "The paper's main tables, from the published cells"
    return Document(sections, partial(published_data, rules), title, introduction)


def published_data(rules: Sequence[str]) -> dict[str, Any]:
    """Return the tables, their computed columns and the remarks as plain values."""
    return {"tables": [_table_data(rule) for rule in rules], "remarks": asdict(remarks())}


def _table_data(rule: str) -> dict[str, Any]:
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
