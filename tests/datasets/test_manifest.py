"""Manifests: the same data set as from folders, in all formats, and errors by line."""

import json
from pathlib import Path

import pytest

from shoal.datasets import image_folders, image_manifest
from tests.datasets.pictures import TREE, tree

ROWS = [
    {"path": f"set/{domain}/{kind}/{file}", "class": kind, "domain": domain}
    for domain, classes in TREE.items()
    for kind, files in classes.items()
    for file in files
]


def table(rows: list[dict[str, str]], delimiter: str = ",") -> str:
    lines = [["domain", "path", "weather", "class"]]
    lines += [[row["domain"], row["path"], "rain", row["class"]] for row in rows]
    return "\n".join(delimiter.join(line) for line in lines) + "\n"


WRITTEN = {
    "comma.csv": table(ROWS),
    "semicolon.csv": table(ROWS, ";"),
    "tab.tsv": table(ROWS, "\t"),
    "bar.csv": table(ROWS, "|"),
    "reversed.csv": table(ROWS[::-1]),
    "bom.CSV": "\ufeff" + table(ROWS),
    "windows.csv": table(ROWS).replace("\n", "\r\n"),
    "blank-lines.csv": table(ROWS).replace("\n", "\n\n"),
    "quoted.csv": table(ROWS).replace("photo,", '"photo",'),
    "spaces.csv": table(ROWS).replace(",", ", "),
    "list.json": json.dumps(ROWS),
    "indented.json": json.dumps(ROWS[::-1], indent=2),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tree(tmp_path / "set")
    return tmp_path


@pytest.mark.parametrize("name", WRITTEN)
def test_a_table_gives_what_the_folders_give(folder: Path, name: str) -> None:
    (folder / name).write_bytes(WRITTEN[name].encode())
    found, expected = image_manifest("mine", folder / name), image_folders("mine", folder / "set")
    assert found.names == expected.names
    assert found.classes == expected.classes
    for domain in expected.names:
        assert found[domain].images == expected[domain].images
        assert found[domain].labels.tolist() == expected[domain].labels.tolist()
    assert found.fingerprint == expected.fingerprint


def test_missing_classes_are_reported(folder: Path) -> None:
    rows = [row for row in ROWS if (row["domain"], row["class"]) != ("photo", "dog")]
    (folder / "m.csv").write_text(table(rows))
    dataset = image_manifest("mine", folder / "m.csv")
    assert dataset.missing_classes() == {"photo": ("dog",)}
    assert dataset["sketch"].labels.tolist() == [0, 1, 1, 1]


A, B = "set/photo/cat/a.png", "set/photo/cat/b.png"
HEADER = "path,class,domain\n"
REFUSED = {
    "header.csv": ("file,class,domain\n", "line 1 must name the columns path, class, domain, got"),
    "empty.csv": ("", "line 1 must name the columns path, class, domain, got ''"),
    "no-rows.csv": (HEADER, "lists no images"),
    "short.csv": (f"{HEADER}{A},cat,photo\n{B},cat\n", "line 3 must have 3 fields, got 2"),
    "long.csv": (f"{HEADER}{A},cat,photo,x\n", "line 2 must have 3 fields, got 4"),
    "no-class.csv": (f"{HEADER}\n{A}, ,photo\n", "line 3 must give its class as text, got ' '"),
    "twice.csv": (f"{HEADER}{A},cat,x\nset/../{A},cat,y\n", f"lines 2 and 3 both list set/../{A}"),
    "gone.csv": (f"{HEADER}{A},cat,photo\nx.png,cat,photo\n", "x.png (line 3)"),
    "suffix.csv": (f"{HEADER}{A},cat,photo\nsuffix.csv,cat,photo\n", "suffix.csv (line 3)"),
    "quote.csv": (f'{HEADER}"{A}"x,cat,photo\n', "line 2 is not CSV"),
    "latin.csv": (
        f"{HEADER}caf\xe9.png,cat,photo\n".encode("latin-1"),
        "UTF-8 text; save it as CSV UTF-8",
    ),
    "broken.json": ('[\n{"path": "x"\n', "line 3 is not JSON"),
    "object.json": ("{}", "must hold a list of objects, got dict"),
    "number.json": ("[\n\n7]", "line 3 must begin an object, got 7"),
    "empty.json": ("[]", "lists no images"),
    "column.json": (
        json.dumps(
            [{"path": A, "class": "cat", "domain": "x"}, {"path": B, "class": "c"}], indent=1
        ),
        "line 7 must give its domain as text, got nothing",
    ),
    "kind.json": (f'[{{"path": "{A}", "class": 3, "domain": "x"}}]', "its class as text, got 3"),
    "list.txt": (HEADER, "must end in one of .csv, .tsv, .json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named_with_its_line(folder: Path, name: str) -> None:
    content, message = REFUSED[name]
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError) as caught:
        image_manifest("mine", folder / name)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(folder / name))


def test_ten_missing_files_are_named(folder: Path) -> None:
    lines = [f"{i}.png,cat,photo" for i in range(13)]
    (folder / "m.csv").write_text(HEADER + "\n".join(lines))
    with pytest.raises(ValueError, match=r"0\.png \(line 2\), .* and 3 more$") as caught:
        image_manifest("mine", folder / "m.csv")
    assert str(caught.value).count("(line ") == 10


def test_no_such_manifest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file: .*m\.csv"):
        image_manifest("mine", tmp_path / "m.csv")
