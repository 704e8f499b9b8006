"""Sources of ``predict``: files, folders, images in memory, tables, rows; and wrong ones."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import nn

from shoal.algorithms import find
from shoal.cli import main
from shoal.cli.predict import NAMED
from shoal.fitting import predictor
from shoal.fitting.predictor import Predictor
from shoal.networks import Network, Standardise
from shoal.runs.model import Model
from tests.fitting.made import write_images
from tests.fitting.test_predictor import small

COLUMNS = [
    {"name": "age", "kind": "number", "gaps": False},
    {"name": "colour", "kind": "category", "values": ["green", "red"]},
]
ROWS = [
    {"age": 1.0, "colour": "red"},
    {"age": torch.tensor(-2.0), "colour": "green"},
    {"age": np.float32(3), "colour": "blue"},
]
TABLE = {"age": [1.0, -2.0, 3.0], "colour": ["red", "green", "blue"]}


class Frame:
    """As much of a data frame as is asked for."""

    def __init__(self, table: dict[Any, list[Any]]) -> None:
        self.table = table
        self.columns = list(table)

    def __getitem__(self, name: Any) -> Any:
        return np.array(self.table[name])

    def __iter__(self) -> Any:
        return iter(self.columns)

    def to_dict(self) -> None: ...


def of_tables(columns: list[dict[str, Any]] = COLUMNS, **more: Any) -> Predictor:
    """Return a model of two columns, with a card of an older version or with ``more`` inputs."""
    torch.manual_seed(0)
    algorithm = find("erm")(Network(Standardise(3), nn.Linear(3, 2)), 2)
    inputs = {"columns": columns, **more}
    card = {"shape": [3], "classes": ["young", "old"], "inputs": inputs}
    return Predictor(Model(algorithm.eval(), card))


def with_range() -> Predictor:
    """Return the same model with the range of ages in training, and names of other columns."""
    seen = {"min": 20.0, "max": 70.0, "q01": 25.0, "q99": 65.0}
    return of_tables([COLUMNS[0] | {"seen": seen}, COLUMNS[1]], ignored=["id"])


def expected() -> list[dict[str, float]]:
    vectors = torch.tensor([[1.0, 0, 1], [-2, 1, 0], [3, 0, 0]])
    return [dict(zip(("young", "old"), row, strict=True)) for row in _chances(vectors)]


def _chances(vectors: torch.Tensor) -> list[list[float]]:
    found: list[list[float]] = of_tables().probabilities(vectors).tolist()
    return found


@pytest.mark.parametrize(
    "sources", [TABLE, Frame(TABLE), ROWS, iter(ROWS), tuple(ROWS), pyarrow.table(TABLE)]
)
def test_tables_and_rows_in_memory(sources: Any) -> None:
    found = of_tables().predict(sources)
    assert [one.error for one in found] == [None] * 3
    assert [one.unseen for one in found] == [(), (), ("colour",)]  # blue
    for one, values in zip(found, expected(), strict=True):
        assert one.probabilities == pytest.approx(values)


def test_one_row_and_columns_of_arrays() -> None:
    (one,) = of_tables().predict(ROWS[0])
    assert one.source == "row 1"
    assert one.probabilities == pytest.approx(expected()[0])
    columns = {"age": np.array([1, -2], np.float32), "colour": np.array(["red", "green"])}
    several = of_tables().predict([columns, ROWS[2]])
    assert [one.source for one in several] == ["the table: row 1", "the table: row 2", "row 1"]
    assert [one.probabilities for one in several] == [pytest.approx(row) for row in expected()]


def test_rows_that_cannot_be_read_do_not_stop_the_rest() -> None:
    missing = {"age": np.float32("nan"), "colour": "red"}
    found = of_tables().predict([ROWS[0], {"age": 1}, {"age": "x", "colour": "red"}, missing])
    assert [one.source for one in found] == [f"row {k}" for k in (1, 2, 3, 4)]
    assert [one.label is None for one in found] == [False, True, True, False]
    assert found[1].error == "row 2: it lacks the column colour; the model takes age, colour"
    assert found[2].error == "row 3: column 'age' must hold numbers, got 'x'"
    (uneven,) = of_tables().predict({"age": [1, 2], "colour": ["red"]})
    assert uneven.error is not None
    assert "equally long, got 2 in 'age', 1 in 'colour'" in uneven.error
    assert of_tables().predict([]) == []


def test_short_and_long_lines_do_not_stop_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age,colour\n1,red\n\n5\n-2,green\n1,red,x\nold,red\n3,blue\n")
    found = of_tables().predict(path)
    assert [one.source for one in found] == [f"{path}: row {k}" for k in range(1, 7)]
    assert {k: one.error for k, one in enumerate(found) if one.error} == {
        1: f"{path}: row 2: line 4 must have 2 fields, got 1",
        3: f"{path}: row 4: line 6 must have 2 fields, got 3",
        4: f"{path}: row 5: column 'age' must hold numbers, got 'old'",
    }
    answered = [one.probabilities for one in found if one.error is None]
    assert answered == [pytest.approx(row) for row in expected()]
    path.write_text("age,colour\n1\n")
    (alone,) = of_tables().predict(path)
    assert alone.error == f"{path}: row 1: line 2 must have 2 fields, got 1"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_is_read_in_blocks_and_classified_in_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Block by block: the first predictions come before the file is read to its end."""
    model, path = of_tables(), tmp_path / f"t.{suffix}"
    ages = [str(k) if k % 97 else "old" for k in range(1, 20_000)]
    if suffix == "csv":
        path.write_text("age,colour\n" + "".join(f"{age},red\n" for age in ages))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"age": ages, "colour": ["red"] * 19_999}), path)
    whole = model.predict(path)
    assert [one.source for one in whole] == [f"{path}: row {k}" for k in range(1, 20_000)]
    assert [k for k, one in enumerate(whole, 1) if one.error] == list(range(97, 20_000, 97))
    monkeypatch.setattr("shoal.datasets.csv_blocks.BLOCK", 5_000)
    monkeypatch.setattr("shoal.datasets.tables.BATCH", 1_111)
    batches, blocks = list[int](), list[int]()
    outputs, read = model.outputs, predictor.read_blocks

    def batched(make: Any, inputs: torch.Tensor) -> torch.Tensor:
        batches.append(len(inputs))
        return outputs(make, inputs)

    def counted(*given: Any) -> Any:
        for block in read(*given):
            blocks.append(len(block["age"]))
            yield block

    monkeypatch.setattr(model, "outputs", batched)
    monkeypatch.setattr(predictor, "read_blocks", counted)
    found = model.predictions(path)
    first = next(found)
    assert sum(blocks) < 6_000
    assert [first, *found] == whole
    assert len(blocks) > 10 and max(blocks) < 1_500
    assert all(size % model._size == 0 for size in batches[:-1])


def test_rows_before_a_line_that_is_no_csv_are_classified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.datasets.csv_blocks.BLOCK", 8)
    path = tmp_path / "t.csv"
    path.write_text('age,colour\n1,red\n-2,green\n3,"bl"ue\n4,red\n')
    *good, last = of_tables().predict(path)
    assert [one.probabilities for one in good] == [pytest.approx(row) for row in expected()[:2]]
    assert last.error == f"{path}: line 4 is not CSV: ',' expected after '\"'"


def test_the_command_counts_what_was_never_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.fitting.predictor.load", lambda *_: of_tables())
    path = tmp_path / "t.tsv"
    path.write_text("age\tcolour\n1\tred\n2\tblue\n3\t\n4\tpink\n")
    assert main(["predict", str(tmp_path), str(path)]) == 0
    assert capsys.readouterr().err == (
        f"shoal: {path}: row 3 is unlike all in training: colour is missing, in training it never "
        "was\n"
        "shoal: 2 values of 'colour' did not occur in training and are ignored\n"
    )
    path.write_text("age\tcolour\n1\tred\n1e39\tred\n2\n")
    assert main(["predict", str(tmp_path), str(path), "--csv"]) == 1
    found = capsys.readouterr()
    assert len(found.out.splitlines()) == 4
    assert f"shoal: {path}: row 3: line 4 must have 2 fields, got 1\n" in found.err


def test_the_command_names_a_few_rows_that_it_cannot_classify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.fitting.predictor.load", lambda *_: of_tables())
    path = tmp_path / "t.tsv"
    path.write_text("age\tcolour\n" + "1,5\tred\n" * 30)
    assert main(["predict", str(tmp_path), str(path)]) == 1
    *named, last = capsys.readouterr().err.splitlines()
    assert len(named) == NAMED
    assert named[0].endswith("must hold numbers, got '1,5'; write it with a point")
    assert last == ("shoal: 30 rows in all cannot be classified; --csv and --json say why for each")


def test_numbers_unlike_all_in_training_are_marked() -> None:
    words = ("age is 6300, in training it was 20 to 70",)
    table = {"id": ["a", "b", "c"], "colour": ["red"] * 3, "age": [110.0, 6300.0, -20.5]}
    found = with_range().predict(table)
    assert [one.unusual for one in found] == [
        (),
        words,
        ("age is -20.5, in training it was 20 to 70",),
    ]
    assert found[1].label is not None  # and classified all the same
    rows = [{"age": age, "colour": "pink"} for age in (50, 6300)]
    assert [one.unusual for one in with_range().predict(rows)] == [(), words]
    assert [one.unseen for one in with_range().predict(rows)] == [("colour",), ("colour",)]
    with pytest.warns(UserWarning, match=r"^2 rows are unlike all in training, such as row 2: age"):
        with_range().predict_proba(table)
    assert [one.unusual for one in of_tables().predict(table)] == [()] * 3  # an older card
    (other,) = with_range().predict({**table, "sex": ["f"] * 3})
    assert other.error == (
        "the table has a column that was not in training: sex; the model takes age, colour"
    )


@pytest.mark.parametrize("form", ["", "--csv", "--json"])
def test_the_command_marks_unlike_rows(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.fitting.predictor.load", lambda *_: with_range())
    monkeypatch.setattr("shoal.cli.predict.NAMED", 2)
    path = tmp_path / "t.csv"
    path.write_text("colour,age\nred,50\nred,6300\nred,999\nred,old\nred,-99\n")
    assert main(["predict", "model", str(path), *filter(None, [form])]) == 1
    out, err = capsys.readouterr()
    told = "is unlike all in training: age is"
    assert err.splitlines() == [
        f"shoal: {path}: row 2 {told} 6300, in training it was 20 to 70",
        f"shoal: {path}: row 3 {told} 999, in training it was 20 to 70",
        f"shoal: {path}: row 4: column 'age' must hold numbers, got 'old'",
        "shoal: 3 rows are unlike all in training; --csv and --json mark them",
    ]
    found = with_range().predict(path)
    if form == "--csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        head = ["source", "class", "probability", "young", "old", "error", "unusual"]
        assert list(rows[0]) == head
        assert [row["unusual"] for row in rows] == ["; ".join(one.unusual) for one in found]
        assert [row["error"] for row in rows] == [one.error or "" for one in found]
        assert rows[3] == dict.fromkeys(head, "") | {
            "source": found[3].source,
            "error": found[3].error,
        }
        assert [row["old"] for row in rows if row["old"]] == [
            f"{one.probabilities['old']:.6f}" for one in found if one.error is None
        ]
    elif form == "--json":
        rows = [json.loads(line) for line in out.splitlines()]
        expected = [asdict(one) | {"unseen": [], "unusual": list(one.unusual)} for one in found]
        for one in expected:  # which only monitor looks at
            assert one.pop("features") is None and one.pop("energy") is None
        assert rows == expected
    else:
        assert out.splitlines() == [
            f"{one.source}: {one.label} ({100 * one.probability:.1f} %)"
            for one in found
            if one.probability is not None
        ]


def test_rows_of_which_the_model_knows_nothing_are_errors() -> None:
    model = of_tables()
    torch.nn.init.constant_(model.module.algorithm.model.classifier.weight, 30.0)
    known, far, beyond = model.predict({"age": ["1", "1e38", "1e39"], "colour": ["red"] * 3})
    assert known.label is not None
    assert (far.label, far.probability, far.probabilities) == (None, None, {})
    assert far.error is not None
    assert far.error.startswith("the table: row 2: the probabilities are not finite")
    assert beyond.error is not None
    assert beyond.error.endswith("'age' must hold numbers of 3.4e+38 at most, got '1e39'")


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    write_images(tmp_path, each=2)
    (tmp_path / "hospital_a/.hidden/none").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "hospital_a/.hidden/0.png")
    (tmp_path / "__MACOSX").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "__MACOSX/0.png")
    (tmp_path / "table.csv").write_text("age,colour\n1,red\n")
    images = sorted(tmp_path.glob("hospital_?/[bd]*/*.png"))
    assert [one.source for one in small().predict(tmp_path)] == list(map(str, images))
    listed = small().predict([str(images[3]), str(tmp_path / "hospital_b")])
    assert [one.source for one in listed] == list(map(str, [images[3], *images[4:8]]))
    assert [one.source for one in of_tables().predict(tmp_path)] == [f"{tmp_path}/table.csv: row 1"]


def test_an_empty_folder_does_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    (tmp_path / "table.csv").write_text("age,colour\n1,red\n")
    for model, kind, file in (
        (small(), "images", tmp_path / "0.png"),
        (of_tables(), "tables", tmp_path / "table.csv"),
    ):
        empty, other = model.predict([tmp_path / "none", file])
        assert (empty.source, empty.label) == (str(tmp_path / "none"), None)
        assert empty.error == f"there are no {kind} in {tmp_path / 'none'}"
        assert other.error is None


def test_no_file_of_a_folder_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shoal.fitting.predictor.load", lambda *_: small())
    new = tmp_path / "new"
    (new / "deeper").mkdir(parents=True)
    for name in ("a.webp", "b.gif", "noise"):
        Image.new("RGB", (8, 8)).save(new / name, format="png")
    (new / "IMG.heic").write_bytes(b"....ftypheic")
    (new / "link.png").symlink_to("nowhere.png")
    (new / "deeper/around").symlink_to(new)
    (tmp_path / "other").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "other/c.png")
    (new / "other").symlink_to(tmp_path / "other")
    for name in ("Thumbs.db", ".hidden.png", "notes.TXT", "labels.csv", "deeper/about.json"):
        (new / name).write_text("x")
    assert main(["predict", "model", str(new)]) == 1
    found = capsys.readouterr()
    classified = [line.partition(":")[0] for line in found.out.splitlines()]
    assert classified == [str(new / name) for name in ("a.webp", "b.gif", "other/c.png")]
    assert found.err.splitlines() == [
        f"shoal: skipped 4 files in {new}, without the suffix of an image",
        f"shoal: cannot read {new / 'IMG.heic'}: not an image file, or its header is damaged",
        f"shoal: there is no file {new / 'link.png'}",
    ]


def test_files_that_change_or_vanish_are_errors_of_their_own(tmp_path: Path) -> None:
    for number in range(40):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(tmp_path / f"{number:02}.png")
    paths = sorted(tmp_path.iterdir())
    every = small().predictions(tmp_path)
    found = [next(every)]  # the folder has been listed
    content = paths[36].read_bytes()
    paths[36].write_bytes(content[:-40])
    paths[37].write_text("replaced")
    paths[38].unlink()
    (tmp_path / "40.png").write_bytes(content)  # came too late
    found += every
    assert [one.source for one in found] == list(map(str, paths))
    assert {k: one.error for k, one in enumerate(found) if one.error} == {
        36: f"cannot read {paths[36]}: damaged or truncated (image file is truncated)",
        37: f"cannot read {paths[37]}: not an image file, or its header is damaged",
        38: f"there is no file {paths[38]}",
    }


def test_few_files_are_read_ahead_of_their_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So memory does not grow with their number."""
    from shoal.fitting import predictor

    read, before = list[str](), predictor._read

    def counted(name: str, *others: Any) -> Any:
        read.append(name)
        return before(name, *others)

    monkeypatch.setattr(predictor, "_read", counted)
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    most = 2 * torch.get_num_threads() * predictor.BATCH["cpu"] + predictor.BATCH["cpu"]
    for number, one in enumerate(small().predictions([tmp_path / "0.png"] * (4 * most)), 1):
        assert one.error is None and len(read) <= number + most


def test_pictures_are_answered_as_their_files(tmp_path: Path) -> None:
    paths = sorted(write_images(tmp_path).rglob("*.png"))[:3]
    files = [one.probabilities for one in small().predict(paths)]
    pictures = [Image.open(path) for path in paths]
    arrays = np.stack([np.array(picture) for picture in pictures])
    for given in (pictures, arrays, [paths[0], pictures[1], arrays[2]]):
        found = small().predict(given)
        assert [one.probabilities for one in found] == [pytest.approx(row) for row in files]
        assert found[2].source == "image 3"
    for given in (pictures[0], arrays[0]):
        (one,) = small().predict(given)
        assert one.probabilities == pytest.approx(files[0])
    deep, *rest = small().predict([Image.new("I;16", (8, 8)), pictures[0]])
    assert deep.error == (
        "image 1: more than 8 bits a channel (Pillow mode 'I;16'); convert the image to 8 bits"
    )
    assert rest[0].probabilities == pytest.approx(files[0])


@pytest.mark.parametrize(
    ("sources", "came"),
    [
        (np.zeros((3, 2)), r"ndarray float64 \[3, 2\]"),
        (torch.zeros(3, 2), r"Tensor torch.float32 \[3, 2\]"),
        ([[1.0, "red"]], "list of list"),
        (Image.new("RGB", (8, 8)), "Image"),
        (7, "int"),
    ],
)
def test_what_a_model_of_tables_does_not_take(sources: Any, came: str) -> None:
    told = rf"data frames, or dicts .* got {came}; .* float32 tensor \[n, 3\], .* probabilities\(\)"
    with pytest.raises(ValueError, match=told):
        of_tables().predict(sources)


@pytest.mark.parametrize(
    ("sources", "came"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"ndarray uint8 \[3, 8, 8\]"),
        (np.zeros((8, 8, 3)), r"ndarray float64 \[8, 8, 3\]"),
        (torch.zeros(2, 3, 224, 224), r"Tensor torch.float32 \[2, 3, 224, 224\]"),
        (Frame(TABLE), "Frame"),
        (ROWS[0], "dict"),
        (ROWS, "list of dict"),
        (None, "NoneType"),
    ],
)
def test_what_a_model_of_images_does_not_take(sources: Any, came: str) -> None:
    told = rf"PIL images, .* got {came}; .* uint8 tensor \[n, 3, 224, 224\], .* probabilities\(\)"
    with pytest.raises(ValueError, match=told):
        small().predict(sources)
