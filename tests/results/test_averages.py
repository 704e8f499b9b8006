"""Averages of weights as results: rows of their own, read from the folder of a run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.catalogue import in_order, title_of
from shoal.results.averages import AVERAGES_FILE, averages_as_text, read_averages, with_averages
from shoal.results.records import Record, RunResult


def run_in(folder: Path, algorithm: str = "fishr") -> RunResult:
    return RunResult(
        dataset="pacs",
        algorithm=algorithm,
        test_domains=("photo",),
        trial=0,
        draw=0,
        hparams={},
        records=(Record(step=0, accuracy={"photo": {"kept": 0.5}}),),
        path=folder,
    )


def averages() -> list[Record]:
    return [
        Record(
            step=step,
            accuracy={"photo": {"kept": accuracy}},
            extra={"average": name, "updates": [step // 2, step]},
        )
        for step, accuracy in ((10, 0.6), (20, 0.7))
        for name in ("sma", "swad")
    ]


def test_an_average_is_a_row_of_its_own(tmp_path: Path) -> None:
    (tmp_path / AVERAGES_FILE).write_text(averages_as_text(averages()))
    plain, sma, swad = with_averages([run_in(tmp_path)])
    assert plain == run_in(tmp_path)
    assert (sma.algorithm, swad.algorithm) == ("fishr+sma", "fishr+swad")
    assert [one.step for one in sma.records] == [10, 20]
    assert sma.last.accuracy == {"photo": {"kept": 0.7}}
    assert sma.last.extra["updates"] == [10, 20]
    assert sma.path == plain.path and sma.hparams == plain.hparams


def test_a_run_without_averages_stays_as_it_is(tmp_path: Path) -> None:
    assert with_averages([run_in(tmp_path)]) == [run_in(tmp_path)]
    assert with_averages([replace(run_in(tmp_path), path=None)]) == [
        replace(run_in(tmp_path), path=None)
    ]


def test_names_and_order() -> None:
    assert title_of("fishr+swad") == "Fishr + SWAD"
    assert title_of("vrex+half") == "V-REx + second half"
    assert title_of("mine.py:Mine@01+sma") == "mine.py:Mine@01 + SMA"
    assert title_of("a+b") == "a+b"
    names = ["fishr+swad", "fishr", "erm+sma", "mine", "erm", "mine+half", "fishr+sma"]
    ordered = in_order([run_in(Path(), name) for name in names])
    assert [one.algorithm for one in ordered] == [
        *("erm", "erm+sma", "fishr", "fishr+sma", "fishr+swad", "mine", "mine+half")
    ]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"step": 1}', json.dumps({"step": 1, "accuracy": {}})]
)
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / AVERAGES_FILE).write_text(averages_as_text(averages()[:1]) + line + "\n")
    with pytest.raises(ValueError, match=r"averages\.jsonl.* line 2.*; delete the file to report"):
        read_averages(tmp_path)
