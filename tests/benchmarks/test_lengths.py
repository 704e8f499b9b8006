"""The comparison of lengths: means over domains of means over trials, paired by domain."""

from pathlib import Path

import pytest

from benchmarks.lengths import cells_of, numbers_of
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
        hparams={"ramp_steps": ramp} if algorithm == "fishr" else {},
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
    assert (erm["method"], jump["method"], rising["method"]) == ("ERM", "Fishr", "Fishr, rising λ")
    assert erm["accuracy"] == pytest.approx(60)
    assert erm["minus_erm"] is None
    assert jump["minus_erm"] is None  # one domain alone has no error
    # a: 65 − 50, b: 80 − 70.
    assert rising["minus_erm"] == {"difference": 12.5, "error": 2.5, "domains": 2}
    assert rising["calibration_error"] == pytest.approx(50)
