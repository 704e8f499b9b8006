"""The report as data: unrounded numbers, and what is behind them."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from shoal.cli import main
from shoal.report.as_json import as_data
from shoal.report.sweep import rule_reports
from shoal.results.aggregation import compare_over_domains
from shoal.results.records import Failure
from tests.report.made_up import make_run, make_sweep, write_failure, write_run

RUNS = make_sweep(("erm", "fishr"), ("pacs",), trials=3, draws=2)


def test_numbers_are_those_behind_the_tables() -> None:
    (chapter,) = rule_reports(RUNS, ["training-domain"])
    (found,) = as_data([chapter], [])["rules"]
    assert (found["rule"], found["cautions"], found["notes"]) == (
        "training-domain",
        (),
        chapter.lines,
    )
    assert [one["algorithm"] for one in found["results"]] == ["erm", "fishr"]
    for row in found["results"]:
        assert row["dataset"] == "pacs" and len(row["chosen"]) == 4 * 3
        for domain, cell in row["domains"].items():
            mine = [one for one in row["chosen"] if one["test_domain"] == domain]
            assert [one["trial"] for one in mine] == [0, 1, 2]
            values = [one["accuracy"] for one in mine]
            assert cell == {
                "mean": pytest.approx(fmean(values), rel=1e-15),
                "error": pytest.approx(pstdev(values) / math.sqrt(3)),
                "trials": 3,
            }
        trials = [
            fmean(one["accuracy"] for one in row["chosen"] if one["trial"] == trial)
            for trial in range(3)
        ]
        assert row["average"]["mean"] == pytest.approx(fmean(trials))
        for one in row["chosen"]:
            (run,) = (
                run
                for run in RUNS
                if run.algorithm == row["algorithm"]
                and (run.test_domains, run.trial) == ((one["test_domain"],), one["trial"])
                and run.draw == one["draw"]
            )
            (record,) = (record for record in run.records if record.step == one["step"])
            assert one["accuracy"] == record.of(one["test_domain"], "kept")
            error = record.calibration_error[one["test_domain"]]["kept"]
            assert one["calibration_error"] == error
            others = [d for d in record.accuracy if d != one["test_domain"]]
            assert one["score"] == fmean(record.of(domain, "held_out") for domain in others)
            assert one["training_accuracy"] == one["score"]  # by which this rule chooses
            assert (one["draws"], one["failed"], one["runs"]) == (2, 0, 2)
    (pair,) = found["paired"]
    assert (pair["method"], pair["other"], pair["pairs"]) == ("fishr", "erm", 12)
    assert {"difference", "error", "wins", "losses", "p"} <= pair.keys()
    over_domains = asdict(compare_over_domains(chapter.choices, "fishr", "erm"))
    assert over_domains.pop("pairs") == 4
    assert pair["over_domains"] == over_domains | {"domains": 4}
    assert [table["title"] for table in found["tables"]] == [t.title for t in chapter.all_tables]


def test_what_is_not_a_number_is_none() -> None:
    first, *others = RUNS
    nan = [replace(one, accuracy={**one.accuracy, "art_painting": {}}) for one in first.records]
    alone = [one for one in others if one.draw == 0 and one.trial == 0]
    given = [replace(first, records=tuple(nan)), *alone]
    found = as_data(rule_reports(given, ["training-domain"]), [])
    json.dumps(found, allow_nan=False)
    erm, fishr = found["rules"][0]["results"]
    assert erm["average"] is erm["worst"] is erm["domains"]["art_painting"] is None
    assert erm["chosen"][0]["accuracy"] is None
    assert fishr["average"]["error"] is None  # of one trial


def test_failures_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in RUNS[:24]:
        write_run(tmp_path, run)
    write_failure(tmp_path, make_run("pacs", "erm", ("photo",), 0, 2), "it diverged")
    assert main(["report", str(tmp_path), "--format", "json", "--rule", "test-domain"]) == 0
    found = json.loads(capsys.readouterr().out)
    (failed,) = found["failures"]
    assert (failed["algorithm"], failed["test_domains"], failed["trial"]) == ("erm", ["photo"], 0)
    assert failed["draw"] == 2 and failed["reason"] == "it diverged"
    (row,) = found["rules"][0]["results"]
    (one,) = (o for o in row["chosen"] if (o["test_domain"], o["trial"]) == ("photo", 0))
    assert (one["draws"], one["failed"], one["runs"]) == (3, 1, 2)
    assert Path(one["folder"]).is_dir()


def test_failures_have_the_order_of_tables() -> None:
    failed = [
        Failure(
            dataset="pacs",
            algorithm=name,
            test_domains=("photo",),
            trial=0,
            draw=0,
            reason="so",
            path=Path(name),
        )
        for name in ("mine", "fishr")
    ]
    found = as_data([], failed)
    assert [one["algorithm"] for one in found["failures"]] == ["fishr", "mine"]
