"""Whole fits with hardly any time, with many domains, and by other metrics and judges."""

import json
import time
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.documents import read_json
from shoal.fitting import fit
from shoal.fitting.run_estimates import RunPredictions
from shoal.sweeps.plan import folder_of, read_plan
from tests.fitting.made import write_table

pytestmark = pytest.mark.usefixtures("own_folder")
Output = pytest.CaptureFixture[str]
FIT = ("fit", "t.csv", "--out", "out", "--only", "logistic-regression")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "onnx_missing", lambda: "onnx")


def card() -> dict[str, object]:
    found: dict[str, object] = json.loads(Path("out/model.json").read_text())["estimate"]
    return found


def test_no_time_for_a_comparison(capsys: Output) -> None:
    write_table(Path("t.csv"))
    begin = time.monotonic()
    assert main([*FIT, "erm", "--steps", "5", "--time", "1s"]) == 0
    assert time.monotonic() - begin < 30
    out = capsys.readouterr().out
    assert "Not enough time or runs: only 0 of 3 domains were left out" in out
    assert "Logistic regression, the simplest candidate, is deployed" in out
    assert not card()["complete"] and card()["expectation"] is None
    assert len(read_plan(Path("out"))) == 1  # the model alone
    assert Path("out/model.safetensors").exists() and Path("out/report.html").exists()
    # The same command with more time goes on; a short one after it takes nothing away.
    assert main([*FIT, "erm", "--steps", "5", "--runs", "6"]) == 0
    longer = card()
    assert longer["complete"] and set(longer["methods"]) == {"logistic-regression", "erm"}  # type: ignore[call-overload]
    assert main([*FIT, "erm", "--steps", "5", "--time", "1s"]) == 0
    assert card() == longer


def test_many_domains_are_left_out_in_groups(capsys: Output) -> None:
    write_table(Path("t.csv"), rows=8, domains=tuple(f"site{k}" for k in range(14)))
    assert main([*FIT, "--runs", "12"]) == 0
    out = capsys.readouterr().out
    assert "each of 14 domains left out once, in 12 groups" in out
    domains = card()["methods"]["logistic-regression"]["domains"]  # type: ignore[index]
    assert list(domains)[:3] == ["site0 and 1 more", "site1 and 1 more", "site10"]
    assert len(domains) == 12
    runs = read_plan(Path("out"))
    assert [run.test_domains for run in runs[:3]] == [
        ("site0", "site8"),
        ("site1", "site9"),
        ("site10",),
    ]
    assert "site0 and 1 more" in Path("out/report.html").read_text()
    # A new place is one domain, so what is expected there comes from single domains.
    monitor = read_json(Path("out/model.json"))["monitor"]
    sites = sorted(f"site{k}" for k in range(14))
    assert sorted(monitor["accuracy"]["accuracies"]) == sites
    assert sorted(monitor["distances"]) == sorted(monitor["features"]["domains"]) == sites
    left_out = [run for run in runs if run.test_domains == ("site0", "site8")]
    read = RunPredictions.read(folder_of(Path("out"), left_out[0]), ("site0", "site8"))
    assert read is not None
    for name in ("site0", "site8"):
        mine = read.of([name])
        right = (mine.log_probabilities.argmax(1) == mine.labels).mean()
        assert len(mine.labels) == 8
        assert monitor["accuracy"]["accuracies"][name] == pytest.approx(right)


def test_another_metric_and_another_judge(capsys: Output) -> None:
    write_table(Path("t.csv"))
    command = [*FIT, "--runs", "10", "--metric", "log-loss", "--judge", "worst"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "Log-loss on the held-out domain" in out
    assert "Judged by the worst domain: logistic regression" in out
    found = card()
    assert (found["metric"], found["judge"]) == ("log-loss", "worst")
    # The weakest penalty fits best, and its losses are what the runs' probabilities say.
    losses = {key: row["average"]["mean"] for key, row in found["methods"].items()}  # type: ignore[attr-defined]
    assert list(losses) == [
        "logistic-regression",
        "logistic-regression C=0.03",
        "logistic-regression C=0.003",
    ]
    assert sorted(losses.values()) == list(losses.values())
    # They are of the same runs, whatever is measured of them.
    before = len(read_plan(Path("out")))
    assert main([*FIT, "--runs", "10"]) == 0
    assert len(read_plan(Path("out"))) == before
    assert card()["metric"] == "accuracy"
