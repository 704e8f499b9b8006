"""Sweeps, ours and DomainBed's, as tables: by data set, by domain, beside published cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.protocol.aggregation import Cell, Row, rows_of
from shoal.protocol.ranking import printed
from shoal.protocol.records import Finished
from shoal.protocol.selection import CALIBRATED, RULES, Choice, choose_runs
from shoal.report.benchmark import BASELINE, Accuracy, Benchmark, Method
from shoal.report.grid import Further, Grid, beside, grid
from shoal.report.paired import PAIRED, Pair, paired
from shoal.report.published import (
    COLORED_MNIST,
    method_remarks,
    published_cells,
    published_domains,
)
from shoal.report.sweep_notes import departed, not_compared, trained, uneven

__all__ = ["ALL_RULES", "FURTHER", "Chapter", "chapter", "chapters", "domains_of"]

ALL_RULES = (*RULES, CALIBRATED)
FURTHER = (
    "By test domain: Worst is the accuracy on a trial's worst domain; ECE is the expected "
    "calibration error in %, the mean over the domains, – where it was not recorded; less is better"
)


@dataclass(frozen=True)
class Chapter:
    """What one selection rule gives: tables, and lines that say what to know of them.

    ``tables`` are by data set and ``by_domain`` by test domain of each; where there are published
    cells, these follow ours. ``paired`` holds the table of differences between methods, where there
    are several. ``cautions`` are to be read before the tables. The lines begin with those of
    ``about``: what was trained, why something is not compared with published cells, and averages.
    """

    rule: str
    tables: tuple[Grid, ...]
    by_domain: tuple[Grid, ...]
    paired: tuple[Grid, ...]
    lines: tuple[str, ...]
    cautions: tuple[str, ...]
    about: tuple[str, ...]

    @property
    def all_tables(self) -> tuple[Grid, ...]:
        """All of them, in the order to read them."""
        return (*self.tables, *self.by_domain, *self.paired)


def chapters(
    runs: Sequence[Finished], rules: Iterable[str], compared: Sequence[Pair] = ()
) -> list[Chapter]:
    """Return a chapter for each rule that these runs have something for.

    Args:
        compared: methods to compare with each other, beside all with the baseline.
    """
    domains = domains_of(runs)
    found = (chapter(rule, choose_runs(runs, rule), domains, compared) for rule in rules)
    return [one for one in found if one is not None]


def domains_of(runs: Sequence[Finished]) -> dict[str, list[str]]:
    """Return the domains of each data set, in the order of its records."""
    found: dict[str, list[str]] = {}
    for run in runs:
        mine = found.setdefault(run.dataset, [])
        mine += [domain for domain in run.measured[0].accuracy if domain not in mine]
    return found


def chapter(
    rule: str,
    choices: Sequence[Choice],
    domains: Mapping[str, Sequence[str]],
    compared: Sequence[Pair] = (),
) -> Chapter | None:
    """Return what these choices of a rule give; None where there are none.

    Args:
        domains: of each data set, in the order to show them.
        compared: as in ``chapters``.
    """
    rows = sorted(rows_of(choices, domains), key=lambda row: list(domains).index(row.dataset))
    if not rows:
        return None
    whole, names = _benchmark(rule, rows), dict.fromkeys(row.dataset for row in rows)
    published = published_cells(rule)
    published_by_domain = {name: published_domains(name, rule) for name in names}
    different = departed(choices, published, published_by_domain)
    alike = [row for row in rows if (row.dataset, row.algorithm) not in different]
    tables = [grid(whole), *_beside(_benchmark(rule, alike), published)]
    by_domain: list[Grid] = []
    for name, theirs in published_by_domain.items():
        mine, own = ([row for row in some if row.dataset == name] for some in (rows, alike))
        further = [_worst(mine), _calibration(mine)]
        by_domain.append(grid(_by_domain(name, mine, domains[name]), further=further))
        by_domain += _beside(_by_domain(name, own, domains[name]), theirs)
    about = [trained(choices), *not_compared(different), *_remarks([*tables, *by_domain])]
    about += [*_no_average(rows), *_without_colored_mnist(whole)]
    pairs = _pairs(rows, compared)
    return Chapter(
        rule,
        tuple(tables),
        tuple(by_domain),
        (paired(choices, pairs, f"tab:{rule}-paired"),) if pairs else (),
        (*about, FURTHER, *([PAIRED] if pairs else [])),
        tuple(uneven(choices)),
        tuple(about),
    )


def _benchmark(rule: str, rows: Sequence[Row]) -> Benchmark:
    columns = dict.fromkeys(row.dataset for row in rows)
    methods = {
        name: Method(
            name,
            {
                row.dataset: _percent(row.average)
                for row in rows
                if row.algorithm == name and row.average is not None
            },
        )
        for name in _methods(rows)
    }
    title = f"Accuracy, models selected by {rule}"
    return Benchmark(title, f"tab:{rule}", {column: column for column in columns}, methods)


def _by_domain(dataset: str, rows: Sequence[Row], domains: Sequence[str]) -> Benchmark:
    methods = {
        row.algorithm: Method(
            row.algorithm, {domain: _percent(cell) for domain, cell in row.domains.items()}
        )
        for row in rows
    }
    ordered = {name: methods[name] for name in _methods(rows)}
    columns = {domain: domain for domain in domains}
    return Benchmark(f"{dataset}, by test domain", f"tab:{dataset}", columns, ordered)


def _methods(rows: Sequence[Row]) -> list[str]:
    """Return the methods, the baseline first."""
    names = list(dict.fromkeys(row.algorithm for row in rows))
    return sorted(names, key=lambda name: name != BASELINE)


def _beside(ours: Benchmark, published: Benchmark | None) -> list[Grid]:
    found = None if published is None else beside(ours, published)
    return [] if found is None else [found]


def _remarks(tables: Sequence[Grid]) -> Iterable[str]:
    """Yield how the published cells among these were obtained, where today's code differs."""
    published = [table for table in tables if not table.summary]
    for line in method_remarks({row.name: row.name for table in published for row in table.lines}):
        yield f"Published cells of {line}"


def _worst(rows: Sequence[Row]) -> Further:
    return Further("Worst", _known({row.algorithm: row.worst for row in rows}))


def _calibration(rows: Sequence[Row]) -> Further:
    cells = {row.algorithm: row.calibration_error for row in rows}
    return Further("ECE", _known(cells), smallest_first=True)


def _known(cells: Mapping[str, Cell | None]) -> dict[str, Accuracy]:
    """Return those that were measured; DomainBed records no calibration error."""
    return {
        name: _percent(cell)
        for name, cell in cells.items()
        if cell is not None and not math.isnan(cell.mean)
    }


def _no_average(rows: Sequence[Row]) -> Iterable[str]:
    for dataset in dict.fromkeys(row.dataset for row in rows):
        without = [r.algorithm for r in rows if r.dataset == dataset and r.average is None]
        if without:
            listed = ", ".join(without)
            yield f"{dataset}: no average of {listed}: not all test domains in all trials"


def _pairs(rows: Sequence[Row], asked: Sequence[Pair]) -> list[Pair]:
    """Return every method with the baseline, and those asked for."""
    names = _methods(rows)
    to_baseline = [(name, BASELINE) for name in names if BASELINE in names and name != BASELINE]
    return [*to_baseline, *asked]


def _without_colored_mnist(whole: Benchmark) -> Iterable[str]:
    """Yield the average that the paper's text gives, where there are other data sets."""
    if set(whole.columns) > COLORED_MNIST:
        found = whole.averages(COLORED_MNIST)
        ordered = sorted(found, key=lambda name: -found[name])
        listed = ", ".join(f"{name} {printed(found[name])}" for name in ordered)
        yield f"Average without colored-mnist: {listed or 'no method has all data sets'}"


def _percent(cell: Cell) -> Accuracy:
    return Accuracy(100 * cell.mean, 100 * cell.error if cell.trials > 1 else None)
