"""Failed runs in the reports: how many of which method, why, and what to do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.report.notes import MOST_REASONS, failure_lines
from shoal.results.records import Failure
from shoal.runs.run import Run
from shoal.sweeps.plan import folder_of, write_plan
from tests.report.made_up import make_run, make_sweep, write_failure, write_run


def failure(algorithm: str, reason: str, draw: int = 0) -> Failure:
    return Failure(
        dataset="pacs",
        algorithm=algorithm,
        test_domains=("photo",),
        trial=0,
        draw=draw,
        reason=reason,
        path=Path("runs") / algorithm,
    )


def test_runs_are_grouped_by_their_error() -> None:
    failed = [
        failure("irm", "ValueError: too hot"),
        failure("fishr", "ValueError: too hot", 0),
        failure("fishr", "ValueError: too hot", 1),
        failure("fishr", "no reason was recorded", 2),
    ]
    assert failure_lines(failed) == [
        "4 runs failed and are in no table: 3 of Fishr, 1 of IRM",
        "2 of Fishr, 1 of IRM: ValueError: too hot",
        "1 of Fishr: no reason was recorded",
    ]
    assert failure_lines(failed[:1]) == [
        "1 run failed and is in no table",
        "1 of IRM: ValueError: too hot",
    ]
    assert failure_lines([]) == []


def test_reasons_that_differ_in_numbers_are_one() -> None:
    failed = [failure("irm", f"loss was not finite at step {step}") for step in ("7", "1,200")]
    assert failure_lines(failed)[1:] == ["2 of IRM: loss was not finite at step …"]
    assert failure_lines(failed[:1])[1:] == ["1 of IRM: loss was not finite at step 7"]


def test_of_many_reasons_the_most_frequent_are_named() -> None:
    failed = [failure("erm", "often")] * 2 + [failure("irm", c) for c in "abcdefg"]
    _, first, *others, rest = failure_lines(failed)
    assert first == "2 of ERM: often" and len(others) == MOST_REASONS - 1
    assert rest == f"{8 - MOST_REASONS} of IRM: for other reasons"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    for run in make_sweep(("erm", "fishr"), ("pacs",), trials=1, draws=1):
        write_run(folder / "runs", run)
    for draw in (1, 2):
        write_failure(folder / "runs", make_run("pacs", "irm", ("photo",), 0, draw), "too hot")
    (folder / "plan.json").write_text("[]")
    return folder


@pytest.mark.parametrize(
    ("kind", "mark"),
    [("terminal", " Failed runs\n "), ("markdown", "## Failed runs\n\n- "), ("latex", "% ")],
)
def test_every_report_says_what_failed_and_what_to_do(
    kind: str, mark: str, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    out = sweep.parent / "report.txt"
    # The folder inside the other adds nothing: each run is told of once.
    given = ["report", str(sweep), str(sweep / "runs"), "--format", kind, "--out", str(out)]
    assert main(given) == 0
    told = "".join(f"{line.rstrip()}\n" for line in out.read_text("utf-8").splitlines())
    assert told.count(f"{mark}2 runs failed and are in no table\n") == 1
    assert "2 of IRM: too hot\n" in told
    assert f"`shoal status {sweep}` lists them; `shoal sweep … --out {sweep} --retry" in told


def test_reports_and_status_give_the_first_line_of_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    run = Run(
        dataset="pacs",
        fingerprint="now",
        algorithm="irm",
        test_domains=("photo",),
        hparams={"lr": 1e-3},
    )
    write_run(tmp_path, make_run("pacs", "erm", ("photo",), 0, 0))
    write_plan(tmp_path, [run])
    folder = folder_of(tmp_path, run)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run.canonical()))
    reason = (
        "RuntimeError: CUDA error: <b>lost</b> *it*\nFor debugging consider CUDA_LAUNCH_BLOCKING=1"
    )
    (folder / "failed.json").write_text(json.dumps({"kind": "RuntimeError", "reason": reason}))
    for command, line in (
        (["status"], f"{folder}: RuntimeError: CUDA error: <b>lost</b> *it*"),
        (["report"], "1 of IRM: RuntimeError: CUDA error: <b>lost</b> *it*"),
        (
            ["report", "--format", "markdown"],
            r"- 1 of IRM: RuntimeError: CUDA error: \<b>lost\</b> \*it\*",
        ),
    ):
        assert main([*command, str(tmp_path)]) == 0
        told = [shown.strip() for shown in capsys.readouterr().out.splitlines()]
        assert line in told and "BLOCKING" not in " ".join(told)
        assert command == ["status"] or f"`shoal status {tmp_path}` lists them" in " ".join(told)


def test_nothing_is_said_where_nothing_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in make_sweep(("erm",), ("pacs",), trials=1, draws=1):
        write_run(tmp_path, run)
    assert main(["report", str(tmp_path), "--format", "markdown"]) == 0
    assert "failed" not in capsys.readouterr().out.lower()


def test_runs_outside_a_sweep_have_no_advice(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sweep / "plan.json").unlink()
    assert main(["report", str(sweep)]) == 0
    told = capsys.readouterr().out
    assert "2 of IRM: too hot" in told and "retry" not in told


def test_a_sweep_of_failures_says_where_to_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_failure(tmp_path, make_run("pacs", "irm", ("photo",), 0, 0), "it diverged")
    assert main(["report", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert f"no finished run in {tmp_path}; 1 failed, see 'shoal status {tmp_path}'" in told


def test_what_failed_on_data_that_have_changed_is_not_told(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Run(
        dataset="pacs",
        fingerprint="before",
        algorithm="coral",
        test_domains=("photo",),
        hparams={"lr": 1e-3},
    )
    write_plan(sweep, [old])
    folder = folder_of(sweep, old)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(old.canonical()))
    (folder / "failed.json").write_text(json.dumps({"kind": "OSError", "reason": "broken image"}))
    assert main(["report", str(sweep)]) == 0
    assert "1 of CORAL: broken image" in capsys.readouterr().out
    write_plan(sweep, [replace(old, fingerprint="mended")])
    assert main(["report", str(sweep)]) == 0
    told = capsys.readouterr().out
    assert "broken image" not in told and "2 of IRM: too hot" in told


def test_runs_of_a_fit_are_not_for_shoal_sweep(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sweep / "fit.json").write_text("{}")
    assert main(["report", str(sweep)]) == 2
    assert "is the folder of a fit" in capsys.readouterr().err
    assert main(["report", str(sweep / "runs")]) == 0
    told = capsys.readouterr().out
    assert "2 of IRM: too hot" in told and "shoal sweep" not in told
