"""Tables: columns of numbers and categories, rows as vectors, and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.datasets.encoding import Column, Encoding, SeenRange, infer_column, infer_encoding
from shoal.datasets.tables import read_table, table_data

TEXT = """site,age,dose,colour,id,class
a,30,1.5,red,x1,yes
b,,2.5,blue,x2,no
a,50,NA,red,x3,no
b,20,0.5,,x4,yes
"""


def write(path: Path, text: str = TEXT) -> Path:
    path.write_text(text)
    return path


def test_rows_become_vectors_by_domain(tmp_path: Path) -> None:
    found = table_data("t", write(tmp_path / "t.csv"), domain_column="site", leave_out=["id"])
    assert found.dataset.names == ("a", "b")
    assert found.dataset.classes == ("no", "yes")
    assert {name: rows.tolist() for name, rows in found.rows.items()} == {"a": [1, 3], "b": [2, 4]}
    assert found.dataset["a"].labels.tolist() == [1, 0]
    nan = float("nan")
    # age, age missing; dose, dose missing; colour: missing, blue, red.
    expected = torch.tensor(
        [[30, 0, 1.5, 0, 0, 0, 1], [50, 0, nan, 1, 0, 0, 1]], dtype=torch.float32
    )
    torch.testing.assert_close(found.dataset["a"].tensor, expected, equal_nan=True)


def test_an_encoding_survives_json_and_knows_no_new_category(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    encoding = table_data("t", path, domain_column="site", leave_out=["id"]).encoding
    again = Encoding.from_json(encoding.as_json())
    table = read_table(path)
    torch.testing.assert_close(again(table, "t"), encoding(table, "t"), equal_nan=True)
    new = {"age": ["1"], "dose": ["2"], "colour": ["green"]}
    assert again(new, "t").tolist() == [[1, 0, 2, 0, 0, 0, 0]]


def test_the_positions_of_a_column_are_those_of_its_vectors() -> None:
    table = {"size": [1, 7, None], "kind": ["a", "b", "c"], "age": [3, 4, 9]}
    encoding = infer_encoding(table)
    places = encoding.positions()
    assert places == {"size": range(2), "kind": range(2, 5), "age": range(5, 6)}
    vectors = encoding(table, "a table")
    for column in encoding.columns:
        mine = column.encode(table[column.name])
        assert torch.equal(vectors[:, list(places[column.name])].nan_to_num(), mine.nan_to_num())


def test_a_text_that_names_the_row_is_left_out(tmp_path: Path) -> None:
    lines = [f"a,{k % 9},name {k},c{k % 2}" for k in range(60)]
    path = write(tmp_path / "t.csv", "\n".join(["domain,x,name,class", *lines]) + "\n")
    encoding = table_data("t", path).encoding
    assert [column.name for column in encoding.columns] == ["x"]
    assert encoding.left_out == ("name",)


def test_parquet_and_csv_give_the_same(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = {
        "domain": ["a", "a", "b"],
        "x": [1.5, None, 2.0],
        "flag": [True, False, True],
        "class": [0, 1, 1],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    csv = "domain;x;flag;class\na;1.5;True;0\na;;False;1\nb;2;True;1\n"
    from_csv = table_data("t", write(tmp_path / "t.csv", csv))
    from_parquet = table_data("t", tmp_path / "t.parquet")
    assert from_csv.dataset.fingerprint == from_parquet.dataset.fingerprint
    assert from_csv.encoding == from_parquet.encoding


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("domain,class\n", "has no rows"),
        ("", "has no rows"),
        ("domain,class\na,b\n", "no column to learn from.*in other rows$"),
        ("domain,x,k,class\na,1,,c\nb,1,,d\n", "in other rows; skipped as uninformative: x, k"),
        ("domain,x,x,class\n", "two columns 'x'; rename or remove one"),
        ("domain,x,class\na,1\n", "line 2 must have 3 fields, got 2"),
        ("domain,x,class\n,1,c\n", "row 1 has no domain; fill it in"),
        ("domian,x,class\na,1,c\n", "unknown column of .* 'domain'; did you mean 'domian'"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        table_data("t", write(tmp_path / "t.csv", text))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"must end in one of \.csv"):
        read_table(write(tmp_path / "t.txt"))
    (tmp_path / "latin.csv").write_bytes("site\nKöln\n".encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8 text; save it as CSV UTF-8"):
        read_table(tmp_path / "latin.csv")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_table(write(tmp_path / "t.parquet"))


def test_columns_that_are_missing_or_no_numbers_are_named(tmp_path: Path) -> None:
    encoding = table_data("t", write(tmp_path / "t.csv"), domain_column="site").encoding
    with pytest.raises(ValueError) as caught:
        encoding({"age": [1], "id": ["x1"], "color": ["red"], "notes": [""]}, "new")
    assert str(caught.value) == (
        "new lacks the columns dose, colour (is it 'color'?) and has columns that were not in "
        "training: color, notes; the model takes age, dose, colour, id"
    )
    with pytest.raises(ValueError, match="'age' must hold numbers, got 'old'"):
        encoding({"age": [1, "old"], "dose": [1, 1], "colour": ["", ""], "id": ["", ""]}, "new")
    with pytest.raises(ValueError, match=r"'age' must hold numbers of 3.4e\+38 at most, got 1000"):
        encoding({"age": [10**400], "dose": [1], "colour": [""], "id": [""]}, "new")


def test_columns_that_training_had_are_known(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    encoding = table_data("t", path, domain_column="site", leave_out=["id"]).encoding
    assert encoding.ignored == ("site", "id", "class")
    assert encoding.mismatch(("id", "", "class", "dose", "colour", "age"), "new") is None
    assert encoding.mismatch(("age", "dose", "colour", "extra"), "new") == (
        "new has a column that was not in training: extra; the model takes age, dose, colour"
    )
    again = Encoding.from_card(encoding.as_card())
    assert again == replace(encoding, left_out=())
    # Older cards do not know which columns the table had.
    older = Encoding.from_card({"columns": encoding.as_json()})
    assert older is not None
    assert older.mismatch(("age", "dose", "colour", "extra"), "new") is None
    assert older.mismatch(("age", "dose", "color"), "new") == (
        "new lacks the column colour (is it 'color'?); the model takes age, dose, colour"
    )
    assert Encoding.from_card({"kind": "images"}) is None


def test_arrays_and_lists_are_one(tmp_path: Path) -> None:
    values = [3.0, float("nan"), -1.5, 3.0]
    for column in (values, ["3", "", "-1.5", "3"], np.array(values), np.array(values, np.float32)):
        found = infer_column("x", column)
        assert found == Column(
            "x", None, True, SeenRange(min=-1.5, max=3.0, q01=pytest.approx(-1.41), q99=3.0)
        )
        expected = torch.tensor([[3, 0], [float("nan"), 1], [-1.5, 0], [3, 0]])
        torch.testing.assert_close(found.encode(column), expected, equal_nan=True)
    assert infer_column("x", np.arange(1, 5)) is None  # counts the rows
    assert infer_column("x", np.array([2, 2, 2])) is None
    with pytest.raises(ValueError, match=r"'x' must hold numbers of 3.4e\+38 at most, got .*inf"):
        Column("x").encode(np.array([1.0, np.inf]))


def test_numbers_far_from_all_in_training() -> None:
    column = infer_column("x", [*range(100, 201), 300])
    assert column is not None and column.seen is not None
    assert (column.seen.min, column.seen.max) == (100, 300)
    low, high = np.quantile([*range(100, 201), 300], (0.01, 0.99))
    assert (column.seen.q01, column.seen.q99) == (low, high)
    # Farther from the extremes than the middle 98 % is wide, and not by a mistake's width.
    near, far = 300 + (high - low), 300 + (high - low) + 0.1
    values = [150, near, far, 100 - (high - low), 99.9 - (high - low), None, "", 250, "text"]
    assert column.unusual(values) == {
        2: f"x is {far:.6g}, in training it was 100 to 300",
        4: f"x is {99.9 - (high - low):.6g}, in training it was 100 to 300",
        5: "x is missing, in training it never was",
        6: "x is missing, in training it never was",
    }
    # Where nearly all are equal, the whole range counts.
    rare = infer_column("x", [0] * 300 + [4])
    assert rare is not None
    assert list(rare.unusual([8, 8.1, -4, -4.1])) == [1, 3]
    one = infer_column("x", ["7", "", "7"])
    assert one is not None
    assert list(one.unusual([7, 8, None])) == [1]
    # It survives JSON; older cards have no ranges.
    assert Column.from_json(column.as_json()) == column
    older = Column.from_json({"name": "x", "kind": "number", "gaps": False})
    assert older.unusual([1e30, None]) == {}
    category = Column("c", ("a", "b"))
    assert category.unusual(["z", "?", "a"]) == {1: "c is missing, in training it never was"}
    assert Column("c", ("", "b")).unusual([""]) == {}


def numbered(change: dict[int, str] | None = None, head: str = "x") -> str:
    """Return a table of 40 rows with some values of its column replaced."""
    values = [(change or {}).get(k, str(k * k % 37)) for k in range(40)]
    rows = (f"{'ab'[k % 2]};{value};{'yn'[k // 2 % 2]}" for k, value in enumerate(values))
    return "\n".join([f"domain;{head};class", *rows])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {17: "1.2.3"},
            r"column 'x' has numbers, but '1.2.3' in row 18; correct it.*--leave-out x",
        ),
        ({3: "inf"}, r"but 'inf' in row 4"),
        ({3: "1e39"}, r"column 'x' has numbers of 3.4e\+38 at most, but '1e39' in row 4; correct"),
        ({k: f"{k}e307" for k in range(30, 40)}, r"but '30e307' in row 31"),
        (dict.fromkeys(range(40), "-1.8e308"), r"but '-1.8e308' in row 1"),
        (
            dict.fromkeys(range(40), "1,5"),
            r"row 1 has a comma in its number, '1,5'; write",
        ),
        ({7: "-0,25"}, r"row 8 has a comma in its number, '-0,25'"),
    ],
)
def test_numbers_that_cannot_be_read_as_such_are_no_categories(
    tmp_path: Path, change: dict[int, str], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        table_data("t", write(tmp_path / "t.csv", numbered(change)))


def test_a_few_numbers_among_texts_are_categories(tmp_path: Path) -> None:
    change = {k: ("1", "2", "3 or more")[k % 3] for k in range(40)}
    encoding = table_data("t", write(tmp_path / "t.csv", numbered(change))).encoding
    assert encoding.columns[0].values == ("1", "2", "3 or more")


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_counts_the_rows_is_left_out(tmp_path: Path, first: int) -> None:
    lines = numbered().splitlines()
    lines = ["k;" + lines[0], *(f"{k};{line}" for k, line in enumerate(lines[1:], first))]
    found = table_data("t", write(tmp_path / "t.csv", "\n".join(lines))).encoding
    assert (found.columns[0].name, found.left_out) == ("x", ("k",))


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    lines = numbered().splitlines()
    lines = [";" + lines[0], *(f"{3 * k};{line}" for k, line in enumerate(lines[1:]))]
    found = table_data("t", write(tmp_path / "t.csv", "\n".join(lines))).encoding
    assert found.left_out == ("one without a name",)


def test_a_number_that_is_the_same_everywhere_is_left_out(tmp_path: Path) -> None:
    lines = numbered().splitlines()
    lines = [
        "year;known;" + lines[0],
        *(f"2023;{'7' * (k % 2)};{x}" for k, x in enumerate(lines[1:])),
    ]
    found = table_data("t", write(tmp_path / "t.csv", "\n".join(lines))).encoding
    assert found.left_out == ("year",)
    # Which rows lack it tells something.
    assert replace(found.columns[0], seen=None) == Column("known", None, gaps=True)


def test_classes_that_are_numbers_are_refused(tmp_path: Path) -> None:
    text = "domain,x,class\n" + "\n".join(f"a,{k % 5},{k / 7:.3f}" for k in range(30))
    with pytest.raises(ValueError, match=r"'class' has 30 different values in 30 rows.*ranges"):
        table_data("t", write(tmp_path / "t.csv", text))


def test_names_of_columns_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    with pytest.raises(
        ValueError, match=r"'Site'; did you mean 'site'\?.*--domain-column names it"
    ):
        table_data("t", path, domain_column="Site")


@pytest.mark.parametrize("options", [{}, {"class_column": "label", "domain_column": "site"}])
def test_nothing_is_learned_from_names_of_images(tmp_path: Path, options: dict[str, str]) -> None:
    lines = [f"{k}.JPG,{'xy'[k % 2]},{'ab'[k // 2 % 2]},{k % 5}" for k in range(20)]
    listed = write(tmp_path / "list.csv", "\n".join(["file,label,site,age", *lines, ",x,a,1"]))
    told = (
        r"'file' names images\. A list .* the columns path, class, domain, and this file has file, "
    )
    with pytest.raises(ValueError, match=told + r"label, site, age; rename .* --leave-out file$"):
        table_data("t", listed, **options)
    apart = write(tmp_path / "apart.csv", listed.read_text().replace("file,", "the file,", 1))
    with pytest.raises(ValueError, match=r"use --leave-out 'the file'$"):
        table_data("t", apart, **options)
    found = table_data("t", listed, "label", "site", ["file"])
    assert [column.name for column in found.encoding.columns] == ["age"]


def test_a_field_may_hold_any_sign(tmp_path: Path) -> None:
    text = numbered({k: "a\u2028b" if k % 2 else "c\x0bd" for k in range(40)})
    values = table_data("t", write(tmp_path / "t.csv", text)).encoding.columns[0].values
    assert values == ("a\u2028b", "c\x0bd")


def test_values_of_a_row_and_encodings_without_columns() -> None:
    table = {"age": ["1.5", ""], "colour": ["red", "blue"], "size": ["3", "4"]}
    whole = infer_encoding(table, ["class"])
    vectors = whole(table, "it")
    assert whole.positions() == {"age": range(2), "colour": range(2, 4), "size": range(4, 5)}
    assert [whole.values_of(row) for row in vectors] == [
        {"age": "1.5", "colour": "red", "size": "3"},
        {"age": "missing", "colour": "blue", "size": "4"},
    ]
    unknown = whole({"age": ["2"], "colour": ["green"], "size": ["1"]}, "it")[0]
    assert whole.values_of(unknown)["colour"] == "other"
    less = whole.without(["colour"])
    assert torch.equal(less(table, "it")[:, -1], vectors[:, -1])
    assert less.ignored == ("class", "colour")
    assert less.positions() == {"age": range(2), "size": range(2, 3)}
