"""Manifests: images listed in a CSV, TSV or JSON file with the columns path, class and domain."""

import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..choices import choose
from ..documents import parse_json
from ..escapes import brief
from ..files import LIST_BYTES, read_text
from .base import DomainDataset
from .folders import SUFFIXES, Faults, dataset_of_files, first_few, is_image
from .groups import Groups

COLUMNS = ("path", "class", "domain")
MANIFESTS = (".csv", ".tsv", ".json")
DELIMITERS = ",;\t|"


class ManifestRow(NamedTuple):
    """One image of the manifest, and its line."""

    line: int
    path: str
    kind: str
    domain: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.path} (line {self.line})"


def is_manifest(path: Path) -> bool:
    """Return whether the suffix is that of a list of images."""
    return path.suffix.lower() in MANIFESTS


def image_manifest(name: str, manifest: Path, group_column: str | None = None) -> DomainDataset:
    """Return the data set that a manifest lists; paths are relative to the manifest.

    Domains, classes and files are sorted by name. So the order of the lines has no effect, and a
    list of ``domain/class/file`` gives the same data set as ``image_folders``.

    Args:
        group_column: names what each image belongs to, such as a patient; a split keeps the images
            of one together.
    """
    rows = _rows(manifest, group_column)
    faults = _faults(rows, manifest.parent)
    if faults.not_images:
        raise ValueError(
            f"{manifest}: files without the suffix of an image ({', '.join(SUFFIXES)}): "
            f"{first_few(faults.not_images)}"
        )
    if faults.missing_files:
        raise ValueError(
            f"{manifest}: no such files, relative to {manifest.parent}: "
            f"{first_few(faults.missing_files)}"
        )
    dataset = _dataset(name, rows, manifest.parent)
    if group_column is None:
        return dataset
    groups: dict[str, list[str]] = {}
    for row in _sorted(rows):
        groups.setdefault(row.domain, []).append(row.group)
    return replace(dataset, groups=Groups.of(group_column, groups))


def survey_manifest(name: str, manifest: Path) -> tuple[DomainDataset | None, Faults]:
    """Return the data set as ``image_manifest`` does, ignoring faults, and the faults.

    The data set is None if there is no image. A file that is not a manifest is still an error.
    """
    rows = _rows(manifest)
    faults = _faults(rows, manifest.parent)
    wrong = {*faults.not_images, *faults.missing_files}
    rows = [row for row in rows if str(row) not in wrong]
    return _dataset(name, rows, manifest.parent) if rows else None, faults


def _dataset(name: str, rows: list[ManifestRow], folder: Path) -> DomainDataset:
    files: dict[str, list[tuple[str, Path]]] = {}
    for row in _sorted(rows):
        files.setdefault(row.domain, []).append((row.kind, folder / row.path))
    return dataset_of_files(name, list(files), files)


def _sorted(rows: list[ManifestRow]) -> list[ManifestRow]:
    return sorted(rows, key=lambda row: (row.domain, row.kind, row.path))


def _rows(manifest: Path, group_column: str | None = None) -> list[ManifestRow]:
    if not manifest.exists():
        raise ValueError(f"no such file: {manifest}")
    text = read_text(manifest, LIST_BYTES)
    if not is_manifest(manifest):
        raise ValueError(f"{manifest} must end in one of {', '.join(MANIFESTS)}")
    try:
        entries = (_json_rows if manifest.suffix.lower() == ".json" else _csv_rows)(text)
        rows = [_row(line, entry, group_column) for line, entry in entries]
        _check(rows)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{manifest}: {error}") from error
    return rows


def _csv_rows(text: str) -> Iterator[tuple[int, dict[str, object]]]:
    first = next(iter(text.splitlines()), "")
    # The delimiter that splits the header into the right columns splits the other lines too.
    for delimiter in DELIMITERS:
        header = [column.strip() for column in next(csv.reader([first], delimiter=delimiter), [])]
        if set(COLUMNS) <= set(header):
            break
    else:
        raise ValueError(f"line 1 must name the columns {', '.join(COLUMNS)}, got {first!r}")
    # Not str.splitlines, which also splits within fields.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if reader.line_num == 1 or not fields:
                continue
            if len(fields) != len(header):
                raise ValueError(
                    f"line {reader.line_num} must have {len(header)} fields, got {len(fields)}"
                )
            yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} is not CSV: {error}") from error


def _json_rows(text: str) -> Iterator[tuple[int, dict[str, object]]]:
    try:
        entries = parse_json(text, "the list", "write it again")
    except ValueError as error:
        if isinstance(why := error.__cause__, json.JSONDecodeError):
            raise ValueError(f"line {why.lineno} is not JSON: {why.msg}") from error
        raise
    if not isinstance(entries, list):
        raise ValueError(f"must hold a list of objects, got {type(entries).__name__}")
    for line, entry in zip(_json_lines(text, len(entries)), entries, strict=True):
        if not isinstance(entry, dict):
            raise ValueError(f"line {line} must begin an object, got {brief(entry)}")
        yield line, entry


def _json_lines(text: str, count: int) -> Iterator[int]:
    """Yield the line on which each entry of a well-formed list begins."""
    decoder, position, line, counted = json.JSONDecoder(), text.index("[") + 1, 1, 0
    for _ in range(count):
        while text[position] in " \t\r\n,":
            position += 1
        line, counted = line + text.count("\n", counted, position), position
        yield line
        _, position = decoder.raw_decode(text, position)


def _row(line: int, entry: dict[str, object], group_column: str | None) -> ManifestRow:
    values = []
    for column in COLUMNS:
        value = entry.get(column)
        if not isinstance(value, str) or not value.strip():
            found = "nothing" if value is None else brief(value)
            raise ValueError(f"line {line} must give its {column} as text, got {found}")
        values.append(value.strip())
    path, kind, domain = values
    group = "" if group_column is None else _group(line, entry, group_column)
    return ManifestRow(line, path, kind, domain, group)


def _group(line: int, entry: dict[str, object], column: str) -> str:
    value = entry.get(choose("column of the list", column, entry))
    text = "" if value is None else str(value).strip()
    if not text:
        raise ValueError(
            f"line {line} has no {column}; fill it in, because --group-column names it"
        )
    return text


def _check(rows: list[ManifestRow]) -> None:
    if not rows:
        raise ValueError("lists no images")
    seen: dict[Path, int] = {}
    for row in rows:
        first = seen.setdefault(Path(os.path.normpath(row.path)), row.line)
        if first != row.line:
            # An image listed twice could be on both sides of a split.
            raise ValueError(f"lines {first} and {row.line} both list {row.path}")


def _faults(rows: list[ManifestRow], folder: Path) -> Faults:
    return Faults(
        not_images=[str(row) for row in rows if not is_image(Path(row.path))],
        missing_files=[
            str(row)
            for row in rows
            if is_image(Path(row.path)) and not _is_there(folder / row.path)
        ],
    )


def _is_there(path: Path) -> bool:
    """Return whether there is anything but a folder; what cannot be read is reported later."""
    return os.path.exists(path) and not os.path.isdir(path)
