"""Tables: CSV and Parquet files of numbers and categories, as data sets of vectors."""

import csv
import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..choices import choose
from ..files import TABLE_BYTES, UnfitFile, open_file, read_text
from .base import Domain, DomainDataset
from .domain_columns import DomainColumns, as_list, domain_names, split_unit, texts_of
from .encoding import Encoding, infer_encoding, value_or_none
from .folders import is_image
from .groups import Groups
from .manifest import COLUMNS, DELIMITERS

SUFFIXES = (".csv", ".tsv", ".parquet")


def is_table(path: Path) -> bool:
    """Return whether the suffix is that of a table."""
    return path.suffix.lower() in SUFFIXES


def read_table(path: Path, wrong: dict[int, str] | None = None) -> dict[str, Sequence[Any]]:
    """Return the columns of a CSV or Parquet file by name; a missing value is None.

    Args:
        wrong: receives the reasons why lines of a CSV file cannot be read (too few or too many
            fields), by the number of their row from 0; all values of such a row are missing.
            Without it such a line is an error.
    """
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.suffix.lower() == ".parquet":
        table = _read_parquet(path)
    elif path.suffix.lower() in SUFFIXES:
        table = _read_csv(path, wrong)
    else:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    if not table or not len(next(iter(table.values()))):
        raise ValueError(f"{path} has no rows")
    return table


def column_names(path: Path) -> list[str]:
    """Return the columns of a CSV file; only its first line is read, if it is good."""
    try:
        with open_file(path, TABLE_BYTES) as file:
            first = file.readline().decode("utf-8-sig")
            reader = csv.reader([first], delimiter=max(DELIMITERS, key=first.count), strict=True)
            return [name.strip() for name in next(reader)]
    except (OSError, ValueError, csv.Error, StopIteration):
        return list(read_table(path))  # which raises the better error


def _read_csv(path: Path, wrong: dict[int, str] | None) -> dict[str, Sequence[Any]]:
    # Not str.splitlines, which also splits within fields.
    lines = list(io.StringIO(read_text(path, TABLE_BYTES), newline=""))
    first = lines[0] if lines else ""
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        rows: list[Sequence[str | None]] = []
        for row in filter(None, reader):
            if len(row) == len(header):
                rows.append(row)
                continue
            why = f"line {reader.line_num} must have {len(header)} fields, got {len(row)}"
            if wrong is None:
                raise ValueError(f"{path}: {why}")
            wrong[len(rows)] = why
            rows.append([None] * len(header))
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num} is not CSV: {error}") from error
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has two columns {twice[0]!r}; rename or remove one of them")
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def _read_parquet(path: Path) -> dict[str, Sequence[Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Parquet files are read by pyarrow, which is not installed: "
            "pip install 'shoal[tables]'",
            name="pyarrow",
        ) from error
    try:
        with open_file(path, TABLE_BYTES) as file:
            found = pyarrow.parquet.read_table(file)
    except UnfitFile:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error
    return {name: found.column(name).to_pylist() for name in found.column_names}


@dataclass(frozen=True, kw_only=True)
class TableData:
    """A table as a data set.

    Args:
        rows: the number of every example's row, from 1, by domain.
        repeats: the columns that a model sees and that determine the class or the domain, and
            which of the two.
        answers: the columns of class and domain; several columns of the domain are a list.
    """

    dataset: DomainDataset
    encoding: Encoding
    rows: Mapping[str, Sequence[int]]
    repeats: Mapping[str, str]
    answers: tuple[str, str | list[str]]


def table_data(
    name: str,
    path: Path,
    class_column: str = "class",
    domain_column: DomainColumns = "domain",
    leave_out: Collection[str] = (),
    group_column: str | None = None,
    keep: Collection[str] = (),
) -> TableData:
    """Return the table as a data set of vectors, domains and classes sorted by name.

    Args:
        class_column: the column to predict.
        domain_column: one or several columns that name the origin of each row, as in
            ``domain_names``. A model does not see them.
        leave_out: other columns that a model must not see.
        group_column: names what each row belongs to, such as a patient; a split keeps the rows of
            one together, and a model does not see it.
        keep: columns of ``domain_column`` that a model does see.
    """
    table = read_table(path)
    _check_columns(path, table, class_column, domain_column, (*leave_out, *keep))
    named = [split_unit(column, table)[0] for column in as_list(domain_column)]
    if group_column is not None:
        _check_column(path, table, "--group-column", group_column)
        named.append(group_column)
    for column in keep:
        if column not in named or column == group_column:
            raise ValueError(
                f"--keep is for columns of --domain-column, and {column!r} is none of them; a "
                "model sees every column that is not named"
            )
    labels = texts_of(table, class_column, path)
    domains = domain_names(table, domain_column, path)
    hidden = {class_column, *named, *leave_out} - set(keep)
    features = {key: values for key, values in table.items() if key not in hidden}
    _check_labels(labels, class_column, path)
    try:
        encoding = infer_encoding(features, [name for name in table if name not in features])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    rows = _rows_by_domain(domains)
    repeats = {
        column.name: kind
        for column in encoding.columns
        for kind, texts in (("domain", domains), ("class", labels))
        if _is_one_to_one(table[column.name], texts)
    }
    dataset = _dataset(name, encoding(table, str(path)), labels, rows)
    if group_column is not None:
        texts = texts_of(table, group_column, path)
        groups = {domain: [texts[row - 1] for row in mine] for domain, mine in rows.items()}
        dataset = replace(dataset, groups=Groups.of(group_column, groups))
    several = as_list(domain_column)
    return TableData(
        dataset=dataset,
        encoding=encoding,
        rows=rows,
        repeats=repeats,
        answers=(class_column, several if len(several) > 1 else several[0]),
    )


def encode_table(
    path: Path, encoding: Encoding, class_column: str, domain_column: DomainColumns
) -> tuple[DomainDataset, Counter[str]]:
    """Return a table in the encoding of a model, and the number of unseen categories by column.

    Columns that the training table had, too, and that the model does not use are ignored.
    """
    table = read_table(path)
    _check_answers(path, table, class_column, domain_column)
    used = {column.name for column in encoding.columns}
    named = {split_unit(column, table)[0] for column in as_list(domain_column)}
    # A model may see a column that names the domain, and does not see the others.
    answers = {class_column, *(named - used)}
    given = {name: values for name, values in table.items() if name not in answers}
    vectors = encoding(given, str(path))
    labels = texts_of(table, class_column, path)
    rows = _rows_by_domain(domain_names(table, domain_column, path))
    unseen = Counter(name for names in encoding.unseen(table).values() for name in names)
    return _dataset(path.stem, vectors, labels, rows), unseen


def _rows_by_domain(domains: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of every domain's rows, from 1."""
    found: dict[str, list[int]] = {name: [] for name in sorted(set(domains))}
    for row, name in enumerate(domains, 1):
        found[name].append(row)
    return found


def _dataset(
    name: str, vectors: Tensor, labels: Sequence[str], rows: Mapping[str, Sequence[int]]
) -> DomainDataset:
    classes = sorted(set(labels))
    numbers = torch.tensor([classes.index(label) for label in labels])
    domains = []
    for domain, mine in rows.items():
        chosen = torch.tensor(mine) - 1
        domains.append(Domain(domain, numbers[chosen], vectors[chosen]))
    return DomainDataset(name, tuple(classes), tuple(domains))


def _check_columns(
    path: Path,
    table: Mapping[str, Sequence[Any]],
    class_column: str,
    domain_column: DomainColumns,
    leave_out: Collection[str],
) -> None:
    """Raise if a column does not exist, or one names images."""
    for column in table:
        if column not in leave_out and _names_images(table[column]):
            raise ValueError(
                f"{path}: the column {column!r} names images. A list of images is a .csv, .tsv or "
                f".json file with the columns {', '.join(COLUMNS)}, and this file has "
                f"{', '.join(table)}; rename them, or if it is a table, use --leave-out {column}"
            )
    _check_answers(path, table, class_column, domain_column)
    for column in leave_out:
        choose(f"column of {path}", column, table)


def _check_answers(
    path: Path,
    table: Mapping[str, Sequence[Any]],
    class_column: str,
    domain_column: DomainColumns,
) -> None:
    _check_column(path, table, "--class-column", class_column)
    for column in as_list(domain_column):
        _check_column(path, table, "--domain-column", split_unit(column, table)[0])


def _check_column(path: Path, table: Mapping[str, Sequence[Any]], option: str, column: str) -> None:
    try:
        choose(f"column of {path}", column, table)
    except ValueError as error:
        raise ValueError(f"{error}; {option} names it") from error


def _is_one_to_one(values: Sequence[Any], texts: Sequence[str]) -> bool:
    there, back = dict[str, str](), dict[str, str]()
    for value, text in zip(values, texts, strict=True):
        given = str(value_or_none(value))
        if there.setdefault(given, text) != text or back.setdefault(text, given) != given:
            return False
    return True


def _names_images(values: Sequence[Any]) -> bool:
    named = False
    for value in map(value_or_none, values):
        if value is not None and not (isinstance(value, str) and is_image(Path(value))):
            return False
        named = named or value is not None
    return named


def _check_labels(labels: Sequence[str], column: str, path: Path) -> None:
    """Raise if the classes look like measured numbers or names of rows."""
    different = len(set(labels))
    if different > 2 and 2 * different > len(labels):
        raise ValueError(
            f"{path}: {column!r} has {different:,} different values in {len(labels):,} rows, and "
            "each class needs several rows; group numbers into ranges, or name another "
            "--class-column"
        )
