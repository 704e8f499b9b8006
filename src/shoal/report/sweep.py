"""Sweeps, ours and DomainBed's, as tables: by data set, by domain, beside published cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..catalogue import by_method, in_order
from ..results.aggregation import Comparison, MethodRow, TrialMean, compare, printed, rows_of
from ..results.records import Failure, RunResult
from ..results.selection import Choice, Selection, select
from .comparable import departed, not_compared
from .grid import (
    BASELINE,
    Accuracy,
    Benchmark,
    ExtraColumn,
    Grid,
    GridEntry,
    GridLine,
    GridMethod,
    beside,
    grid,
    signed,
)
from .notes import (
    Twins,
    by_chance,
    doubled,
    doubled_lines,
    lost,
    lost_by_themselves,
    no_average,
    no_number,
    trained,
    twins,
    undecided,
    uneven,
)
from .published import COLORED_MNIST, method_remarks, published_cells, published_domains

PAIRED = (
    "Paired differences are in points, mean ± standard error over the (data set, test domain, "
    "trial) that both have, – where these are fewer than two; p is that of the sign test"
)
HEADINGS = ("Difference", "Pairs", "Won", "Lost", "p")

MethodPair = tuple[str, str]


def paired(choices: Sequence[Choice], pairs: Iterable[MethodPair], label: str) -> Grid:
    """Return by how much the first method of each pair is better than the second."""
    mine = _by_method(choices)
    names = {f"{one} less {other}": (one, other) for one, other in pairs}
    return _grid("Accuracy of one method less that of another, paired", label, mine, names)


def against_each(choices: Sequence[Choice]) -> dict[str, Grid]:
    """Return, by method, by how much every other one is better than it; the baseline first."""
    mine = _by_method(choices)
    return {
        other: _grid(f"Less {other}", "", mine, {one: (one, other) for one in mine if one != other})
        for other in mine
    }


def _grid(
    title: str, label: str, choices: Mapping[str, Sequence[Choice]], names: Mapping[str, MethodPair]
) -> Grid:
    lines = tuple(
        GridLine(name, _entries(choices, pair), (), False) for name, pair in names.items()
    )
    return Grid(title, label, HEADINGS, (), lines)


def _entries(choices: Mapping[str, Sequence[Choice]], pair: MethodPair) -> tuple[GridEntry, ...]:
    one, other = pair
    try:
        found = compare([*choices.get(one, ()), *choices.get(other, ())], one, other)
    except ValueError:  # they share one or none
        return (GridEntry(),) * len(HEADINGS)
    return _shown(found)


def _shown(found: Comparison) -> tuple[GridEntry, ...]:
    difference = GridEntry(signed(100 * found.difference), printed(100 * found.error))
    counts = (found.pairs, found.wins, found.losses)
    return (difference, *(GridEntry(str(count)) for count in counts), GridEntry(f"{found.p:.3f}"))


def _by_method(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    """Return the choices of each method, the methods in their order."""
    found: dict[str, list[Choice]] = {}
    for choice in sorted(choices, key=by_method):
        found.setdefault(choice.algorithm, []).append(choice)
    return found


FURTHER = (
    "By test domain: Worst is the accuracy on a trial's worst domain; ECE is the expected "
    "calibration error in %, the mean over the domains, – where it was not recorded; less is better"
)


@dataclass(frozen=True)
class RuleReport:
    """What one selection rule gives: tables, and lines that say what to know of them.

    ``tables`` are by data set and ``by_domain`` by test domain of each; where there are published
    cells, these follow ours. ``paired`` holds the table of differences between methods, where there
    are several, and ``pairs`` the methods. ``cautions`` are to be read before the tables. The lines
    begin with those of ``about``: what was trained, why something is not compared with published
    cells, and averages. ``choices`` and ``rows`` are what the tables were made of.
    """

    rule: str
    tables: tuple[Grid, ...]
    by_domain: tuple[Grid, ...]
    paired: tuple[Grid, ...]
    lines: tuple[str, ...]
    cautions: tuple[str, ...]
    about: tuple[str, ...]
    choices: tuple[Choice, ...]
    rows: tuple[MethodRow, ...]
    pairs: tuple[MethodPair, ...]

    @property
    def all_tables(self) -> tuple[Grid, ...]:
        """All of them, in the order to read them."""
        return (*self.tables, *self.by_domain, *self.paired)


def chapters(
    runs: Iterable[RunResult],
    rules: Iterable[str],
    compared: Sequence[MethodPair] = (),
    failed: Iterable[Failure] = (),
) -> list[RuleReport]:
    """Return a chapter for each rule that these runs have something for.

    Args:
        compared: methods to compare with each other, beside all with the baseline.
        failed: runs that failed; those that did so by themselves count as tried.
    """
    runs = in_order(runs)
    domains, both, given_up = domains_of(runs), twins(runs), lost_by_themselves(failed)
    found = []
    for rule in rules:
        selected = select(runs, rule, given_up)
        if selected.choices:
            found.append(_chapter(rule, selected, domains, compared, both))
    return found


def nothing_chosen(runs: int, rules: Sequence[str]) -> str:
    """Return what to say where no rule has a chapter."""
    return (
        f"of these {runs:,} runs nothing can be chosen by {' or '.join(rules)}: the rule needs "
        "other runs, or what it chooses by was not recorded ('shoal report --help' has all rules)"
    )


def domains_of(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Return the domains of each data set, in the order of its records."""
    found: dict[str, list[str]] = {}
    for run in runs:
        mine = found.setdefault(run.dataset, [])
        mine += [domain for domain in run.records[0].accuracy if domain not in mine]
    return found


def _chapter(
    rule: str,
    selected: Selection,
    domains: Mapping[str, Sequence[str]],
    compared: Sequence[MethodPair],
    both: Twins,
) -> RuleReport:
    choices, rows = _ordered(selected.choices, domains), _rows(selected, domains)
    whole, names = _benchmark(rule, rows), dict.fromkeys(row.dataset for row in rows)
    published = published_cells(rule)
    published_by_domain = {name: published_domains(name, rule) for name in names}
    different = departed(choices, published, published_by_domain, doubled(both))
    alike = [row for row in rows if (row.dataset, row.algorithm) not in different]
    tables = [grid(whole), *_beside(_benchmark(rule, alike), published)]
    by_domain: list[Grid] = []
    for name, theirs in published_by_domain.items():
        mine, own = ([row for row in some if row.dataset == name] for some in (rows, alike))
        further = [_worst(mine), _calibration(mine)]
        by_domain.append(grid(_by_domain(name, mine, domains[name]), further=further))
        by_domain += _beside(_by_domain(name, own, domains[name]), theirs)
    about = [trained(choices), *not_compared(different)]
    about += [*_remarks([*tables, *by_domain]), *lost(choices)]
    about += [*undecided(selected.undecided), *no_number(choices), *no_average(rows)]
    about += _without_colored_mnist(whole)
    pairs = _pairs(rows, compared)
    return RuleReport(
        rule,
        tuple(tables),
        tuple(by_domain),
        (paired(choices, pairs, f"tab:{rule}-paired"),) if pairs else (),
        (*about, FURTHER, *([PAIRED] if pairs else [])),
        (*doubled_lines(both), *uneven(choices, selected.undecided), *by_chance(choices)),
        tuple(about),
        tuple(choices),
        tuple(rows),
        tuple(pairs),
    )


def _ordered(choices: Sequence[Choice], domains: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Return the choices of each method by test domain and trial."""

    def place(one: Choice) -> tuple[int, int]:
        return list(domains[one.dataset]).index(one.test_domain), one.trial

    return in_order(sorted(choices, key=place))


def _rows(selected: Selection, domains: Mapping[str, Sequence[str]]) -> list[MethodRow]:
    """Return a row for each data set and method, without cells where nothing was chosen."""
    rows = rows_of(selected.choices, domains)
    there = {(row.dataset, row.algorithm) for row in rows}
    nothing = dict.fromkeys(place[:2] for place in selected.undecided if place[:2] not in there)
    without = (MethodRow(dataset=one, algorithm=other, domains={}) for one, other in nothing)
    return in_order([*rows, *without])


def _benchmark(rule: str, rows: Sequence[MethodRow]) -> Benchmark:
    columns = dict.fromkeys(row.dataset for row in rows)
    methods = {
        name: GridMethod(
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


def _by_domain(dataset: str, rows: Sequence[MethodRow], domains: Sequence[str]) -> Benchmark:
    methods = {row.algorithm: GridMethod(row.algorithm, _known(row.domains)) for row in rows}
    columns = {domain: domain for domain in domains}
    return Benchmark(f"{dataset}, by test domain", f"tab:{dataset}", columns, methods)


def _methods(rows: Sequence[MethodRow]) -> list[str]:
    """Return the methods in their order, which that of the first data set need not hold all of."""
    return list(dict.fromkeys(row.algorithm for row in sorted(rows, key=by_method)))


def _beside(ours: Benchmark, published: Benchmark | None) -> list[Grid]:
    found = None if published is None else beside(ours, published)
    return [] if found is None else [found]


def _remarks(tables: Sequence[Grid]) -> Iterable[str]:
    """Yield how the published cells among these were obtained, where today's code differs."""
    published = [table for table in tables if not table.summary]
    for line in method_remarks({row.name: row.name for table in published for row in table.lines}):
        yield f"Published cells of {line}"


def _worst(rows: Sequence[MethodRow]) -> ExtraColumn:
    return ExtraColumn("Worst", _known({row.algorithm: row.worst for row in rows}))


def _calibration(rows: Sequence[MethodRow]) -> ExtraColumn:
    cells = {row.algorithm: row.calibration_error for row in rows}
    return ExtraColumn("ECE", _known(cells), smallest_first=True)


def _known(cells: Mapping[str, TrialMean | None]) -> dict[str, Accuracy]:
    """Return those that are numbers; DomainBed, for one, records no calibration error."""
    return {
        name: _percent(cell)
        for name, cell in cells.items()
        if cell is not None and not math.isnan(cell.mean)
    }


def _pairs(rows: Sequence[MethodRow], asked: Sequence[MethodPair]) -> list[MethodPair]:
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


def _percent(cell: TrialMean) -> Accuracy:
    return Accuracy(100 * cell.mean, 100 * cell.error if cell.trials > 1 else None)
