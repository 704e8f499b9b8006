"""Columns by name: any order, missing and unknown ones are named; frames in and out; saving."""

import csv
import datetime
import io
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

import shoal
from shoal.cli import main
from tests.fitting.test_predictor import small
from tests.fitting.test_predictor_sources import of_tables

pandas = pytest.importorskip("pandas", reason="no pandas")
polars = pytest.importorskip("polars", reason="no polars")

Output = pytest.CaptureFixture[str]
Table = dict[str, Any]
FRAMES: dict[str, Callable[[Table], Any]] = {
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "pyarrow": pyarrow.table,
    "dict": dict,
}
by_library = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
DOMAINS = np.array(["north", "south", "west"])[np.arange(90) % 3]


def numbers() -> Table:
    """Return three columns of which the first tells the class."""
    random = np.random.RandomState(0)
    return {"age": 50 + 10 * random.randn(90), "dose": random.rand(90), "b": random.randn(90)}


def mixed() -> Table:
    """Return a number, a number with gaps and a category."""
    table: Table = {"age": numbers()["age"].tolist()}
    table["dose"] = [None if k % 7 == 0 else k / 10 for k in range(90)]
    table["colour"] = [("red", "green", "blue")[k % 5 % 3] for k in range(90)]
    return table


def classes(table: Table) -> np.ndarray[Any, Any]:
    return np.where(np.array(table["age"]) > 50, "old", "young")


def make() -> shoal.DomainClassifier:
    return shoal.DomainClassifier("erm", steps=20, hparams={"lr": 0.01}, device="cpu")


def fitted(table: Table, X: Any) -> shoal.DomainClassifier:
    return make().fit(X, classes(table), DOMAINS)


def reordered(table: Table) -> Table:
    return {name: table[name] for name in reversed(table)}


@by_library
def test_reordered_columns_give_the_same_answers(frame: Callable[[Table], Any]) -> None:
    table = numbers()
    model = fitted(table, frame(table))
    expected = model.predict_proba(frame(table))
    assert (model.predict_proba(frame(reordered(table))) == expected).all()
    assert model.score(frame(reordered(table)), classes(table)) > 0.9
    # Numbers are those of the array, as they are in scikit-learn.
    array = np.column_stack(list(table.values()))
    assert (fitted(table, array).predict_proba(array) == expected).all()


@by_library
def test_categories_and_gaps_are_encoded_as_by_hand(frame: Callable[[Table], Any]) -> None:
    table = mixed()
    dose = np.array([np.nan if one is None else one for one in table["dose"]])
    texts = np.array(table["colour"])
    by_hand = np.column_stack(
        [table["age"], dose, np.isnan(dose), texts == "blue", texts == "green", texts == "red"]
    )
    expected = fitted(table, by_hand).predict_proba(by_hand)
    model = fitted(table, frame(table))
    assert (model.predict_proba(frame(reordered(table))) == expected).all()
    assert model.n_features_in_ == 3


def test_kinds_of_missing_values_of_pandas() -> None:
    table = mixed()
    expected = fitted(table, pandas.DataFrame(table)).predict_proba(pandas.DataFrame(table))
    frame = pandas.DataFrame(table).convert_dtypes().astype({"colour": "category"})
    assert frame["dose"].dtype == "Float64"
    assert (fitted(table, frame).predict_proba(frame) == expected).all()
    as_objects = frame.astype(object)
    assert as_objects["dose"][0] is pandas.NA
    assert (fitted(table, as_objects).predict_proba(as_objects) == expected).all()


def kinds() -> dict[str, Any]:
    """Return one table as frames: categories that are numbers, and gaps in columns of all kinds."""
    site = [None if k == 3 else (1, 2, 7)[k % 3] for k in range(90)]
    count = [None if k % 7 == 0 else k * k % 11 for k in range(90)]
    flag, text = [None, True, False] * 30, ["x", None, "y", "x", "y"] * 18
    of_pandas = pandas.DataFrame(
        {
            "site": pandas.Categorical(site),
            "count": pandas.array(count, dtype="Int64"),
            "flag": pandas.array(flag, dtype="boolean"),
            "text": pandas.array(text, dtype="string"),
        }
    )
    texts = [None if one is None else str(one) for one in site]
    of_polars = polars.DataFrame(
        {"site": polars.Series(texts, dtype=polars.Categorical), "count": count}
        | {"flag": flag, "text": text}
    )
    columns = {"count": count, "flag": flag, "text": text}
    return {
        "pandas": of_pandas,
        "pandas of pyarrow": of_pandas.astype(
            {"count": "int64[pyarrow]", "flag": "bool[pyarrow]", "text": "string[pyarrow]"}
        ),
        "polars": of_polars,
        "polars enum": of_polars.with_columns(
            polars.col("site").cast(polars.String).cast(polars.Enum(["1", "2", "7"]))
        ),
        "pyarrow": pyarrow.table({"site": pyarrow.array(site).dictionary_encode(), **columns}),
    }


@pytest.mark.parametrize("library", kinds())
def test_categories_and_nullable_columns_of_every_library(library: str) -> None:
    frame = kinds()[library]
    y = np.arange(90) % 2
    model = make().fit(frame, y, DOMAINS)
    encoding = model.predictor_.encoding
    assert encoding is not None
    assert [(one.name, one.values, one.gaps) for one in encoding.columns] == [
        ("site", ("", "1", "2", "7"), False),
        ("count", None, True),
        ("flag", ("", "False", "True"), False),
        ("text", ("", "x", "y"), False),
    ]
    expected = make().fit(kinds()["pandas"], y, DOMAINS).predict_proba(kinds()["pandas"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (model.predict_proba(frame) == expected).all()
        # Numbers that are not called categories are those of the fit.
        new = {"site": [1, 2], "count": [3, None], "flag": [True, None], "text": ["x", "y"]}
        assert model.predict_proba(pandas.DataFrame(new)).shape == (2, 2)


def dates(frame: Callable[[Table], Any]) -> dict[str, Any]:
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(k) for k in range(90)]
    moments = [datetime.datetime(2020, 1, 1, k % 24) for k in range(90)]
    given = {"dates": days, "moments": moments, "gaps": [None, *moments[1:]]}
    found = {name: frame({**numbers(), "when": values}) for name, values in given.items()}
    return found | {
        "spans": frame({**numbers(), "when": [datetime.timedelta(k) for k in range(90)]})
    }


@by_library
def test_dates_and_times_are_refused(frame: Callable[[Table], Any]) -> None:
    for X in dates(frame).values():
        with pytest.raises(ValueError, match=r"'when' of X holds dates or times.* the month"):
            fitted(numbers(), X)


def test_dates_of_numpy_are_refused() -> None:
    when = np.arange(90).astype("datetime64[ns]")
    for X in ({**numbers(), "when": when}, pandas.DataFrame(numbers()).assign(when=when)):
        with pytest.raises(ValueError, match="holds dates or times"):
            fitted(numbers(), X)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (pandas.Series([0, 1] * 45, dtype="Int64"), np.array([0, 1])),
        (pandas.Series([0, 1] * 45).astype("category"), np.array([0, 1])),
        (pandas.Series([True, False] * 45, dtype="boolean"), np.array([False, True])),
        (pandas.Series(["a", "b"] * 45, dtype="string"), np.array(["a", "b"], dtype=object)),
        (polars.Series([0, 1] * 45), np.array([0, 1])),
        (pyarrow.array([0, 1] * 45), np.array([0, 1])),
    ],
)
def test_labels_and_domains_of_every_library(y: Any, classes: np.ndarray[Any, Any]) -> None:
    table, domains = numbers(), pandas.Series(DOMAINS, dtype="string")
    model = make().fit(pandas.DataFrame(table), y, domains)
    assert model.classes_.dtype == classes.dtype
    assert model.classes_.tolist() == classes.tolist()
    assert model.domains_.tolist() == ["north", "south", "west"]
    assert 0 < model.score(pandas.DataFrame(table), y) < 1
    with pytest.raises(ValueError, match="y must have no missing values, got 1 of 90"):
        make().fit(table, pandas.Series([None, *[0, 1] * 44, 0], dtype="Int64"), domains)


def test_gaps_of_a_frame_without_names() -> None:
    table = numbers()
    frame = pandas.DataFrame({0: table["age"], 1: pandas.array([1, None] * 45, dtype="Int64")})
    array = np.column_stack([table["age"], [1, np.nan] * 45])
    expected = fitted(table, array).predict_proba(array)
    assert (fitted(table, frame).predict_proba(frame) == expected).all()


def test_names_and_numbers_of_columns() -> None:
    table = numbers()
    model, array = fitted(table, pandas.DataFrame(table)), np.column_stack(list(table.values()))
    assert model.feature_names_in_.tolist() == ["age", "dose", "b"]
    assert model.feature_names_in_.dtype == object
    assert model.n_features_in_ == 3
    model.fit(array, classes(table), DOMAINS)
    assert not hasattr(model, "feature_names_in_")
    # Numbers instead of names are positions.
    model.fit(pandas.DataFrame(array), classes(table), DOMAINS)
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 3
    with pytest.raises(TypeError, match="must all be strings, got int, str; rename them"):
        model.fit(pandas.DataFrame({"a": [1, 2], 1: [1, 2]}), ["x", "y"], ["a", "b"])


def test_ignored_columns_are_named_and_may_be_absent() -> None:
    table = numbers()
    with pytest.warns(UserWarning, match="ignored columns, .*: year, name$"):
        names = [f"patient {k}" for k in range(90)]
        model = fitted(table, pandas.DataFrame({"year": 2023, "name": names, **table}))
    assert model.feature_names_in_.tolist() == ["year", "name", "age", "dose", "b"]
    assert model.n_features_in_ == 5
    expected = fitted(table, pandas.DataFrame(table)).predict_proba(pandas.DataFrame(table))
    for more in ({}, {"year": 2024}, {"name": "x"}):
        frame = pandas.DataFrame({**table, **more})
        assert (model.predict_proba(frame) == expected).all()
    # An array has all columns of the fit.
    array = pandas.DataFrame({"year": 2023, "name": names, **table}).to_numpy()
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert (model.predict_proba(array) == expected).all()
    with (
        pytest.raises(ValueError, match=r"X must be \[n, 5\] as in fit, got \[90, 3\]"),
        pytest.warns(UserWarning, match="does not have valid feature names"),
    ):
        model.predict_proba(array[:, 2:])


def test_mixing_names_and_arrays_warns_as_scikit_learn() -> None:
    table = numbers()
    frame, array = pandas.DataFrame(table), np.column_stack(list(table.values()))
    for first, then in ((frame, array), (array, frame)):
        theirs = LogisticRegression(max_iter=1000).fit(first, classes(table))
        ours, told = fitted(table, first), []
        for model in (theirs, ours):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = model.predict_proba(then)
            told.append([str(one.message) for one in caught])
        assert len(told[0]) == 1
        assert told[1] == [told[0][0].replace("LogisticRegression", "DomainClassifier")]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert (ours.predict_proba(first) == found).all()


def test_wrong_columns_are_all_named() -> None:
    table = numbers()
    model = fitted(table, pandas.DataFrame(table))
    frame = pandas.DataFrame(table).rename(columns={"dose": "doses", "b": "site"})
    with pytest.raises(ValueError) as caught:
        model.predict(frame)
    assert str(caught.value) == (
        "X lacks the columns dose (is it 'doses'?), b and has columns that were not in training: "
        "doses, site; the model takes age, dose, b"
    )
    more = pandas.DataFrame({**table, "class": classes(table)})
    with pytest.raises(ValueError) as caught:
        model.predict(more)
    assert str(caught.value) == (
        "X has a column that was not in training: class; the model takes age, dose, b"
    )
    twice = pandas.DataFrame([[1, 2, 3, 4]], columns=["age", "b", "age", "dose"])
    with pytest.raises(ValueError, match="one column of each name, got several 'age'"):
        model.predict(twice)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"age": ["x"] + [50.5 + k for k in range(89)]}, r"X: column 'age' has numbers, but 'x'"),
        ({"dose": np.array([np.inf, *range(89)])}, r"'dose' has .* at most, but inf in row 1"),
        ({"age": [1] * 90, "dose": [1] * 90, "b": [1] * 90}, "X: there is no column to learn from"),
    ],
)
def test_frames_that_cannot_be_fitted(change: Table, why: str) -> None:
    table = numbers()
    with pytest.raises(ValueError, match=why):
        fitted(table, pandas.DataFrame({**table, **change}))


def test_a_classifier_warns_of_what_is_unlike_all() -> None:
    table = mixed()
    model = fitted(table, pandas.DataFrame(table))
    new = pandas.DataFrame({"age": [50, 6300, 50], "dose": [1, 1, 1], "colour": ["red"] * 3})
    with pytest.warns(UserWarning) as caught:
        model.predict(new)
    extremes = f"{min(table['age']):.6g} to {max(table['age']):.6g}"
    assert [str(one.message) for one in caught] == [
        "1 row is unlike all in training, such as row 2: age is 6300, in training it was "
        f"{extremes}"
    ]
    with pytest.warns(
        UserWarning, match=r"^2 values of 'colour' did not occur in training and are"
    ):
        model.predict(new.assign(age=50, colour=["pink", "red", "grey"]))


# Saving


def test_a_saved_classifier_is_a_model_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    table = mixed()
    frame = pandas.DataFrame(table)
    with pytest.raises(NotFittedError, match="call fit first"):
        make().save("model")
    model = fitted(table, frame)
    model.save("model")
    assert sorted(path.name for path in Path("model").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]
    expected = model.predict_proba(frame)
    loaded = shoal.load("model", "cpu")
    assert loaded.classes == ("old", "young")
    assert (loaded.predict_proba(frame[["colour", "age", "dose"]]) == expected).all()
    assert [one.label for one in loaded.predict(frame)] == model.predict(frame).tolist()

    frame.assign(**{"class": classes(table), "domain": DOMAINS}).to_csv("t.csv", index=False)
    assert main(["eval", "model", "--dataset", "t.csv", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    right = model.predict(frame) == classes(table)
    for name in ("north", "south", "west"):
        assert found[name]["accuracy"] == pytest.approx(right[name == DOMAINS].mean())
    frame.to_csv("new.csv")  # with a column without a name
    assert main(["predict", "model", "new.csv", "--csv", "--device", "cpu"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["young"]) for row in rows] == pytest.approx(expected[:, 1], abs=1e-6)


def test_a_saved_model_of_an_array(tmp_path: Path) -> None:
    table = numbers()
    array = np.column_stack(list(table.values()))
    array[::9, 2] = np.nan
    model = make().fit(array, np.where(table["age"] > 50, 1.0, 0.0), np.arange(90) % 3)
    expected = model.predict_proba(array)
    model.save(tmp_path / "model")
    loaded = shoal.load(tmp_path / "model", "cpu")
    assert loaded.classes == ("0", "1")
    assert loaded.card["training_domains"] == ["0", "1", "2"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (loaded.predict_proba(array) == expected).all()
        assert (loaded.predict_proba(torch.from_numpy(array)) == expected).all()
        frame = pandas.DataFrame(array, columns=["x0", "x1", "x2"])
        assert (loaded.predict_proba(frame[["x2", "x0", "x1"]]) == expected).all()
    with pytest.raises(ValueError, match=r"X must be \[n, 3\] as in fit, got \[90, 2\]"):
        loaded.predict_proba(array[:, :2])
    with pytest.raises(ValueError, match="lacks the columns x0, x1, x2 and has columns"):
        loaded.predict_proba(pandas.DataFrame(table))


def test_saved_images_and_folders_that_are_taken(tmp_path: Path) -> None:
    random, y = np.random.RandomState(0), np.arange(12) % 2
    X = random.randint(0, 255, (12, 1, 28, 28)).astype(np.uint8)
    hparams = {"batch_size": 2}
    model = shoal.DomainClassifier("fishr", steps=1, hparams=hparams, device="cpu")
    model.fit(X, y, np.arange(12) // 6).save(tmp_path / "deep" / "model")
    loaded = shoal.load(tmp_path / "deep" / "model", "cpu")
    found = loaded.probabilities(torch.from_numpy(X)).numpy()
    assert (found == model.predict_proba(X)).all()
    assert loaded.card["inputs"] == {"kind": "images"}
    for name, what in (("run.json", "a run"), ("fit.json", "a fit")):
        (tmp_path / what).mkdir()
        (tmp_path / what / name).write_text("{}")
        with pytest.raises(ValueError, match=f"holds {what}; choose another folder"):
            model.save(tmp_path / what)


# A loaded model


def test_probabilities_of_any_source(tmp_path: Path) -> None:
    table = {"age": [1.0, -2.0], "colour": ["red", "green"]}
    rows = [{"age": 1.0, "colour": "red"}, {"age": -2.0, "colour": "green"}]
    (tmp_path / "t.csv").write_text("colour,age\nred,1\ngreen,-2\n")
    expected = of_tables().probabilities(torch.tensor([[1.0, 0, 1], [-2, 1, 0]])).numpy()
    for source in (table, pandas.DataFrame(table), pyarrow.table(table), rows, tmp_path / "t.csv"):
        np.testing.assert_allclose(of_tables().predict_proba(source), expected, rtol=1e-6)
    assert of_tables().predict_proba([]).shape == (0, 2)
    assert of_tables().predict_proba(pandas.DataFrame(table)[:0]).shape == (0, 2)
    pictures = np.random.RandomState(0).randint(0, 255, (2, 9, 8, 3)).astype(np.uint8)
    found = [list(one.probabilities.values()) for one in small().predict(pictures)]
    np.testing.assert_allclose(small().predict_proba(pictures), found, rtol=1e-6)
    with pytest.raises(ValueError, match="there is no file"):
        small().predict_proba(tmp_path / "gone.png")
    with pytest.raises(ValueError, match="'age' must hold numbers, got 'x'"):
        of_tables().predict_proba({"age": ["x"], "colour": ["red"]})
    with pytest.raises(ValueError, match="probabilities are not finite"):
        model = of_tables()
        torch.nn.init.constant_(model.module.algorithm.model.classifier.weight, 30.0)
        model.predict_proba({"age": [1e38], "colour": ["red"]})
    # This model knows its columns by name.
    with pytest.raises(ValueError, match=r"data frames, .* got ndarray float64 \[2, 2\]"):
        of_tables().predict_proba(np.zeros((2, 2)))


def test_a_frame_gives_a_frame() -> None:
    table = {"age": ["1", "x", "-2"], "colour": ["red", "red", "green"]}
    model = of_tables()
    frame = pandas.DataFrame(table, index=["p", "q", "r"])
    found = model.predict(frame, as_frame=True)
    assert found.index.tolist() == ["p", "q", "r"]
    assert found.columns.tolist() == ["class", "probability", "young", "old", "error", "unusual"]
    one, none, other = model.predict(frame)
    assert found["class"].tolist()[::2] == [one.label, other.label]
    assert found["young"].tolist()[::2] == [
        one.probabilities["young"],
        other.probabilities["young"],
    ]
    assert found["probability"]["r"] == other.probability
    assert found.loc["q"].isna().tolist() == [True, True, True, True, False, False]
    assert found["error"]["q"] == none.error
    again = model.predict(polars.DataFrame(table), as_frame=True)
    assert isinstance(again, polars.DataFrame)
    assert again["old"].to_list() == [one.probabilities["old"], None, other.probabilities["old"]]
    again = model.predict(pyarrow.table(table), as_frame=True)
    assert isinstance(again, pyarrow.Table)
    assert again["class"].to_pylist() == [one.label, None, other.label]
    with pytest.raises(ValueError, match=r"as_frame=True takes one data frame .* got dict"):
        model.predict(table, as_frame=True)
    with pytest.raises(ValueError, match="the table lacks the column colour"):
        model.predict(frame[["age"]], as_frame=True)
    model.classes = ("young", "error")
    with pytest.raises(ValueError, match="a class is called 'error'"):
        model.predict(frame, as_frame=True)


def test_frames_are_read_without_pandas_and_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    table = {"age": [1.0], "colour": ["red"]}
    found = of_tables().predict(pyarrow.table(table), as_frame=True)
    assert found["class"].to_pylist() == [of_tables().predict(table)[0].label]


def test_a_lazy_frame_must_be_read_first() -> None:
    frame = polars.DataFrame(numbers())
    with pytest.raises(TypeError, match=r"pass X\.collect\(\)"):
        shoal.DomainClassifier().fit(frame.lazy(), classes(numbers()))
