"""``shoal diagnose``: tables, JSON and figures of a run, and its error messages."""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.choices import choose
from shoal.cli import main
from shoal.datasets import DATASETS
from shoal.report import figures
from shoal.report.interpretation import sentences
from shoal.runs import diagnosis
from tests.runs.small import squares

Output = pytest.CaptureFixture[str]
TABLES = ("Domains", "H ≈ F ≈ F̃ ∝ C", "Squared distances between domains")
TABLES += ("Cosines between domains", "Gaps")
TABLES += ("Inconsistency I(A, B) = max(|R|, |R + H|)", "Spectra", "Alignment")
FIGURES = ("domains", "diagonals", "pairs", "inconsistency", "spectra", "alignment")


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output) -> None:
    """A run in the folder ``run``, on data that differs from trial to trial."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def data(_: Path | None, trial: int) -> Any:
        return squares((20 + trial, 25, 15), "tiny", side=8)

    monkeypatch.setitem(DATASETS, "tiny", data)
    options = "--dataset tiny --network mnist-cnn --steps 3 --record-every 2 --device cpu"
    given = [*options.split(), "--set", "batch_size=4", "--test-domain", "c", "--log", "gaps"]
    assert main(["train", *given, "--trial", "2", "--out", "run"]) == 0
    capsys.readouterr()


def diagnose(*arguments: str) -> int:
    return main(["diagnose", *arguments, "--device", "cpu"])


def test_training_records_gaps_with_log_gaps() -> None:
    for line in Path("run/records.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["gaps"].keys() == {"risk", "variance", "hessian"}
        assert record["cosine"].keys() == {"a", "b"}


def test_tables_of_a_run(capsys: Output) -> None:
    assert diagnose("run") == 0
    out = capsys.readouterr().out
    assert out.startswith("Fishr: run on tiny, the head (258 weights)")
    lines = [line.strip() for line in out.splitlines()]
    assert [line for line in lines if line in TABLES] == list(TABLES)
    rows = [line.split() for line in lines]
    assert ["a", "(trained", "on)", "22"] in [row[:4] for row in rows]  # of the run's trial
    assert sum("→" in row for row in rows) == 1 + 6
    assert "ε = 0.1;" in out and "0.001 of the largest" in " ".join(out.split())
    # It ends in sentences.
    last = [line.strip() for line in out.rstrip().splitlines()]
    starts = ["Accuracy is", "Gradients vary", "Dealing the examples of a and b out", "The cosine"]
    places = [k for start in starts for k, line in enumerate(last) if line.startswith(start)]
    assert len(places) == 4 and places == sorted(places)
    assert last[-1].endswith(".") and places[0] > last.index("Alignment")


@pytest.mark.parametrize("columns", ["80", "60"])
def test_no_number_is_cut_in_a_narrow_terminal(
    columns: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert diagnose("run") == 0
    assert "…" not in capsys.readouterr().out


def test_json_holds_what_the_tables_show(capsys: Output) -> None:
    assert diagnose("run/model.safetensors", "tiny", "--json", "found.json", "--trial", "0") == 0
    found = json.loads(Path("found.json").read_text())
    assert found["dataset"] == "tiny" and found["algorithm"] == "fishr"
    assert found["domains"]["a"]["images"] == 20
    row = next(r.split() for r in capsys.readouterr().out.splitlines() if "a (trained on)" in r)
    assert float(row[5]) == pytest.approx(found["domains"]["a"]["risk"], rel=1e-3)
    assert found["sentences"] == sentences(found)


def test_a_flat_risk_has_no_step_limit(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    real = diagnosis.spectra
    monkeypatch.setattr(
        diagnosis, "spectra", lambda roots: real(replace(roots, gram=roots.gram * 0))
    )
    assert diagnose("run", "--json", "found.json") == 0
    text = Path("found.json").read_text()
    assert "Infinity" not in text
    assert json.loads(text)["domains"]["a"]["fisher"]["step_limit"] is None
    rows = capsys.readouterr().out.split("Spectra")[1].splitlines()
    assert next(row.split()[-1] for row in rows if row.split()[:1] == ["a"]) == "–"


def test_figures(capsys: Output) -> None:
    assert diagnose("run", "--figures", "drawn/here", "--domain", "a", "b", "--images", "8") == 0
    out = capsys.readouterr().out
    for name in FIGURES:
        png, pdf = (Path(f"drawn/here/{name}.{kind}") for kind in ("png", "pdf"))
        assert png.read_bytes().startswith(b"\x89PNG") and pdf.read_bytes().startswith(b"%PDF")
        assert f"Figure: {png}" in out and f"Figure: {pdf}" in out


@pytest.mark.usefixtures("quick_figures")
def test_letters_without_a_font_are_reported_once(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = squares((20, 25, 15), "tiny", side=8)
    named = zip(real.domains, ("北京", "\U0001f41f", "Zürich"), strict=True)
    domains = tuple(replace(domain, name=name) for domain, name in named)
    data = replace(real, domains=domains, order=())
    monkeypatch.setitem(DATASETS, "tiny", lambda *_: data)
    monkeypatch.setattr(figures, "FALLBACKS", ("no such font",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert diagnose("run", "--figures", "drawn", "--images", "8") == 0
    (line,) = (one for one in capsys.readouterr().err.splitlines() if "font" in one)
    assert line.startswith("shoal: no installed font has the letters 京北\U0001f41f of ")
    assert "Noto Sans CJK" in line


def test_other_weights(capsys: Output) -> None:
    assert diagnose("run", "--parameters", "classifier", "--images", "6") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert ", classifier (258 weights)" in out
    assert "by more than chance was not tested" in out
    assert diagnose("run", "--parameters", "all", "--images", "6") == 2
    assert "choose gauss-newton for the Hessian" in capsys.readouterr().err
    chosen = ("--hessian", "gauss-newton", "--images", "4", "--domain", "a", "b")
    assert diagnose("run", "--parameters", "all", *chosen) == 0
    assert ", all weights (" in capsys.readouterr().out


def test_errors(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def error(*arguments: str) -> str:
        assert diagnose(*arguments) == 2
        return capsys.readouterr().err

    assert "there is no folder nowhere" in error("nowhere")
    assert "did you mean 'tiny'" in error("run", "tinny")
    assert "epsilon must be above 0" in error("run", "--epsilon", "0")
    assert "name two or more" in error("run", "--domain", "a")
    assert "unknown parameter 'clasifier'; did you mean 'classifier'" in error(
        "run", "--parameters", "clasifier"
    )
    monkeypatch.delitem(DATASETS, "tiny")
    assert "a data set of your own: name its folder, manifest" in error("run")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'shoal[report]'" in error("run", "--figures", "figures")


def test_the_nearest_of_hundreds_of_choices_are_listed() -> None:
    with pytest.raises(ValueError, match=r" … and 260 more$") as caught:
        choose("weight", "layer3.wight", [f"layer{k}.weight" for k in range(300)])
    assert "did you mean 'layer3.weight'" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_nearly_equal_values_have_one_shade() -> None:
    from matplotlib.figure import Figure

    from shoal.report.diagnosis import _matrix

    def shades(*values: float) -> list[float]:
        axes = Figure().subplots()
        pairs = [("a", "b"), ("b", "a")]
        _matrix(axes, ["a", "b"], dict(zip(pairs, values, strict=True)), "")
        filled = [one for one in axes.patches if not one.get_hatch()]
        assert len(axes.patches) - len(filled) == 2  # the diagonal has no value
        return [float(one.get_facecolor()[0]) for one in filled]

    first, second = shades(0.1, 0.1 + 1e-9)
    assert first == pytest.approx(second, abs=1e-3)
    assert shades(1e-5, 1e-2) == pytest.approx([0.95, 0.2])
    assert shades(-1e-5, -1e-2) == pytest.approx([0.95, 0.2])
