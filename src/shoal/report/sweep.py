"""The report of a sweep: for each selection rule its tables, differences and notes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..catalogue import by_method, in_order, title_of
from ..results.aggregation import (
    Comparison,
    MethodRow,
    TrialMean,
    compare,
    compare_over_domains,
    one_decimal,
    rows_of,
)
from ..results.averages import without_averages
from ..results.best_of_n import BestOfN, best_of_n, shown_numbers
from ..results.records import Failure, RunResult
from ..results.selection import Choice, Selection, select
from .comparable import find_departures, not_compared_lines
from .grid import (
    BASELINE,
    Accuracy,
    Benchmark,
    ExtraColumn,
    Grid,
    GridEntry,
    GridLine,
    GridMethod,
    grid,
    published_grid,
    signed,
)
from .notes import (
    Twins,
    by_chance_lines,
    diverged_runs,
    doubled_lines,
    doubled_methods,
    lost_draw_lines,
    no_average_lines,
    no_number_lines,
    not_recorded_lines,
    training_line,
    twins,
    undecided_lines,
    uneven_lines,
)
from .published import COLORED_MNIST, method_remarks, published_cells, published_domains

PAIRED = (
    "Paired differences are in points, mean ± standard error over the (data set, test domain, "
    "trial) that both methods have, – if there are fewer than two; p is from the sign test. Over "
    "domains, the trials of a domain are averaged first: they are no new domains, so this is the "
    "error for a domain that was never seen"
)
SEARCHED = (
    "If the search had n draws: the accuracy to expect of the draw that the rule chooses among n "
    "random ones of these, the mean over test domains ± the standard error over trials. Where it "
    "still rises at the end, more draws would help"
)
HEADINGS = ("Difference", "Pairs", "Won", "Lost", "p", "Over domains", "Domains")

MethodPair = tuple[str, str]


def paired(choices: Sequence[Choice], pairs: Iterable[MethodPair], label: str) -> Grid:
    """Return the accuracy of the first method of each pair minus that of the second."""
    mine = _by_method(choices)
    # The key is part of the JSON format.
    keys = {f"{one} less {other}": (one, other) for one, other in pairs}
    names = {key: f"{title_of(one)} minus {title_of(other)}" for key, (one, other) in keys.items()}
    title = "Accuracy of one method minus that of another, paired"
    return _paired_grid(title, label, mine, keys, names)


def against_each(choices: Sequence[Choice]) -> dict[str, Grid]:
    """Return, for each method, the accuracies of all others minus its own; the baseline first."""
    mine = _by_method(choices)
    found = {}
    for other in mine:
        keys = {one: (one, other) for one in mine if one != other}
        names = {one: title_of(one) for one in keys}
        found[other] = _paired_grid(f"Minus {title_of(other)}", "", mine, keys, names)
    return found


def _paired_grid(
    title: str,
    label: str,
    choices: Mapping[str, Sequence[Choice]],
    pairs: Mapping[str, MethodPair],
    names: Mapping[str, str],
) -> Grid:
    lines = tuple(
        GridLine(name=names[key], key=key, cells=_entries(choices, pair))
        for key, pair in pairs.items()
    )
    return Grid(title=title, label=label, columns=HEADINGS, lines=lines)


def _entries(choices: Mapping[str, Sequence[Choice]], pair: MethodPair) -> tuple[GridEntry, ...]:
    one, other = pair
    both = [*choices.get(one, ()), *choices.get(other, ())]
    found, over_domains = comparisons(both, one, other)
    if found is None:
        return (GridEntry(),) * len(HEADINGS)
    counts = [GridEntry(str(count)) for count in (found.pairs, found.wins, found.losses)]
    entries = [_difference(found), *counts, GridEntry(f"{found.p:.3f}")]
    if over_domains is None:
        return (*entries, GridEntry(), GridEntry())
    return (*entries, _difference(over_domains), GridEntry(str(over_domains.pairs)))


def comparisons(
    choices: Sequence[Choice], one: str, other: str
) -> tuple[Comparison | None, Comparison | None]:
    """Return the comparison over all pairs and the one over domains; None with fewer than two."""
    try:
        found = compare(choices, one, other)
    except ValueError:
        return None, None
    try:
        return found, compare_over_domains(choices, one, other)
    except ValueError:
        return found, None


def _difference(found: Comparison) -> GridEntry:
    return GridEntry(signed(100 * found.difference), one_decimal(100 * found.error))


def _by_method(choices: Sequence[Choice]) -> dict[str, list[Choice]]:
    """Return the choices of each method, methods in the order of the catalogue."""
    found: dict[str, list[Choice]] = {}
    for choice in sorted(choices, key=by_method):
        found.setdefault(choice.algorithm, []).append(choice)
    return found


FURTHER = (
    "By test domain: Worst is the accuracy on the worst domain of a trial. ECE is the expected "
    "calibration error in %, the mean over the domains, – if it was not recorded; lower is better"
)


@dataclass(frozen=True, kw_only=True)
class RuleReport:
    """The tables and notes of one selection rule.

    Args:
        tables: by data set; ``by_domain``: by test domain of each data set. Published cells follow
            ours, if there are any.
        paired: the table of differences between methods, if there are several; ``pairs`` are these
            methods.
        best_of_n: by data set, if there are several draws.
        lines: notes. They begin with those of ``about``: what was trained, why something is not
            compared with published cells, and averages.
        cautions: notes to read before the tables.
        choices, rows: the data of the tables.
    """

    rule: str
    tables: tuple[Grid, ...]
    by_domain: tuple[Grid, ...]
    paired: tuple[Grid, ...]
    best_of_n: tuple[Grid, ...]
    lines: tuple[str, ...]
    cautions: tuple[str, ...]
    about: tuple[str, ...]
    choices: tuple[Choice, ...]
    rows: tuple[MethodRow, ...]
    pairs: tuple[MethodPair, ...]

    @property
    def all_tables(self) -> tuple[Grid, ...]:
        """All tables, in reading order."""
        return (*self.tables, *self.by_domain, *self.paired, *self.best_of_n)


def rule_reports(
    runs: Iterable[RunResult],
    rules: Iterable[str],
    compared: Sequence[MethodPair] = (),
    failed: Iterable[Failure] = (),
) -> list[RuleReport]:
    """Return a report for each rule that can choose among these runs.

    Args:
        compared: methods to compare with each other, as well as all with the baseline.
        failed: runs that failed; those that diverged count as tried.
    """
    runs = in_order(runs)
    domains, both, given_up = domains_of(runs), twins(without_averages(runs)), diverged_runs(failed)
    lacking = list(not_recorded_lines(runs))
    found = []
    for rule in rules:
        selected = select(runs, rule, given_up)
        if selected.choices:
            found.append(_rule_report(rule, selected, domains, compared, both, lacking))
    return found


def no_choice_message(runs: Sequence[RunResult], rules: Sequence[str]) -> str:
    """Return the message for runs that no rule can choose among."""
    count = len(without_averages(runs))
    return (
        f"{' or '.join(rules)} cannot choose among these {count:,} runs: the rule needs other "
        "runs, or a value that was not recorded; try another --rule"
    )


def domains_of(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Return the domains of each data set, in the order of its records."""
    found: dict[str, list[str]] = {}
    for run in runs:
        mine = found.setdefault(run.dataset, [])
        mine += [domain for domain in run.records[0].accuracy if domain not in mine]
    return found


def _rule_report(
    rule: str,
    selected: Selection,
    domains: Mapping[str, Sequence[str]],
    compared: Sequence[MethodPair],
    both: Twins,
    lacking: Sequence[str],
) -> RuleReport:
    choices, rows = _ordered(selected.choices, domains), _rows(selected, domains)
    whole, names = _benchmark(rule, rows), dict.fromkeys(row.dataset for row in rows)
    published = published_cells(rule)
    published_by_domain = {name: published_domains(name, rule) for name in names}
    different = find_departures(choices, published, published_by_domain, doubled_methods(both))
    alike = [row for row in rows if (row.dataset, row.algorithm) not in different]
    tables = [grid(whole), *_published(_benchmark(rule, alike), published)]
    by_domain: list[Grid] = []
    for name, theirs in published_by_domain.items():
        mine, own = ([row for row in some if row.dataset == name] for some in (rows, alike))
        further = [_worst(mine), _calibration(mine)]
        by_domain.append(grid(_by_domain(name, mine, domains[name]), further=further))
        by_domain += _published(_by_domain(name, own, domains[name]), theirs)
    about = [training_line(choices), *not_compared_lines(different)]
    about += [*_remarks([*tables, *by_domain]), *lost_draw_lines(choices)]
    about += [*undecided_lines(selected.undecided), *no_number_lines(choices)]
    about += no_average_lines(rows)
    about += _without_colored_mnist(whole)
    pairs = _pairs(rows, compared)
    searched = best_of_n(choices)
    cautions = [*doubled_lines(both), *uneven_lines(choices, selected.undecided), *lacking]
    return RuleReport(
        rule=rule,
        tables=tuple(tables),
        by_domain=tuple(by_domain),
        paired=(paired(choices, pairs, f"tab:{rule}-paired"),) if pairs else (),
        best_of_n=tuple(best_of_n_grids(searched)),
        lines=(*about, FURTHER, *([PAIRED] if pairs else []), *([SEARCHED] if searched else [])),
        cautions=(*cautions, *by_chance_lines(choices)),
        about=tuple(about),
        choices=tuple(choices),
        rows=tuple(rows),
        pairs=tuple(pairs),
    )


def best_of_n_grids(curves: Sequence[BestOfN]) -> Iterator[Grid]:
    """Yield a table for each data set: the accuracy of every method if it had n draws."""
    for dataset in dict.fromkeys(curve.dataset for curve in curves):
        mine = [curve for curve in curves if curve.dataset == dataset]
        numbers = shown_numbers(max(len(curve.accuracies) for curve in mine))
        lines = tuple(
            GridLine(
                name=title_of(curve.algorithm),
                key=curve.algorithm,
                cells=tuple(_best_entry(curve, n) for n in numbers),
            )
            for curve in mine
        )
        yield Grid(
            title=f"{dataset}, if the search had n draws",
            label=f"tab:{dataset}-best-of-n",
            columns=tuple(f"n = {n}" for n in numbers),
            lines=lines,
        )


def _best_entry(curve: BestOfN, n: int) -> GridEntry:
    if n > len(curve.accuracies):
        return GridEntry()
    cell = curve.accuracies[n - 1]
    error = one_decimal(100 * cell.error) if cell.trials > 1 else ""
    return GridEntry(one_decimal(100 * cell.mean), error)


def _ordered(choices: Sequence[Choice], domains: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Return the choices of each method by test domain and trial."""

    def place(one: Choice) -> tuple[int, int]:
        return list(domains[one.dataset]).index(one.test_domain), one.trial

    return in_order(sorted(choices, key=place))


def _rows(selected: Selection, domains: Mapping[str, Sequence[str]]) -> list[MethodRow]:
    """Return a row for each data set and method, without cells if nothing was chosen."""
    rows = rows_of(selected.choices, domains)
    there = {(row.dataset, row.algorithm) for row in rows}
    nothing = dict.fromkeys(place[:2] for place in selected.undecided if place[:2] not in there)
    without = (MethodRow(dataset=one, algorithm=other, domains={}) for one, other in nothing)
    return in_order([*rows, *without])


def _benchmark(rule: str, rows: Sequence[MethodRow]) -> Benchmark:
    columns = dict.fromkeys(row.dataset for row in rows)
    methods = {
        name: GridMethod(
            title_of(name),
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
    methods = {
        row.algorithm: GridMethod(title_of(row.algorithm), _known(row.domains)) for row in rows
    }
    columns = {domain: domain for domain in domains}
    return Benchmark(f"{dataset}, by test domain", f"tab:{dataset}", columns, methods)


def _methods(rows: Sequence[MethodRow]) -> list[str]:
    """Return the methods of all data sets in the order of the catalogue."""
    return list(dict.fromkeys(row.algorithm for row in sorted(rows, key=by_method)))


def _published(ours: Benchmark, published: Benchmark | None) -> list[Grid]:
    found = None if published is None else published_grid(ours, published)
    return [] if found is None else [found]


def _remarks(tables: Sequence[Grid]) -> Iterable[str]:
    """Yield how the published cells among these were obtained, if today's code differs."""
    published = [table for table in tables if not table.summary]
    for line in method_remarks({row.key: row.name for table in published for row in table.lines}):
        yield f"Published cells of {line}"


def _worst(rows: Sequence[MethodRow]) -> ExtraColumn:
    return ExtraColumn("Worst", _known({row.algorithm: row.worst for row in rows}))


def _calibration(rows: Sequence[MethodRow]) -> ExtraColumn:
    cells = {row.algorithm: row.calibration_error for row in rows}
    return ExtraColumn("ECE", _known(cells), smallest_first=True)


def _known(cells: Mapping[str, TrialMean | None]) -> dict[str, Accuracy]:
    """Return the cells that are numbers; DomainBed, for one, records no calibration error."""
    return {
        name: _percent(cell)
        for name, cell in cells.items()
        if cell is not None and not math.isnan(cell.mean)
    }


def _pairs(rows: Sequence[MethodRow], asked: Sequence[MethodPair]) -> list[MethodPair]:
    """Return every method with the baseline, and the pairs that the user named."""
    names = _methods(rows)
    to_baseline = [(name, BASELINE) for name in names if BASELINE in names and name != BASELINE]
    return [*to_baseline, *asked]


def _without_colored_mnist(whole: Benchmark) -> Iterable[str]:
    """Yield the averages without Colored MNIST, as in the paper's text, given other data sets."""
    if set(whole.columns) > COLORED_MNIST:
        found = whole.averages(COLORED_MNIST)
        ordered = sorted(found, key=lambda name: -found[name])
        listed = ", ".join(f"{title_of(name)} {one_decimal(found[name])}" for name in ordered)
        yield f"Average without colored-mnist: {listed or 'no method has all data sets'}"


def _percent(cell: TrialMean) -> Accuracy:
    return Accuracy(100 * cell.mean, 100 * cell.error if cell.trials > 1 else None)
