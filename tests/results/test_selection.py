"""Which run stands for a method: the rules against what they say, on records made by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from shoal.cli import main
from shoal.report.notes import twins
from shoal.results.records import Failure, Record, RunResult, read_runs
from shoal.results.selection import CALIBRATED, NEAR, RULES, choose_runs, select
from tests.report.made_up import make_run, write_run

Values = dict[str, tuple[float, float]]  # kept and held out, by domain


def measured(step: int, errors: dict[str, float] | None = None, **values: Any) -> Record:
    accuracy = {
        domain: dict(zip(("kept", "held_out"), pair, strict=True))
        for domain, pair in values.items()
    }
    calibration = {domain: {"held_out": error} for domain, error in (errors or {}).items()}
    return Record(step=step, accuracy=accuracy, calibration_error=calibration)


def finished(
    draw: int, *records: Record, tests: tuple[str, ...] = ("a",), **more: Any
) -> RunResult:
    given = {"dataset": "set", "algorithm": "erm", "trial": 0} | more
    return RunResult(test_domains=tests, draw=draw, hparams={}, records=records, **given)


def one(runs: list[RunResult], rule: str) -> tuple[int, int, float]:
    (choice,) = choose_runs(runs, rule)
    return choice.draw, choice.step, choice.accuracy


def test_by_test_domain_reads_the_last_step_only() -> None:
    early = finished(
        0,
        measured(0, a=(0.9, 0.95), b=(0, 0.5)),
        measured(300, a=(0.6, 0.5), b=(0, 0.9)),
    )
    late = finished(
        1,
        measured(0, a=(0.1, 0.1), b=(0, 0.1)),
        measured(300, a=(0.55, 0.6), b=(0, 0.1)),
    )
    assert one([early, late], "test-domain") == (1, 300, 0.55)


def test_by_training_domains_takes_the_first_best_step() -> None:
    first = finished(
        0,
        measured(0, a=(0.1, 0.9), b=(1, 0.2), c=(1, 0.4)),
        measured(300, a=(0.2, 0.9), b=(1, 0.6), c=(1, 0.8)),
        measured(600, a=(0.3, 0.9), b=(1, 0.8), c=(1, 0.6)),
    )
    other = finished(1, measured(0, a=(0.9, 1.0), b=(1, 0.9), c=(1, 0.4)))
    assert one([first, other], "training-domain") == (0, 300, 0.2)


def test_a_choice_knows_which_of_how_many() -> None:
    """Records are counted by their steps, whatever order they were written in."""
    records = [measured(step, a=(0.5, 0.5), b=(1, acc)) for step, acc in ((5, 0.9), (9, 0.2))]
    records.append(measured(0, a=(0.5, 0.5), b=(1, 0.1)))
    other = finished(7, measured(0, a=(0.1, 0.1), b=(0, 0.3)))
    (choice,) = choose_runs([finished(2, *records), other], "training-domain")
    assert (choice.draw, choice.draws) == (2, 2)
    assert (choice.step, choice.record, choice.records) == (5, 2, 3)


def test_of_equal_scores_the_larger_draw_wins_and_nan_loses() -> None:
    runs = [
        finished(draw, measured(0, a=(draw / 10, 0.5), b=(1, score)))
        for draw, score in ((0, 0.5), (2, 0.5), (1, 0.5), (3, math.nan))
    ]
    assert one(runs, "training-domain") == (2, 0, 0.2)
    assert one(runs[::-1], "training-domain") == (2, 0, 0.2)


def test_scores_that_differ_in_their_last_bit_are_equal() -> None:
    """The mean of 0.6 and 0.7 is not that of 0.65 and 0.65."""
    below, above = (0.6, 0.7), (0.65, 0.65)
    assert fmean(below) < fmean(above)
    runs = [
        finished(draw, measured(0, a=(draw / 10, 0.5), b=(1, b), c=(1, c)))
        for draw, (b, c) in enumerate((above, below))
    ]
    assert one(runs, "training-domain") == (1, 0, 0.1)
    records = [
        measured(step, a=(0.5, 0), b=(1, b), c=(1, c)) for step, (b, c) in ((0, below), (9, above))
    ]
    assert one([finished(0, *records)], "training-domain") == (0, 0, 0.5)


@pytest.mark.parametrize("rule", [*RULES, CALIBRATED])
def test_without_a_score_that_is_a_number_nothing_is_chosen(rule: str) -> None:
    missing = measured(0, {"b": math.nan}, a=(0.1, math.nan), b=(math.nan, math.nan))
    runs = [finished(draw, missing) for draw in (0, 1)]
    runs += [finished(draw, missing, tests=("a", "b")) for draw in (0, 1)]
    found = select(runs, rule)
    assert found.choices == [] and found.undecided == {("set", "erm", "a", 0): 2}
    number = finished(0, measured(0, {"b": 0.1}, a=(0.1, 0.3), b=(1, 0.5)))
    pair = finished(0, measured(0, a=(0, 0), b=(0.4, 0)), tests=("a", "b"))
    found = select([number, pair, runs[1], runs[3]], rule)
    assert [choice.draw for choice in found.choices] == [0] and found.undecided == {}


def test_one_run_is_no_choice() -> None:
    """Where nothing is held out, as in an estimate, the last record is read."""
    found = select([finished(0, measured(0, a=(0.4, math.nan), b=(1, 1)))], "test-domain")
    assert [choice.accuracy for choice in found.choices] == [0.4]


def lost(draw: int, *tests: str) -> Failure:
    return Failure(
        dataset="set",
        algorithm="erm",
        test_domains=tests,
        trial=0,
        draw=draw,
        reason="the loss is nan",
        path=Path("run"),
    )


def test_draws_that_failed_were_tried() -> None:
    runs = [finished(draw, measured(0, a=(0.1, 0.2), b=(1, 0.3))) for draw in (0, 1)]
    failed = [lost(1, "a"), lost(2, "a"), lost(3, "b"), lost(4, "a", "b")]
    (choice,) = select(runs, "test-domain", failed).choices
    assert (choice.draws, choice.failed, len(choice.candidates)) == (3, 1, 2)
    (choice,) = select([*runs, runs[0]], "training-domain").choices
    assert (choice.draws, choice.failed, len(choice.candidates)) == (2, 0, 3)


def test_nothing_is_chosen_where_all_draws_failed() -> None:
    runs = [finished(draw, measured(0, a=(0.1, 0.2), b=(1, 0.3))) for draw in (0, 1)]
    failed = [lost(0, "b"), lost(1, "b"), lost(5, "a", "b")]
    other = [replace(failed[0], algorithm="irm"), replace(failed[0], dataset="unknown")]
    for rule in ("test-domain", "training-domain"):
        found = select(runs, rule, [*failed, *other])
        assert [choice.test_domain for choice in found.choices] == ["a"]
        assert found.undecided == {("set", "erm", "b", 0): 2}
    assert select(runs, "leave-one-domain-out", failed).undecided == {}


def test_leaving_out_counts_the_draws_whose_pairs_are_there() -> None:
    runs = [*leaving_out(0, (0, 0), (0, 0)), *leaving_out(1, (0, 0), (0, 0))[:2]]
    (choice,) = select(runs, "leave-one-domain-out").choices
    assert (choice.draws, choice.failed) == (1, 0)
    (choice,) = select(runs, "leave-one-domain-out", [lost(1, "a", "c")]).choices
    assert (choice.draws, choice.failed) == (2, 1)


def test_twins_differ_in_nothing_that_rules_know() -> None:
    record = measured(0, a=(0.1, 0.2), b=(0.3, 0.4))
    first, second = finished(0, record), finished(0, record, protocol={"steps": 5})
    others = [finished(1, record), finished(0, record, tests=("a", "b"))]
    assert twins([first, *others, second]) == [(first, second)]
    assert twins([first, *others]) == []


def leaving_out(draw: int, on_b: tuple[float, float], on_c: tuple[float, float]) -> list[RunResult]:
    """Return the run of test domain a, and of the pairs (a, b) and (c, a), at two steps."""
    return [
        finished(draw, *(measured(s, a=(s / 1000, 0), b=(0, 0), c=(0, 0)) for s in (0, 300))),
        finished(
            draw,
            *(
                measured(s, a=(0, 0), b=(v, 0), c=(0, 0))
                for s, v in zip((0, 300), on_b, strict=True)
            ),
            tests=("a", "b"),
        ),
        finished(
            draw,
            *(
                measured(s, a=(0, 0), b=(0, 0), c=(v, 0))
                for s, v in zip((0, 300), on_c, strict=True)
            ),
            tests=("c", "a"),
        ),
    ]


def test_by_leaving_out_reads_the_runs_with_two_test_domains() -> None:
    good, bad = leaving_out(0, (0.2, 0.8), (0.3, 0.6)), leaving_out(1, (0.6, 0.1), (0.6, 0.1))
    (choice,) = [c for c in choose_runs(good + bad, "leave-one-domain-out") if c.test_domain == "a"]
    assert (choice.draw, choice.step, choice.accuracy) == (0, 300, 0.3)
    assert choice.score == pytest.approx(0.7)


def test_without_all_pairs_leaving_out_says_nothing() -> None:
    assert choose_runs(leaving_out(0, (0, 0), (0, 0))[:2], "leave-one-domain-out") == []


def test_calibration_decides_between_near_ties() -> None:
    runs = [
        finished(0, measured(0, {"b": 0.3, "a": 0.0}, a=(0.1, 0), b=(0, 0.8))),
        finished(1, measured(0, {"b": 0.1, "a": 0.9}, a=(0.2, 0), b=(0, 0.8 - NEAR / 2))),
        finished(2, measured(0, {"b": 0.0, "a": 0.0}, a=(0.3, 0), b=(0, 0.8 - 2 * NEAR))),
    ]
    assert one(runs, CALIBRATED) == (1, 0, 0.2)
    assert one(runs, "training-domain") == (0, 0, 0.1)


def test_calibration_that_was_not_recorded_chooses_nothing() -> None:
    runs = [finished(draw, measured(0, a=(0.1, 0), b=(0, 0.8))) for draw in range(2)]
    assert choose_runs(runs, CALIBRATED) == []
    runs.append(finished(2, measured(0, {"b": 0.1}, a=(0.2, 0), b=(0, 0.8))))
    assert one(runs, CALIBRATED) == (2, 0, 0.2)


def test_groups_are_apart() -> None:
    record = measured(0, a=(0.1, 0.2), b=(0.3, 0.4))
    runs = [
        finished(0, record),
        finished(0, record, trial=1),
        finished(0, record, algorithm="fishr"),
        finished(0, record, dataset="other"),
        finished(0, record, tests=("b",)),
        finished(0, record, tests=("a", "b")),
    ]
    found = {
        (c.dataset, c.algorithm, c.trial, c.test_domain) for c in choose_runs(runs, "test-domain")
    }
    assert found == {
        ("set", "erm", 0, "a"),
        ("set", "erm", 1, "a"),
        ("set", "fishr", 0, "a"),
        ("other", "erm", 0, "a"),
        ("set", "erm", 0, "b"),
    }


def test_only_finished_runs_are_read(tmp_path: Path) -> None:
    run = {"dataset": "set", "algorithm": "erm", "test_domains": ["a"], "trial": 0, "draw": 3}
    record = {"step": 0, "accuracy": {"a": {"kept": 0.5}}, "calibration_error": {}}
    for name in ("done", "going"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(run | {"hparams": {"lr": 1.0}}))
        (tmp_path / name / "records.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "done" / "done").touch()
    (found,) = read_runs([tmp_path])
    assert (found.draw, found.records[0].of("a", "kept")) == (3, 0.5)
    assert math.isnan(found.records[0].of("a", "held_out"))


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("records.jsonl", "{", r"records\.jsonl, line 1, is not valid JSON"),
        ("records.jsonl", "", r"records\.jsonl is empty or does not exist"),
        ("records.jsonl", None, r"records\.jsonl is empty or does not exist"),
        ("records.jsonl", '{"step": 0}', r"records\.jsonl has no record in line 1"),
        ("records.jsonl", "null", r"records\.jsonl has no record in line 1"),
        (
            "records.jsonl",
            '{"step": 0, "accuracy": {"photo": {"kept": 1}}}\n{"step": 1, "accuracy": {}}',
            r"records\.jsonl has no accuracy of the test domain 'photo' in line 2",
        ),
        (
            "records.jsonl",
            '{"step": 0, "accuracy": 0.5}',
            r"records\.jsonl has an accuracy that is no object but 0\.5 in line 1",
        ),
        (
            "records.jsonl",
            '{"step": 0, "accuracy": {"photo": 0.5}}',
            r"records\.jsonl has an accuracy of 'photo' that is no object of splits but 0\.5 in",
        ),
        (
            "records.jsonl",
            '{"step": 0, "accuracy": {"photo": {"kept": null}}}',
            r"records\.jsonl has an accuracy of 'photo' that is no number from 0 to 1: None in",
        ),
        (
            "records.jsonl",
            2 * '{"step": 7, "accuracy": {"photo": {"kept": 1}}}\n',
            r"records\.jsonl has the step 7 twice, again in line 2",
        ),
        ("run.json", "{", r"run\.json is not valid JSON"),
        ("run.json", "{}", r"run\.json has no dataset"),
        ("run.json", "[]", r"run\.json must hold an object"),
    ],
)
def test_a_damaged_run_is_to_be_deleted(
    tmp_path: Path, name: str, content: str | None, wrong: str
) -> None:
    write_run(tmp_path, make_run("pacs", "erm", ("photo",), 0, 0))
    (folder,) = (path.parent for path in tmp_path.rglob("run.json"))
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{wrong}.*; delete the folder {folder} and run the"):
        read_runs([tmp_path])


def test_a_run_without_test_domains_may_hold_nothing_out(tmp_path: Path) -> None:
    run = make_run("pacs", "erm", (), 0, 0)
    write_run(tmp_path, replace(run, records=(Record(step=0, accuracy={}),)))
    (found,) = read_runs([tmp_path])
    assert found.records[0].accuracy == {}


def test_no_domain_is_left_out_where_there_is_no_other() -> None:
    assert choose_runs([finished(0, measured(0, a=(0.9, 0.8)))], "leave-one-domain-out") == []


def test_a_folder_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    write_run(tmp_path / "sweep" / "runs", make_run("pacs", "erm", ("photo",), 0, 0))
    folders = [tmp_path / "sweep", tmp_path / "sweep" / "runs", tmp_path / "sweep" / ".." / "sweep"]
    assert len(read_runs(folders)) == 1


@pytest.mark.parametrize("command", ["report", "select"])
def test_runs_that_tables_cannot_tell_apart_are_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("long", "short"):
        for draw in range(2):
            write_run(tmp_path / name, make_run("pacs", "erm", ("photo",), 0, draw))
    more = ["--rule", "test-domain", "--out", str(tmp_path / "out")] if command == "select" else []
    main([command, str(tmp_path / "long"), *more])
    assert "are there more than once" not in capsys.readouterr().err
    main([command, str(tmp_path / "long"), str(tmp_path / "short"), *more])
    told = capsys.readouterr().err
    assert "shoal: some draws have more than one run (2 in total), and rules choose between" in told


def test_a_model_is_not_saved_where_nothing_is_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = measured(0, photo=(math.nan, math.nan), sketch=(math.nan, math.nan))
    for draw in range(2):
        run = make_run("pacs", "erm", ("photo",), 0, draw)
        write_run(tmp_path / "sweep", replace(run, records=(wrong,)))
    command = ["select", str(tmp_path / "sweep"), "--out", str(tmp_path / "out"), "--rule"]
    assert main([*command, "training-domain"]) == 2
    assert "no run has a score that is a number" in capsys.readouterr().err
