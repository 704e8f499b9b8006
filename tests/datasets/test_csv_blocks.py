"""CSV in blocks: pyarrow, Python's csv and a plain reading of the whole file give the same."""

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.datasets import csv_blocks
from shoal.datasets.arrow_columns import ArrowColumn
from shoal.datasets.encoding import infer_column
from shoal.datasets.tables import read_blocks, read_table, table_data
from shoal.fitting import table_findings

from ..oracles import tables as plain

# What numbers, gaps and texts look like in files, and what only looks like them.
FIELDS = st.one_of(
    st.sampled_from(
        ["", " ", "NA", "n/a", "NaN", "nan", "-nan", "None", "NULL", "?", "inf", "-Infinity"]
    ),
    st.sampled_from(["1_000", "007", "1e5", "1E-400", "1e400", "3.5e38", "-0", "+1", " 2", "3 "]),
    st.sampled_from(["0x1F", "1,5", "1.", ".5", ".", "-", "٣", "1\u00a0", "nan(1)", "1d5", "True"]),
    st.integers(-3, 30).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(st.sampled_from("aé☃𝄞 ,;\t|'\"\n\r\x00\x0b\x85\u2028"), max_size=4),
)
# Files as they come, and as nobody should write them.
RAW = st.text(st.sampled_from('a1é,;\t|"\n\r \x00'), max_size=40)


@contextmanager
def blocks_of(size: int, arrow: bool = True) -> Iterator[None]:
    missing = patch.object(csv_blocks, "arrow_missing", lambda: not arrow)
    with patch.object(csv_blocks, "BLOCK", size), missing:
        yield


def outcome(read: Any) -> Any:
    """Return the columns and wrong lines, or the error, without and with wrong lines allowed."""
    found = []
    for wrong in (None, dict[int, str]()):
        try:
            columns = {name: list(values) for name, values in read(wrong).items()}
            found.append((columns, wrong))
        except ValueError as error:
            found.append(str(error))
    return found


def assert_all_readers_agree(path: Path, size: int) -> None:
    expected = outcome(lambda wrong: plain.read_csv(path, wrong))
    for arrow in (True, False):
        with blocks_of(size, arrow):
            assert outcome(lambda wrong: read_table(path, wrong)) == expected


@given(
    st.lists(st.lists(FIELDS, min_size=3, max_size=3), min_size=1, max_size=8),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.sampled_from([1, 20, 2**24]),
)
@settings(max_examples=150, deadline=None)
def test_files_that_programs_write_are_read_alike(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[str]],
    quoting: Any,
    delimiter: str,
    ends: str,
    mark: bool,
    size: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with path.open("w", encoding="utf-8-sig" if mark else "utf-8", newline="") as file:
        write = csv.writer(file, quoting=quoting, delimiter=delimiter, lineterminator=ends)
        write.writerow(["x", "y", "z"])
        write.writerows(rows)
    assert_all_readers_agree(path, size)


@given(RAW, st.sampled_from([1, 7, 2**24]))
@example('a,b\n1,"2"x\n', 2**24)
@example('a,b\n1,2"\n3,4\n', 2**24)
@example('a,b\n1,"2\n3,4\n', 2**24)
@example("a,b\n1\n2,3\n4,5,6\n", 1)
@example('a,b\n\n"",""\n \n', 2**24)
@example('a\n""\n\n1\n', 2**24)
@example("\na,b\n", 1)
@example("a,a\n1\n", 1)
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_alike_or_refused_with_the_same_line(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(text.encode())
    assert_all_readers_agree(path, size)


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_field_that_is_too_long_is_refused_at_its_line(tmp_path: Path, quote: str) -> None:
    path = tmp_path / "long.csv"
    for length, good in ((csv.field_size_limit(), True), (csv.field_size_limit() + 1, False)):
        path.write_text(f"a,b\n1,2\n{quote}{'x' * length}{quote},3\n")
        expected = outcome(lambda wrong: plain.read_csv(path, wrong))
        assert isinstance(expected[0], str) is not good
        assert outcome(lambda wrong: read_table(path, wrong)) == expected


def test_a_wide_row_is_not_a_long_field(tmp_path: Path) -> None:
    count = csv.field_size_limit()
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join(map(str, range(count))), ",".join(["1"] * count)]))
    with patch.object(csv_blocks.CsvBlocks, "_by_python", None):
        assert list(read_table(path)[str(count - 1)]) == ["1"]


def test_a_byte_that_is_no_text_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(b"a,b\n" + b"1,2\n" * 5 + "Köln,3\n".encode("latin-1"))
    for arrow in (True, False):
        with blocks_of(4, arrow), pytest.raises(ValueError, match=r"UTF-8 \(line 7: .*0xf6\)"):
            read_table(path)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_ordinary_files_never_take_the_slow_way(tmp_path: Path, quoting: Any) -> None:
    """Also not if fields have delimiters, quotes and line feeds in them."""
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        write = csv.writer(file, quoting=quoting)
        write.writerows([["x", "y"], *([f"{k}", f'a "{k}",\nb'] for k in range(500))])
    with blocks_of(1000), patch.object(csv_blocks.CsvBlocks, "_by_python", None):
        found = read_table(path)
    assert list(found["y"]) == [f'a "{k}",\nb' for k in range(500)]


def test_blocks_stay_small_and_progress_ends_at_the_size(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{k},{k}\n" for k in range(5000)))
    seen = list[tuple[int, int]]()
    for arrow in (True, False):
        with blocks_of(4096, arrow):
            blocks = list(read_blocks(path, progress=lambda *at: seen.append(at)))
        assert max(len(block["x"]) for block in blocks) < 1500
        assert [int(one) for block in blocks for one in block["x"]] == list(range(5000))
        assert seen[-1] == (path.stat().st_size,) * 2
        assert seen == sorted(seen)
        seen.clear()


@given(st.lists(FIELDS, min_size=1, max_size=30), st.sampled_from([3, 10**6]))
@settings(max_examples=400, deadline=None)
def test_texts_become_the_same_columns(values: list[str], piece: int) -> None:
    assert_same_column(values, "string", piece)


@given(
    st.one_of(
        st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12).map(
            lambda values: (values, "int64")
        ),
        st.lists(
            st.none() | st.floats() | st.sampled_from([0.0, -0.0]), min_size=1, max_size=12
        ).map(lambda values: (values, "float64")),
        st.lists(st.none() | st.booleans(), min_size=1, max_size=12).map(lambda v: (v, "bool")),
        st.lists(st.none() | FIELDS, min_size=1, max_size=12).map(lambda v: (v, "large_string")),
    )
)
@settings(max_examples=200, deadline=None)
def test_values_of_parquet_become_the_same_columns(case: tuple[list[Any], str]) -> None:
    assert_same_column(*case, piece=5)


def assert_same_column(values: Sequence[Any], kind: str, piece: int) -> None:
    import pyarrow

    arrow = pyarrow.array(values, pyarrow.type_for_alias(kind), from_pandas=False)
    column = ArrowColumn(pyarrow.chunked_array([arrow[:2], arrow[2:]]))
    try:
        expected = plain.infer_column("x", values)
    except ValueError as error:
        for given_values in (column, values):
            with pytest.raises(ValueError, match=f"{error}\\b"):
                infer_column("x", given_values)
        return
    with patch.object(ArrowColumn.pieces, "__defaults__", (piece,)):
        for given_values in (column, values):
            assert infer_column("x", given_values) == expected
            if expected is None:
                continue
            found = expected.encode(given_values)
            wanted = plain.encode(expected, values)
            if kind == "float64":  # equal values are one value, so zero has one sign
                wanted, found = wanted + 0.0, found + 0.0
            assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    if expected is not None and kind == "float64":
        both = [expected.encode(one).view(torch.int32) for one in (column, values)]
        assert torch.equal(*both)


def test_a_table_is_the_same_data_set_however_it_is_read(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    path = tmp_path / "t.csv"
    lines = ["domain,class,n,c,g"]
    for k in range(300):
        number = "NA" if k % 7 == 0 else f"{random.randn():.3f}"
        lines.append(f'd{k % 3},c{k % 2},{number},"k,{random.randint(5)}",{k // 4}')
    path.write_text("\n".join(lines))
    found = []
    for size, arrow in ((2**24, True), (100, True), (2**24, False), (100, False)):
        with blocks_of(size, arrow):
            found.append(table_data("t", path, group_column="g"))
    assert len({one.dataset.fingerprint for one in found}) == 1
    # As it was when every value was read alone.
    assert found[0].dataset.fingerprint == FINGERPRINT
    assert all(one.encoding == found[0].encoding for one in found)


FINGERPRINT = "d1a8b1b738eff989ee1ba0437167086da15156bec2f38876a829429b3615ba3b"


@given(st.integers(0, 10**6), st.integers(1, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_equal_rows_are_found_also_if_hashes_are_not_enough(
    seed: int, rows: int, collide: bool
) -> None:
    random = np.random.RandomState(seed)
    columns = [
        random.choice([0.0, -0.0, 1.0, np.nan], rows).astype(np.float32),
        random.randint(0, 3, rows),
    ]
    expected = plain.equal_groups(columns)
    multiplier = np.uint64(0) if collide else table_findings.MULTIPLIER
    with patch.object(table_findings, "MULTIPLIER", multiplier):
        found = [group.tolist() for group in table_findings._equal_groups(columns)]
    assert found == expected


def test_no_file_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x\n" + "1\n" * 100)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with blocks_of(10):
        next(iter(read_blocks(path)))
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert before == after


def test_pyarrow_gets_bytes_of_its_own(tmp_path: Path) -> None:
    """Its threads let go of them when Python may be ending; Python's own would then abort it."""
    pyarrow, arrow_csv = map(pytest.importorskip, ("pyarrow", "pyarrow.csv"))
    path, read, allocated = tmp_path / "t.csv", arrow_csv.read_csv, list[int]()
    path.write_text("a,b\n" + "1,2\n" * 100_000)
    begin = pyarrow.total_allocated_bytes()

    def watched(*given: Any) -> Any:
        allocated.append(pyarrow.total_allocated_bytes() - begin)
        return read(*given)

    with patch.object(arrow_csv, "read_csv", watched):
        assert len(read_table(path)["a"]) == 100_000
    assert allocated[0] >= 4 * 100_000
