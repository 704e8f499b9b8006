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
# An odd number with as many ones as zeros, which spreads the bits of a product.
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


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
    known = {name for name, kind in table.repeats.items() if kind == "domain"}
    shift = domain_accuracy(rows.vectors, names, rows.domains, known)
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
        table.vectors.numpy(),
        torch.cat([domain.labels for domain in domains]).numpy(),
        np.repeat(np.arange(len(domains)), sizes),
        np.concatenate([table.rows[domain.name] for domain in domains]),
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
    if not groups:
        return []
    random = np.random.RandomState(0)
    by_chance = _hashes(random.permutation(column) for column in values)
    if _count(groups) < UNEXPECTED * sum(map(len, _repeated(by_chance))):
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
    groups = _repeated(_hashes(iter(columns)))
    if not groups:
        return []
    # Different rows can have one hash, so neighbours with the same one are compared.
    order = np.concatenate(groups)
    unlike = np.zeros(len(order), dtype=bool)
    for column in columns:
        bits = _bits(column[order])
        unlike[1:] |= bits[1:] != bits[:-1]
    found = []
    begins = np.cumsum([0, *map(len, groups[:-1])])
    unlike[begins] = False
    mixed = np.logical_or.reduceat(unlike, begins)
    for group, is_mixed in zip(groups, mixed.tolist(), strict=True):
        found += _parts_of(columns, group) if is_mixed else [group]
    return sorted(found, key=lambda group: int(group[0]))


def _parts_of(columns: Sequence[Array], places: Array) -> list[Array]:
    """Return those of these places that have equal rows, together."""
    rows = np.stack([_bits(column[places]) for column in columns], 1)
    parts = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    found = [places[parts == part] for part in np.unique(parts)]
    return [part for part in found if len(part) > 1]


def _repeated(hashes: Array) -> list[Array]:
    """Return the places of every hash that occurs more than once, in ascending order."""
    order = np.argsort(hashes, kind="stable")
    begins = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]))
    sizes = np.diff(begins, append=len(order))
    several = sizes > 1
    pairs = zip(begins[several].tolist(), sizes[several].tolist(), strict=True)
    return [order[begin : begin + size] for begin, size in pairs]


def _hashes(columns: Iterator[Array]) -> Array:
    """Return 64 bits for every row; two different rows in a million share theirs by 1 in 10⁷."""
    found: Array = np.zeros(1, dtype=np.uint64)
    for column in columns:
        found = (found ^ _bits(column)) * MULTIPLIER
        found ^= found >> np.uint64(32)
    return found


def _bits(values: Array) -> Array:
    """Return the bits of numbers as float32, equal if they are; all gaps are equal, as are ±0."""
    numbers = values.astype(np.float32) + np.float32(0)  # −0 becomes 0
    numbers[np.isnan(numbers)] = np.nan
    found: Array = numbers.view(np.uint32)
    return found
