"""``shoal reproduce``: the analyses and ablations, whole and tiny."""

import json
from collections import Counter
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.experiments import colored_mnist, demo, linear, overhead
from shoal.experiments.colored_mnist import Setup
from shoal.runs.run import Run
from shoal.sweeps.plan import read_plan
from shoal.sweeps.status import RunState
from tests.report.made_up import make_run, write_run

pytestmark = pytest.mark.usefixtures("no_probe", "quick_figures")

TINY = {"examples": 16, "hidden": 6, "jump_step": 2, "updates": 4}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both sizes tiny; the small one has fewer updates."""
    monkeypatch.setattr(colored_mnist, "Setup", lambda: Setup(**TINY))
    monkeypatch.setattr(demo, "SETUP", Setup(**TINY | {"updates": 3}))


def pictures(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".png", ".pdf"))


def test_linear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "GRIDS", dict.fromkeys(linear.GRIDS, (100.0, 1000.0, 3)))
    monkeypatch.setattr(linear, "STEPS", 3)
    monkeypatch.setattr(linear.train, "__defaults__", (5,))
    assert main(["reproduce", "linear", "--out", str(tmp_path)]) == 0
    assert "tab:appendix-linear, reconstructed data" in capsys.readouterr().out
    assert pictures(tmp_path) == ["linear-window.pdf", "linear-window.png"]
    written = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert written["command"] == "shoal reproduce linear" and written["data"] == "reconstructed"
    page = (tmp_path / "results.md").read_text("utf-8")
    assert "[2.8, 3.3, 3.3, 0.0]; −2.7" in page


@pytest.mark.usefixtures("tiny")
def test_hessian(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "hessian", "--device", "cpu", "--every", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "table:hessianermfishr" in capsys.readouterr().out
    assert "(0.9999980)" in (tmp_path / "results.md").read_text("utf-8")
    kinds = [f"{kind}-{name}" for kind in ("dynamics", "hessian") for name in ("erm", "fishr")]
    assert pictures(tmp_path) == sorted(f"{k}.{end}" for k in kinds for end in ("pdf", "png"))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", ["landscape", "gradients"])
def test_pictures(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", name, "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert pictures(tmp_path) == [f"{name}.pdf", f"{name}.png"]
    written = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert list(written["methods"]) == ["ERM", "Fishr"]
    assert f"Written in {tmp_path}" in capsys.readouterr().out
    assert main(["reproduce", name, "--device", "cpu", "--out", str(tmp_path), "--small"]) == 2
    assert "holds results of another setup" in capsys.readouterr().err


def test_an_epsilon_of_zero_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "landscape", "--epsilon", "0"]) == 2
    assert "--epsilon must be above 0, got 0" in capsys.readouterr().err


def test_overhead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "WARM", 0)
    small = ("--network", "mnist-cnn", "--size", "28", "--batch", "2", "--rounds", "2")
    command = ["reproduce", "overhead", *small, "--device", "cpu", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "Overhead of Fishr" in capsys.readouterr().out
    assert "(+6.5 %)" in (tmp_path / "results.md").read_text("utf-8")
    written = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert written["command"] == f"shoal reproduce overhead {' '.join(small)}"


def test_an_ablation_is_a_sweep_of_one_domain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "ablation-ema", "--plan-only", "--out", str(tmp_path)]
    assert main(command) == 0
    runs = read_plan(tmp_path)
    assert {run.test_domains for run in runs} == {("-90%",)}
    rows = list(dict.fromkeys(run.algorithm for run in runs))
    assert rows[:3] == ["fishr-no-ema", "fishr-rescaled", "fishr"]
    assert [run.algorithm for run in runs[:60]] == ["fishr-no-ema"] * 60
    by_name = {(run.algorithm, run.trial, run.draw): run.hparams for run in runs}
    drawn, rescaled = by_name["fishr", 1, 7], by_name["fishr-rescaled", 1, 7]
    assert rescaled == drawn | {"average": False}
    assert "not run (34.0 ± 4.5)" in _row(tmp_path, "fishr-no-ema")


def test_an_ablation_shows_done_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for draw in range(3):
        run = make_run("colored-mnist", "fishr-iga", ("-90%",), 0, draw)
        write_run(tmp_path / "runs", run)
    command = ["reproduce", "ablation-iga", "--trials", "1", "--plan-only", "--out", str(tmp_path)]
    assert main([*command, "--draws", "3"]) == 0
    written = json.loads((tmp_path / "results.json").read_text("utf-8"))
    rows = {row["row"]: row for row in written["tables"]["test-domain"]}
    assert rows["fishr-iga"]["cells"]["-90%"]["runs"] == 3
    assert rows["fishr-iga"]["paper"]["-90%"] == [66.3, 2.9]
    assert rows["fishr"]["cells"]["-90%"] is None
    assert written["machine"] == ["device cpu, threads 1"]
    assert "runs" not in _row(tmp_path, "fishr-iga")
    assert main([*command, "--draws", "20"]) == 0
    assert ", 3 of 20 runs (66.3 ± 2.9)" in _row(tmp_path, "fishr-iga")
    assert _row(tmp_path, "fishr-plain").count("not run") == 4
    # Runs of another precision are not part of this table.
    assert main([*command, "--precision", "bf16"]) == 0
    assert _row(tmp_path, "fishr-iga").count("not run") == 4
    assert "Trained in bf16." in (tmp_path / "results.md").read_text("utf-8")


def _row(folder: Path, name: str) -> str:
    """Return the first row of a method in the page."""
    page = (folder / "results.md").read_text("utf-8")
    return next(line for line in page.splitlines() if line.startswith(f"| {name} |"))


def test_an_ablation_is_trained_like_any_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, set[str], int]] = []

    def record(out: Path, runs: list[Run], world: object, workers: int, *_: object) -> object:
        calls.append((len(runs), {run.algorithm for run in runs}, workers))
        return Counter({RunState.DONE: len(runs) - 1})

    monkeypatch.setattr("shoal.sweeps.local.run_locally", record)
    command = ["reproduce", "ablation-ema", "--rows", "vrex-ema", "--draws", "4", "--workers", "2"]
    assert main([*command, "--out", str(tmp_path), "--shard", "1/3"]) == 1
    assert calls == [(4, {"vrex-ema"}, 2)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--rows", "fishr-emma"), "unknown row 'fishr-emma'"),
        (("--test-domains", "-80%"), "unknown test domain '-80%'; did you mean"),
        (("--shard", "3/3"), "--shard takes I/N"),
    ],
)
def test_what_an_ablation_refuses(
    more: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "ablation-lambda", "--out", str(tmp_path), *more]) == 2
    assert message in capsys.readouterr().err


def test_batches_are_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "ablation-batch", "--plan-only", "--out", str(tmp_path)]) == 0
    runs = read_plan(tmp_path)
    assert len(runs) == 96
    assert {run.test_domains for run in runs} == {("-90%",)}
    assert {run.hparams["batch_size"] for run in runs} == {8, 32, 128, 512}
    assert pictures(tmp_path) == []
