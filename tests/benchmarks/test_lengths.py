"""The comparison of lengths: means over domains of means over trials, in pairs of runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lengths import cells_of, course_of, numbers_of
from shoal.results.records import Record, RunResult


def run(algorithm: str, domain: str, trial: int, accuracy: float, ramp: int = 0) -> RunResult:
    split = {"kept": accuracy, "held_out": 0.0}
    record = Record(
        step=9, terms={}, accuracy={domain: split}, calibration_error={domain: {"kept": 0.5}}
    )
    return RunResult(
        dataset="pacs",
        algorithm=algorithm,
        test_domains=(domain,),
        trial=trial,
        draw=0,
        hparams={"warmup_steps": 2, "ramp_steps": ramp} if algorithm == "fishr" else {},
        records=(record,),
        path=Path("no such folder"),
        protocol={"steps": 10},
    )


def test_a_domain_with_more_trials_weighs_no_more() -> None:
    runs = [
        *(run("erm", "a", trial, 0.5) for trial in range(3)),
        run("erm", "b", 0, 0.7),
        run("fishr", "a", 0, 0.6, ramp=3),
        run("fishr", "a", 1, 0.7, ramp=3),
        run("fishr", "b", 0, 0.8, ramp=3),
        run("fishr", "b", 0, 0.1),
    ]
    erm, jump, rising = numbers_of(cells_of(runs))
    names = [row["method"] for row in (erm, jump, rising)]
    assert names == ["ERM", "Fishr, λ jumps", "Fishr, λ rises 2 to 5"]
    assert erm["accuracy"] == pytest.approx(60)
    assert erm["minus_erm"] is None
    assert jump["minus_erm"] is None  # one domain alone has no error
    # a: 65 − 50, b: 80 − 70.
    assert rising["minus_erm"] == {"difference": 12.5, "error": 2.5, "domains": 2, "pairs": 3}
    assert rising["calibration_error"] == pytest.approx(50)


def test_only_runs_of_the_same_domain_and_trial_are_compared() -> None:
    runs = [
        *(run("erm", domain, 0, 0.5) for domain in "ab"),
        *(run("erm", domain, 1, 0.9) for domain in "ab"),  # an easy split, and Fishr has none
        run("fishr", "a", 0, 0.6),
        run("fishr", "b", 0, 0.8),
    ]
    _, jump = numbers_of(cells_of(runs))
    assert jump["minus_erm"] == {"difference": 20, "error": 10, "domains": 2, "pairs": 2}


def test_ramps_of_one_length_are_rows_of_their_own() -> None:
    rows = numbers_of(cells_of([run("fishr", "a", 0, 0.6, ramp=30), run("fishr", "a", 0, 0.8, 4)]))
    assert [(row["method"], row["accuracy"]) for row in rows] == [
        ("Fishr, λ rises 2 to 6", 80),
        ("Fishr, λ rises 2 to 32", 60),
    ]


def test_a_run_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two runs of ERM, 10 updates, a, trial 0"):
        cells_of([run("erm", "a", 0, 0.5), run("erm", "a", 0, 0.6)])


def test_the_course_of_the_longest_runs_has_their_risks() -> None:
    def at(step: int, risk: float, error: float) -> Record:
        errors = {"a": {"kept": error}}
        return Record(step=step, terms={"risk": risk}, accuracy={}, calibration_error=errors)

    long = {"steps": 1001}
    one = replace(
        run("erm", "a", 0, 0.5),
        protocol=long,
        records=(at(0, 2.0, 0.2), at(600, 9.0, 0.9), at(900, 1.0, 0.1), at(1000, 0.5, 0.3)),
    )
    other = replace(one, trial=1, records=(at(900, 3.0, 0.3),))
    short = run("erm", "a", 2, 0.5)
    found = course_of([one, other, short])
    assert [row["updates"] for row in found] == [0, 900, 1000]
    assert found[1] == {
        "method": "ERM",
        "updates": 900,
        "runs": 2,
        "risk": 2.0,
        "calibration_error": 20.0,
    }
