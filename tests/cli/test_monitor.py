"""``shoal monitor``: what it prints, its labels, and what it refuses."""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.cli import main
from shoal.cli.monitor import _labels
from shoal.documents import read_json
from shoal.storage import write_json

pytest.importorskip("sklearn", reason="no scikit-learn")
Output = pytest.CaptureFixture[str]


def write_sites(path: Path, sites: dict[str, float], domain: bool = True) -> None:
    """Write a table of three classes; the larger a site's number, the easier it is."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*(["site"] if domain else []), "outcome", "f0", "f1", "f2"])
        for site, ease in sites.items():
            for y in rng.integers(0, 3, 150):
                x = rng.normal(size=3) + ease * np.eye(3)[y]
                out.writerow([*([site] if domain else []), "xyz"[y], *x.round(4)])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of four sites, and a table of a fifth, which is harder."""
    folder = tmp_path_factory.mktemp("monitor")
    write_sites(folder / "known.csv", {"a": 2.5, "b": 2.0, "c": 1.5, "d": 2.2})
    write_sites(folder / "new.csv", {"e": 1.0}, domain=False)
    words = "--domain-column site --class-column outcome --only logistic-regression --runs 4"
    arguments = [str(folder / "known.csv"), *words.split(), "--out", str(folder / "model")]
    assert main(["fit", *arguments]) == 0
    return folder


def test_what_is_printed(place: Path, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["monitor", str(place / "model"), str(place / "new.csv")]) == 0
    said = capsys.readouterr().out
    assert (
        "Expected accuracy on these 150 rows" in said
        and "nine in ten such places are between" in said
    )
    assert "Measured" not in said
    assert (
        main(["monitor", str(place / "model"), str(place / "new.csv"), "--class-column", "outcome"])
        == 0
    )
    assert "Measured accuracy, by the labels" in capsys.readouterr().out


def test_a_harder_place_is_expected_to_be_harder(place: Path, capsys: Output) -> None:
    capsys.readouterr()
    words = ["monitor", str(place / "model"), str(place / "new.csv"), "--json"]
    assert main([*words, "--class-column", "outcome"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["usual"]  # of the known domains
    assert found["expected"] < low + (high - low) / 4
    assert found["expected"] == pytest.approx(found["measured"], abs=0.15)
    assert found["held"] is True
    assert found["unsure"] == sum(len(one) > 1 for one in found["likely"])


def test_in_python_and_as_csv_it_is_the_same(place: Path, capsys: Output) -> None:
    capsys.readouterr()
    assert main(["monitor", str(place / "model"), str(place / "new.csv"), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    model = shoal.load(place / "model", "cpu")
    found = model.monitor(place / "new.csv")
    assert [row["likely"].split("; ") for row in rows] == [list(one) for one in found.likely]
    assert [row["class"] for row in rows] == [one[0] for one in found.likely]
    with pytest.raises(ValueError, match="no such file"):
        model.monitor(place / "none.csv")


def test_the_card_keeps_what_the_runs_found(place: Path) -> None:
    card = read_json(place / "model" / "model.json")
    found = shoal.load(place / "model", "cpu").reference
    estimate = card["estimate"]["methods"]["logistic-regression"]
    assert len(found.accuracy.accuracies) == 4
    for name, accuracy in found.accuracy.accuracies.items():
        assert estimate["domains"][name]["mean"] == pytest.approx(accuracy)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert set(found.accuracy.tried) >= {"threshold", "confidence", "difference", "agreement"}
    features = found.features
    assert features is not None
    assert features.domains.names == ("a", "b", "c", "d")
    # The vectors of a table would be its rows.
    assert len(features.domains.vectors) == 0


def test_a_temperature_does_not_change_the_expectation(place: Path, tmp_path: Path) -> None:
    before = shoal.load(place / "model", "cpu").monitor(place / "new.csv")
    copy = tmp_path / "warm"
    copy.mkdir()
    for name in ("model.safetensors", "reference.safetensors"):
        (copy / name).write_bytes((place / "model" / name).read_bytes())
    card = read_json(place / "model" / "model.json")
    write_json(copy / "model.json", {**card, "temperature": 2.5})
    after = shoal.load(copy, "cpu").monitor(place / "new.csv")
    assert after.expected == pytest.approx(before.expected, abs=1e-6)
    assert after.likely == before.likely


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["site,outcome,f0"]
    lines += [f"{site},{y},{3 * y + rng.normal():.3f}" for site in "abc" for y in [0, 1] * 30]
    (tmp_path / "known.csv").write_text("\n".join(lines))
    words = "--domain-column site --class-column outcome --only logistic-regression --runs 3"
    out = ["--out", str(tmp_path / "model")]
    assert main(["fit", str(tmp_path / "known.csv"), *words.split(), *out]) == 0
    model = shoal.load(tmp_path / "model", "cpu")
    frame, truth = {"f0": [-1.0, 4.0, 4.0]}, np.array([0, 1, 0])
    for labels in (truth, truth.astype(float), ["0", "1", "0"]):
        assert model.monitor(frame, labels).measured == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="row 2 has no label"):
        model.monitor(frame, [0, None, 1])


def test_rows_that_cannot_be_read_are_skipped(place: Path, tmp_path: Path, capsys: Output) -> None:
    lines = (place / "new.csv").read_text().splitlines()
    lines[2] = "x,1.0,much,2.0"
    lines[5] = "x,1.0"
    (tmp_path / "new.csv").write_text("\n".join(lines))
    capsys.readouterr()
    words = ["monitor", str(place / "model"), str(tmp_path / "new.csv")]
    assert main([*words, "--class-column", "outcome", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["inputs"] == 148
    assert len(said.err.splitlines()) == 2
    # The labels of the other rows are still theirs.
    model = shoal.load(place / "model", "cpu")
    good = [one for one in model.predict(tmp_path / "new.csv") if one.error is None]
    labels = [line[0] for row, line in enumerate(lines) if row not in (0, 2, 5)]
    right = np.mean([one.label == label for one, label in zip(good, labels, strict=True)])
    assert json.loads(said.out)["measured"] == pytest.approx(right)


def test_the_column_of_classes_may_have_another_name(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    lines = (place / "new.csv").read_text().splitlines()
    lines[0] = lines[0].replace("outcome", "diagnosis")
    (tmp_path / "new.csv").write_text("\n".join(lines))
    capsys.readouterr()
    found = []
    for path, column in ((place / "new.csv", "outcome"), (tmp_path / "new.csv", "diagnosis")):
        words = ["monitor", str(place / "model"), str(path), "--json", "--class-column", column]
        assert main(words) == 0
        found.append(json.loads(capsys.readouterr().out)["measured"])
    assert found[0] == found[1] > 0
    assert main(["monitor", str(place / "model"), str(tmp_path / "new.csv")]) != 0
    assert "a column that was not in training: diagnosis" in capsys.readouterr().err


def test_rows_unlike_all_in_training_are_counted(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    lines = (place / "new.csv").read_text().splitlines()
    lines[3:5] = "x,6300,0,0", "x,,0,0"
    (tmp_path / "new.csv").write_text("\n".join(lines))
    capsys.readouterr()
    words = ["monitor", str(place / "model"), str(tmp_path / "new.csv")]
    assert main(words) == 0
    assert "2 rows are unlike all in training" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unusual"] == 2


def test_folders_with_the_names_of_classes_are_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    model: Any = SimpleNamespace(takes_rows=False, classes=("cat", "dog"))
    files = [Path("new/cat/1.png"), Path("new/dog/2.png")]
    assert _labels(model, files, [], None) == ["cat", "dog"]
    assert not capsys.readouterr().err
    assert _labels(model, [*files, Path("new/3.png")], [], None) is None
    assert "there is no class 'new', so the folders are not taken for labels" in (
        capsys.readouterr().err
    )
    assert _labels(model, [Path("new/3.png")], [], None) is None
    assert not capsys.readouterr().err  # without any label there is nothing to say
    (tmp_path / "cat").mkdir()
    monkeypatch.chdir(tmp_path / "cat")
    assert _labels(model, [Path("1.png"), Path("../dog/2.png")], [], None) == ["cat", "dog"]


def test_what_is_refused(place: Path, tmp_path: Path, capsys: Output) -> None:
    model, new = str(place / "model"), str(place / "new.csv")
    assert main(["monitor", model, new, "--class-column", "outcomes"]) == 2
    assert "did you mean 'outcome'?" in capsys.readouterr().err
    for option in ("--abstain", "--correct-shares"):
        assert main(["monitor", model, new, option]) == 2
        assert f"{option} changes the classes that --csv or --json print" in capsys.readouterr().err
    for name in ("model.safetensors", "model.json", "reference.safetensors"):
        (tmp_path / name).write_bytes((place / "model" / name).read_bytes())
    card = read_json(tmp_path / "model.json")
    write_json(tmp_path / "model.json", {**card, "monitor": {"accuracy": []}})
    assert main(["monitor", str(tmp_path), new]) == 2
    assert "is damaged" in capsys.readouterr().err
    del card["monitor"]
    write_json(tmp_path / "model.json", card)
    assert main(["monitor", str(tmp_path), new]) == 2
    assert "knows nothing of domains that were left out" in capsys.readouterr().err


def test_a_place_unlike_all_others_is_noticed(place: Path, tmp_path: Path, capsys: Output) -> None:
    lines = (place / "new.csv").read_text().splitlines()
    moved = [lines[0]]
    for line in lines[1:]:
        outcome, *numbers = line.split(",")
        moved.append(",".join([outcome, *(str(float(one) + 4) for one in numbers)]))
    (tmp_path / "moved.csv").write_text("\n".join(moved))
    capsys.readouterr()
    said = []
    for path in (place / "new.csv", tmp_path / "moved.csv"):
        assert main(["monitor", str(place / "model"), str(path)]) == 0
        said.append(capsys.readouterr().out)
    assert "Columns outside" not in said[0]
    assert "unlike every known domain; the nearest is" in said[1]
    assert "Columns outside all known domains, by how many spreads: f" in said[1]


def test_abstaining_and_corrected_shares(place: Path, capsys: Output) -> None:
    capsys.readouterr()
    words = ["monitor", str(place / "model"), str(place / "new.csv"), "--csv"]
    tables = []
    for more in ([], ["--abstain"], ["--correct-shares"]):
        assert main([*words, *more]) == 0
        tables.append(list(csv.DictReader(io.StringIO(capsys.readouterr().out))))
    plain, abstained, corrected = tables
    assert any(row["class"] == "" for row in abstained)
    for one, other in zip(plain, abstained, strict=True):
        several = len(one["likely"].split("; ")) > 1
        assert other["class"] == ("" if several else one["class"])
        assert float(one["distance"]) > 0
    model = shoal.load(place / "model", "cpu")
    found = model.monitor(place / "new.csv").corrected
    assert [row["class"] for row in corrected] == [model.classes[k] for k in found.argmax(1)]
    assert [float(row["probability"]) for row in corrected] == pytest.approx(found.max(1), abs=1e-5)


def test_the_page_opens_offline_and_escapes_names(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    lines = (place / "new.csv").read_text().splitlines()
    lines[3] = "x,6300,0,0"
    table = tmp_path / "<b>ward.csv"
    table.write_text("\n".join(lines))
    page = tmp_path / "page.html"
    capsys.readouterr()
    words = ["monitor", str(place / "model"), str(table), "--page", str(page), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    text = page.read_text()
    assert "&lt;b&gt;ward.csv" in text and "<b>ward" not in text
    assert "http" not in text.replace("http-equiv", "") and "<script" not in text
    assert f"{100 * found['expected']:.1f}" in text
    for name in "abcd":
        assert f"<th>{name}</th>" in text
    assert "Least like anything seen" in text and "f0 6300" in text
    assert "For a person to look at" in text


def test_the_onnx_file_carries_the_limit_and_no_paths(place: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="no onnx")
    file = onnx.load(place / "model" / "model.onnx")
    about = {one.key: one.value for one in file.metadata_props}
    model = shoal.load(place / "model", "cpu")
    assert json.loads(about["shoal.classes"]) == list(model.classes)
    assert float(about["shoal.temperature"]) == pytest.approx(model.module.temperature, rel=1e-5)
    limit = float(about["shoal.likely_from_probability"])
    assert limit == pytest.approx(np.exp(-model.reference.sets.single), rel=1e-5)
    assert not any(node.doc_string or node.metadata_props for node in file.graph.node)
