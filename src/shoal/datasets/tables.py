"""Tables: CSV and Parquet files of numbers and categories, as data sets of vectors."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from ..choices import choose
from ..documents import DAMAGE
from ..files import TABLE_BYTES
from .arrow_columns import Array, ArrowColumn
from .base import Domain, DomainDataset
from .csv_blocks import CsvBlocks, ReadProgress, check_names, open_table
from .domain_columns import DomainColumns, as_list, domain_names, split_unit, texts_of
from .encoding import Column, Encoding, Values, encoding_of, infer_column, value_or_none
from .folders import is_image
from .groups import Groups
from .manifest import COLUMNS

SUFFIXES = (".csv", ".tsv", ".parquet")
# Rows of a Parquet file that are read at a time, and the bytes of a number in memory.
BATCH, NUMBER = 65_536, 8


def is_table(path: Path) -> bool:
    """Return whether the suffix is that of a table."""
    return path.suffix.lower() in SUFFIXES


def read_table(
    path: Path, wrong: dict[int, str] | None = None, progress: ReadProgress | None = None
) -> dict[str, Sequence[Any]]:
    """Return the columns of a CSV or Parquet file by name; a missing value is None.

    Args:
        wrong: receives the reasons why lines of a CSV file cannot be read (too few or too many
            fields), by the number of their row from 0; all values of such a row are missing.
            Without it such a line is an error.
        progress: called now and then with the number of bytes read, and their total.
    """
    parts: dict[str, list[Sequence[Any]]] = {}
    for block in read_blocks(path, wrong, progress):
        for name, values in block.items():
            parts.setdefault(name, []).append(values)
    return {name: _joined(parts.pop(name)) for name in list(parts)}


def read_blocks(
    path: Path, wrong: dict[int, str] | None = None, progress: ReadProgress | None = None
) -> Iterator[dict[str, Sequence[Any]]]:
    """Yield the rows of a table in blocks, each as ``read_table`` returns the whole of it.

    Raise if there is no row, and at the first line that cannot be read.
    """
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")
    rows = 0
    with open_table(path) as file:
        if path.suffix.lower() == ".parquet":
            blocks = _parquet_blocks(file, path, progress)
        else:
            blocks = iter(CsvBlocks(file, path, wrong, progress))
        for block in blocks:
            rows += len(next(iter(block.values())))
            yield block
    if not rows:
        raise ValueError(f"{path} has no rows")


def _joined(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    columns = [part for part in parts if isinstance(part, ArrowColumn)]
    if not columns:
        return [value for part in parts for value in part]
    import pyarrow

    return ArrowColumn(
        pyarrow.chunked_array([chunk for column in columns for chunk in column.chunks.chunks])
    )


def column_names(path: Path) -> list[str]:
    """Return the columns of a CSV file; only its begin is read."""
    try:
        with open_table(path) as file:
            return CsvBlocks(file, path).names
    except OSError:
        return list(read_table(path))  # which raises the better error


def _parquet_blocks(
    file: IO[bytes], path: Path, progress: ReadProgress | None
) -> Iterator[dict[str, Sequence[Any]]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Parquet files are read by pyarrow, which is not installed: "
            "pip install 'shoal[tables]'",
            name="pyarrow",
        ) from error
    size, done = path.stat().st_size, 0
    try:
        found = pyarrow.parquet.ParquetFile(file)
        names = found.schema_arrow.names
        check_names(path, names)
        for batch in found.iter_batches(BATCH):
            batch.validate(full=True)  # texts that are not UTF-8, for example
            done += len(batch)
            # A thousand million equal rows fit into a few bytes.
            if NUMBER * done * len(names) > TABLE_BYTES:
                raise ValueError(f"more than {done:,} rows of {len(names):,} columns are too many")
            columns = zip(names, batch.columns, strict=True)
            yield {name: _plain_column(name, values) for name, values in columns}
            if progress is not None:
                progress(size * done // max(found.metadata.num_rows, done), size)
    except (OSError, *DAMAGE) as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error


def _plain_column(name: str, values: Any) -> ArrowColumn:
    import pyarrow

    types = pyarrow.types
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if types.is_temporal(values.type) or types.is_nested(values.type):
        try:
            (values if types.is_nested(values.type) else values.unique()).to_pylist()
        except (ArithmeticError, LookupError, ValueError) as error:
            raise ValueError(
                f"the column {name!r} has a date or time that Python cannot hold ({error}); write "
                "it as text, or the table without it"
            ) from error
    return ArrowColumn(pyarrow.chunked_array([values]))


@dataclass(frozen=True, kw_only=True)
class TableData:
    """A table as a data set.

    Args:
        vectors: of all domains, one after the other, ``[n, d]``; the data set has parts of it.
        rows: the number of every example's row, from 1, ``[n]``, by domain.
        repeats: the columns that a model sees and that determine the class or the domain, and
            which of the two.
        answers: the columns of class and domain; several columns of the domain are a list.
    """

    dataset: DomainDataset
    encoding: Encoding
    vectors: Tensor
    rows: Mapping[str, Array]
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
    progress: ReadProgress | None = None,
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
        progress: as in ``read_table``.
    """
    table = read_table(path, progress=progress)
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
    _check_labels(labels, class_column, path)
    rows, groups = _rows_by_domain(domains), None
    if group_column is not None:
        texts = texts_of(table, group_column, path)
        of_domains = {
            domain: [texts[row] for row in (mine - 1).tolist()] for domain, mine in rows.items()
        }
        groups = Groups.of(group_column, of_domains)
    hidden = {class_column, *named, *leave_out} - set(keep)
    others = [key for key in table if key in hidden]
    features: dict[str, Values] = {key: table.pop(key) for key in list(table) if key not in hidden}
    try:
        encoding, repeats = _infer_and_shrink(features, others, domain=domains, **{"class": labels})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    order = np.concatenate(list(rows.values())) - 1
    vectors = encoding(features, str(path), order)
    dataset = replace(_dataset(name, vectors, labels, rows), groups=groups)
    several = as_list(domain_column)
    return TableData(
        dataset=dataset,
        encoding=encoding,
        vectors=vectors,
        rows=rows,
        repeats=repeats,
        answers=(class_column, several if len(several) > 1 else several[0]),
    )


def _infer_and_shrink(
    features: dict[str, Values], others: Sequence[str], **answers: Sequence[str]
) -> tuple[Encoding, dict[str, str]]:
    """Return the encoding of a table, and the columns that determine an answer with its name.

    The columns are replaced by what their encoding needs, because the text of a file takes more
    memory than its numbers.
    """
    columns, repeats = dict[str, Column | None](), dict[str, str]()
    for name, values in features.items():
        columns[name] = column = infer_column(name, values)
        if column is not None:
            for kind, texts in answers.items():
                if _is_one_to_one(values, texts):
                    repeats[name] = kind
            features[name] = column.shrunk(values)
    return encoding_of(columns, others), repeats


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
    rows = _rows_by_domain(domain_names(table, domain_column, path))
    vectors = encoding(given, str(path), np.concatenate(list(rows.values())) - 1)
    labels = texts_of(table, class_column, path)
    unseen = Counter(name for names in encoding.unseen(table).values() for name in names)
    return _dataset(path.stem, vectors, labels, rows), unseen


def _rows_by_domain(domains: Sequence[str]) -> dict[str, Array]:
    """Return the numbers of every domain's rows, from 1; the domains are sorted by name."""
    names, places = _numbered(domains)
    order = np.argsort(places, kind="stable")
    parts = np.split(order + 1, np.cumsum(np.bincount(places))[:-1])
    return dict(zip(names, parts, strict=True))


def _numbered(texts: Sequence[str]) -> tuple[list[str], Array]:
    """Return the different texts, sorted, and the place of every text among them ``[n]``."""
    names = sorted(set(texts))
    place = {name: k for k, name in enumerate(names)}
    return names, np.fromiter((place[text] for text in texts), dtype=np.int64, count=len(texts))


def _dataset(
    name: str, vectors: Tensor, labels: Sequence[str], rows: Mapping[str, Array]
) -> DomainDataset:
    """Return the data set; ``vectors`` are those of the first domain, of the second, and so on."""
    classes, numbers = _numbered(labels)
    parts = vectors.split([len(mine) for mine in rows.values()])
    domains = [
        Domain(domain, torch.from_numpy(numbers[mine - 1]), part)
        for (domain, mine), part in zip(rows.items(), parts, strict=True)
    ]
    return DomainDataset(name, tuple(classes), tuple(domains))


def _check_columns(
    path: Path,
    table: Mapping[str, Sequence[Any]],
    class_column: str,
    domain_column: DomainColumns,
    leave_out: Collection[str],
) -> None:
    """Raise if a column does not exist, or one names images."""
    leave_out = set(leave_out)
    for column in table:
        if column not in leave_out and _names_images(table[column]):
            raise ValueError(
                f"{path}: the column {column!r} names images. A list of images is a .csv, .tsv or "
                f".json file with the columns {', '.join(COLUMNS)}, and this file has "
                f"{', '.join(table)}; rename them, or if it is a table, use --leave-out "
                f"{quote(column)}"
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


def _is_one_to_one(values: Values, texts: Sequence[str]) -> bool:
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
