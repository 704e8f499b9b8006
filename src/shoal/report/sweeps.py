"""Sweeps, ours and DomainBed's, as tables: by data set, by domain, beside published cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.protocol.aggregation import Cell, Comparison, Row, compare, rows_of
from shoal.protocol.ranking import printed
from shoal.protocol.records import Finished
from shoal.protocol.selection import CALIBRATED, RULES, Choice, choose_runs
from shoal.report.benchmark import (
    BASELINE,
    Accuracy,
    Benchmark,
    Method,
    departures,
    network_of,
)
from shoal.report.grid import Grid, beside, grid
from shoal.report.published import COLORED_MNIST, published_cells, published_domains

__all__ = ["ALL_RULES", "Chapter", "chapter", "chapters", "domains_of"]

ALL_RULES = (*RULES, CALIBRATED)


@dataclass(frozen=True)
class Chapter:
    """What one selection rule gives: tables, and lines that say what to know of them.

    ``cautions`` are to be read before the tables. The lines begin with those of ``about``: what was
    trained, and why something is not compared with published cells.
    """

    rule: str
    tables: tuple[Grid, ...]
    lines: tuple[str, ...]
    cautions: tuple[str, ...]
    about: tuple[str, ...]


def chapters(runs: Sequence[Finished], rules: Iterable[str]) -> list[Chapter]:
    """Return a chapter for each rule that these runs have something for."""
    domains = domains_of(runs)
    found = (chapter(rule, choose_runs(runs, rule), domains) for rule in rules)
    return [one for one in found if one is not None]


def domains_of(runs: Sequence[Finished]) -> dict[str, list[str]]:
    """Return the domains of each data set, in the order of its records."""
    found: dict[str, list[str]] = {}
    for run in runs:
        mine = found.setdefault(run.dataset, [])
        mine += [domain for domain in run.measured[0].accuracy if domain not in mine]
    return found


def chapter(
    rule: str, choices: Sequence[Choice], domains: Mapping[str, Sequence[str]]
) -> Chapter | None:
    """Return what these choices of a rule give; None where there are none.

    Args:
        domains: of each data set, in the order to show them.
    """
    rows = sorted(rows_of(choices, domains), key=lambda row: list(domains).index(row.dataset))
    if not rows:
        return None
    whole = _benchmark(rule, rows)
    names = list(dict.fromkeys(row.dataset for row in rows))
    published = published_cells(rule)
    by_domain = {name: published_domains(name, rule) for name in names}
    departed = _departed(choices, published, by_domain)
    alike = [row for row in rows if (row.dataset, row.algorithm) not in departed]
    tables = [grid(whole), *_beside(_benchmark(rule, alike), published)]
    for name in names:
        mine, own = ([row for row in some if row.dataset == name] for some in (rows, alike))
        tables.append(grid(_by_domain(name, mine, domains[name]), ranked=False))
        tables += _beside(_by_domain(name, own, domains[name]), by_domain[name])
    about = [_trained(choices), *_not_compared(departed)]
    lines = [*about, *_lines(choices, rows), *_without_colored_mnist(whole)]
    return Chapter(rule, tuple(tables), tuple(lines), tuple(_uneven(choices)), tuple(about))


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


def _trained(choices: Sequence[Choice]) -> str:
    """Return what was trained, data sets of the same setup together."""
    setups: dict[str, list[str]] = {}
    for dataset, mine in _grouped(choices, "dataset").items():
        made = " or ".join(dict.fromkeys(_made(choice.run) for choice in mine))
        methods = _grouped(mine, "algorithm").values()
        trials = _range([len({choice.trial for choice in own}) for own in methods])
        draws = _range([choice.draws for choice in mine])
        text = f"{made}, {_counted(trials, 'trial')}, {_counted(draws, 'draw')}"
        setups.setdefault(text, []).append(dataset)
    return "Trained " + "; ".join(f"on {', '.join(sets)}: {text}" for text, sets in setups.items())


def _made(run: Finished) -> str:
    if not run.protocol:
        return "network, weights, steps and precision not recorded"
    network = network_of(run) or "the network of the inputs' shape"
    weights = run.protocol.get("weights")
    known = {None: "drawn weights", "imagenet": "ImageNet weights"}
    begun = known.get(weights, f"the weights of the file {str(weights)[:8]}")
    return f"{network} with {begun}, {run.protocol['steps']:,} steps, {run.precision}"


def _beside(ours: Benchmark, published: Benchmark | None) -> list[Grid]:
    found = None if published is None else beside(ours, published)
    return [] if found is None else [found]


def _departed(
    choices: Sequence[Choice],
    published: Benchmark | None,
    by_domain: Mapping[str, Benchmark | None],
) -> dict[tuple[str, str], dict[str, None]]:
    """Return in what the runs of data sets and methods are not as those of the published cells."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for choice in choices:
        whole = published if published and choice.dataset in published.columns else None
        tables = [table for table in (whole, by_domain[choice.dataset]) if table is not None]
        if any(choice.algorithm in table.methods for table in tables):
            for departure in departures(choice.run, choice.draws):
                found.setdefault((choice.dataset, choice.algorithm), {})[departure] = None
    return found


def _not_compared(departed: Mapping[tuple[str, str], Iterable[str]]) -> list[str]:
    """Return the line that says what is not compared, and why; none where all is."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (dataset, algorithm), found in departed.items():
        reasons.setdefault((dataset, ", ".join(found)), []).append(algorithm)
    alike: dict[str, list[str]] = {}
    for (dataset, why), methods in reasons.items():
        alike.setdefault(f"{', '.join(methods)} ({why})", []).append(dataset)
    listed = [f"{', '.join(datasets)}: {text}" for text, datasets in alike.items()]
    return [f"Not compared with the published cells: {'; '.join(listed)}"] if listed else []


def _uneven(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield which data sets have methods with unequal draws, trials or test domains."""
    for dataset, mine in _grouped(choices, "dataset").items():
        methods = _grouped(mine, "algorithm")
        draws = {name: [one.draws for one in own] for name, own in methods.items()}
        if listed := _unequal(draws):
            yield (
                f"{dataset}: chosen of unequally many draws ({listed}). The best of more draws is "
                "better, so finish the sweep before you compare"
            )
        domains = {name: Counter(one.test_domain for one in own) for name, own in methods.items()}
        if listed := _unequal({name: [*trials.values()] for name, trials in domains.items()}):
            yield (
                f"{dataset}: unequally many trials ({listed}). Means over different trials differ "
                "by their splits, too: read the paired differences, or finish the sweep"
            )
        every = dict.fromkeys(one.test_domain for one in mine)
        for name, own_domains in domains.items():
            if missing := [domain for domain in every if domain not in own_domains]:
                yield (
                    f"{dataset}: {name} lacks test domains that others have "
                    f"({', '.join(missing)}), so finish the sweep before you compare"
                )


def _unequal(counts: Mapping[str, Sequence[int]]) -> str:
    """Return the counts by method; nothing where all are equal."""
    if len({count for own in counts.values() for count in own}) == 1:
        return ""
    return ", ".join(f"{name} {_range(own)}" for name, own in counts.items())


def _grouped(choices: Sequence[Choice], by: str) -> dict[str, list[Choice]]:
    """Return the choices by an attribute of theirs, such as the data set."""
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(getattr(choice, by), []).append(choice)
    return found


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def _lines(choices: Sequence[Choice], rows: Sequence[Row]) -> Iterable[str]:
    for row in rows:
        if row.worst is not None and row.calibration_error is not None:
            yield (
                f"{row.dataset}, {row.algorithm}: {_text(row.worst)} on the worst domain, "
                f"calibration error {_text(row.calibration_error)}, "
                f"{_counted(str(row.worst.trials), 'trial')}"
            )
        else:
            yield f"{row.dataset}, {row.algorithm}: not all test domains in all trials, no average"
    for name in _methods(rows):
        if name != BASELINE and any(row.algorithm == BASELINE for row in rows):
            try:
                found = _compared(compare(choices, name, BASELINE))
            except ValueError as error:
                found = str(error)
            yield f"{name} less {BASELINE}, paired: {found}"


def _without_colored_mnist(whole: Benchmark) -> Iterable[str]:
    """Yield the average that the paper's text gives, where there are other data sets."""
    if set(whole.columns) > COLORED_MNIST:
        found = whole.averages(COLORED_MNIST)
        ordered = sorted(found, key=lambda name: -found[name])
        listed = ", ".join(f"{name} {printed(found[name])}" for name in ordered)
        yield f"Average without colored-mnist: {listed or 'no method has all data sets'}"


def _compared(found: Comparison) -> str:
    difference, error = 100 * found.difference, 100 * found.error
    return (
        f"{difference:+z.1f} ± {error:.1f} points over {found.pairs} of (data set, test domain, "
        f"trial), {found.wins} won and {found.losses} lost, p = {found.p:.3f} by the sign test"
    )


def _percent(cell: Cell) -> Accuracy:
    return Accuracy(100 * cell.mean, 100 * cell.error if cell.trials > 1 else None)


def _text(cell: Cell) -> str:
    if math.isnan(cell.mean):
        return "not recorded"
    error = f" ± {100 * cell.error:.1f}" if cell.trials > 1 else ""
    return f"{100 * cell.mean:.1f}{error} %"


def _counted(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"
