"""Table findings: columns that give the class away, gaps that give the domain away, equal rows."""

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import torch

from ..datasets.folders import first_few
from ..datasets.tables import TableData
from .domain_shift import describe_shift, domain_accuracy
from .rules import RuleScore, score_categories, score_numbers

Array = np.ndarray[Any, Any]
# A column gives the class away if a rule on it alone is right this often, and avoids this share of
# the errors of always saying the most frequent class.
RIGHT, SKILL = 0.99, 0.9
# Rows that a table, or a domain, must have to be judged.
LEAST_ROWS, LEAST_OF_DOMAIN = 20, 10
# A column is missing in nearly all rows of a domain, and hardly in another.
NEARLY_ALL, HARDLY = 0.9, 0.1
# Equal rows are news if there are this many times as many as columns that are shuffled give.
UNEXPECTED = 10


class EncodedColumn(NamedTuple):
    """One column of a table: numbers with NaN or codes of categories, and where it is missing."""

    name: str
    values: Array
    is_number: bool
    missing: Array


class Rows(NamedTuple):
    """All rows of a table, domain by domain.

    Args:
        vectors: as a network takes them, ``[n, d]``.
        labels, domains: the numbers of every row's class and domain, ``[n]``.
        numbers: of the rows in the file, from 1, ``[n]``.
    """

    vectors: Array
    labels: Array
    domains: Array
    numbers: Array


def find_in_table(table: TableData) -> list[str]:
    """Return the notes on a table's content, a line each."""
    rows = rows_of(table)
    columns = list(columns_of(table, rows.vectors))
    names = [column.name for column in table.encoding.columns for _ in range(column.width)]
    # A column that names the domain is known already, and would hide the others.
    told = [k for k, name in enumerate(names) if table.repeats.get(name) != "domain"]
    shift = domain_accuracy(rows.vectors[:, told], [names[k] for k in told], rows.domains)
    return [
        *_giveaways(table, columns, rows),
        *_gaps(table.dataset.names, columns, rows),
        *_equal_rows(table.dataset.names, columns, rows),
        *describe_shift(shift, "columns"),
    ]


def rows_of(table: TableData) -> Rows:
    """Return all rows of a table as arrays."""
    domains = table.dataset.domains
    sizes = [len(domain) for domain in domains]
    return Rows(
        torch.cat([domain.tensor for domain in domains]).numpy(),
        torch.cat([domain.labels for domain in domains]).numpy(),
        np.repeat(np.arange(len(domains)), sizes),
        np.concatenate([np.asarray(table.rows[domain.name]) for domain in domains]),
    )


def columns_of(table: TableData, vectors: Array) -> Iterator[EncodedColumn]:
    """Yield the columns that a model sees, out of the vectors of the rows."""
    start = 0
    for column in table.encoding.columns:
        part = vectors[:, start : start + column.width]
        start += column.width
        if column.values is None:
            yield EncodedColumn(column.name, part[:, 0], True, np.isnan(part[:, 0]))
        else:
            codes = part.argmax(1)
            empty = column.values.index("") if "" in column.values else -1
            yield EncodedColumn(column.name, codes, False, codes == empty)


def _giveaways(table: TableData, columns: Sequence[EncodedColumn], rows: Rows) -> list[str]:
    """Return notes on columns that alone give the class, unless they are known to repeat it."""
    if len(rows.labels) < LEAST_ROWS:
        return []
    found = []
    for column in columns:
        if table.repeats.get(column.name) == "class":
            continue
        rule = score_numbers if column.is_number else score_categories
        what, score = f"the column {column.name!r}", rule(column.values, rows.labels)
        if column.missing.any() and not column.missing.all():
            gap = score_categories(column.missing.astype(np.int64), rows.labels)
            if gives_away(gap):
                what, score = f"whether the column {column.name!r} is missing", gap
        if gives_away(score):
            found.append(
                f"{what} alone gives the class in {100 * score.accuracy:.1f} % of the rows (the "
                f"most frequent class: {100 * score.majority:.1f} %); if it is not known before "
                f"the class is, the model will fail on new rows: --leave-out {quote(column.name)}"
            )
    return found


def gives_away(score: RuleScore) -> bool:
    """Return whether a rule is nearly always right where the most frequent class is not."""
    return score.accuracy >= RIGHT and score.skill >= SKILL


def _gaps(names: Sequence[str], columns: Sequence[EncodedColumn], rows: Rows) -> list[str]:
    """Return notes on columns that are missing in some domains only, together if in the same."""
    counts = np.bincount(rows.domains, minlength=len(names))
    found: dict[tuple[str, ...], list[tuple[str, float, float]]] = {}
    for column in columns:
        if not column.missing.any():
            continue
        missing = np.bincount(rows.domains, column.missing, minlength=len(names))
        share = {
            name: missing[k] / counts[k]
            for k, name in enumerate(names)
            if counts[k] >= LEAST_OF_DOMAIN
        }
        high = tuple(name for name, one in share.items() if one >= NEARLY_ALL)
        low = [one for one in share.values() if one <= HARDLY]
        if high and low:
            least = min(share[name] for name in high)
            found.setdefault(high, []).append((column.name, least, max(low)))
    notes = []
    for high, lines in found.items():
        several = len(lines) > 1
        listed = first_few([repr(name) for name, _, _ in lines])
        what = f"the columns {listed} are" if several else f"the column {listed} is"
        least, most = min(line[1] for line in lines), max(line[2] for line in lines)
        notes.append(
            f"{what} missing in {'at least ' * (len(high) > 1 or several)}{100 * least:.0f} % of "
            f"the rows of {first_few([repr(name) for name in high])}, and in {_at_most(most)} of "
            f"the rows of other domains; a model can tell the domain by the gap, so fill "
            f"{'them' if several else 'it'} in or use --leave-out "
            f"{' '.join(quote(name) for name, _, _ in lines)}"
        )
    return notes


def _at_most(share: float) -> str:
    return f"at most {100 * share:.0f} %" if share else "none"


def _equal_rows(names: Sequence[str], columns: Sequence[EncodedColumn], rows: Rows) -> list[str]:
    """Return notes on rows that are equal in every column that a model sees.

    Rows of a few categories are equal by chance. So they are compared with rows whose columns are
    shuffled, each on its own.
    """
    values = [column.values for column in columns]
    groups = _equal_groups(values)
    random = np.random.RandomState(0)
    by_chance = _equal_groups([random.permutation(column) for column in values])
    if not groups or _count(groups) < UNEXPECTED * _count(by_chance):
        return []
    across = [group for group in groups if len(set(rows.domains[group])) > 1]
    within = [group for group in groups if len(set(rows.domains[group])) == 1]
    wrong = [group for group in groups if len(set(rows.labels[group])) > 1]

    def examples(some: Sequence[Array]) -> str:
        lines = [
            " = ".join(f"row {rows.numbers[k]} ({names[rows.domains[k]]})" for k in group[:3])
            for group in some
        ]
        return first_few(lines)

    found = []
    if across:
        found.append(
            f"{_count(across):,} rows are equal to a row of another domain in every column that "
            "the model sees, so scores on a held-out domain may be too high; if they are copies, "
            f"remove them: {examples(across)}"
        )
    if within:
        found.append(
            f"{_count(within):,} rows are equal to another row of the same domain in every column "
            "that the model sees, so scores on seen domains may be too high; if they are copies, "
            f"remove them, or keep each set together with --group-column: {examples(within)}"
        )
    if wrong:
        found.append(
            f"{_count(wrong):,} rows are equal to a row of another class in every column that the "
            f"model sees, and no model can tell them apart: {examples(wrong)}"
        )
    return found


def _count(groups: Sequence[Array]) -> int:
    return sum(map(len, groups))


def _equal_groups(columns: Sequence[Array]) -> list[Array]:
    """Return the places of rows that are equal, for every row that occurs more than once."""
    table = np.stack(columns, 1).astype(np.float32)
    table[np.isnan(table)] = np.nan  # all with the same bits
    places: dict[bytes, list[int]] = {}
    for place, row in enumerate(table + np.float32(0)):  # −0 becomes 0
        places.setdefault(row.tobytes(), []).append(place)
    return [np.array(found) for found in places.values() if len(found) > 1]
