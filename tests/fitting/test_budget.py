"""Budgets: by runs, by time, including the time of earlier commands."""

import json
import os
import time
from pathlib import Path

import pytest

from shoal.fitting.budget import Budget, RunSpeeds
from shoal.runs.run import Run
from shoal.sweeps.plan import folder_of


def groups(number: int) -> list[list[Run]]:
    return [
        [
            Run(dataset="x", fingerprint="", algorithm=name, test_domains=("a",), trial=trial)
            for name in ("erm", "fishr")
        ]
        for trial in range(number)
    ]


def done(out: Path, run: Run, seconds: float, age: float = 0.0, share: float = 1.0) -> None:
    """Write what a run leaves that took so long, for so many of its updates."""
    folder = folder_of(out, run)
    folder.mkdir(parents=True)
    timing = {"preparing": seconds / 2, "updating": seconds / 2, "evaluating": 0.0}
    timing["updates"] = round(share * run.protocol.steps)
    (folder / "timing.json").write_text(json.dumps(timing))
    (folder / "done").touch()
    then = time.time() - age
    os.utime(folder / "done", (then, then))


def test_whole_groups_within_the_number_of_runs(tmp_path: Path) -> None:
    budget = Budget(runs=7)
    assert [budget.allows(tmp_path, groups(5), k) for k in range(5)] == [True] * 3 + [False] * 2


def test_two_groups_are_made_in_any_case(tmp_path: Path) -> None:
    budget = Budget(seconds=0.001, runs=1)
    assert [budget.allows(tmp_path, groups(3), k) for k in range(3)] == [True, True, False]
    assert budget.within(groups(3)) == groups(2)


def test_a_group_must_fit_beside_the_last_run(tmp_path: Path) -> None:
    all_groups, wide, tight = groups(4), Budget(seconds=36.0), Budget(seconds=34.0)
    for run in (*all_groups[0], *all_groups[1]):
        done(tmp_path, run, 10.0)
    # Two runs and the last, which counts for one and a half: 35 s are ahead.
    assert wide.allows(tmp_path, all_groups, 2)
    assert not tight.allows(tmp_path, all_groups, 2)


def test_a_first_run_that_was_compiled_says_nothing_of_the_next_ones(tmp_path: Path) -> None:
    all_groups = groups(4)
    for group, (erm, fishr) in zip(all_groups, ((90.0, 120.0), (10.0, 40.0)), strict=False):
        done(tmp_path, group[0], erm, age=1000)
        done(tmp_path, group[1], fishr, age=1000)
    # 260 s are spent; 10 and 40 s are ahead, and the last: one and a half times the slowest.
    assert Budget(seconds=491.0).allows(tmp_path, all_groups, 2)
    assert not Budget(seconds=489.0).allows(tmp_path, all_groups, 2)


def test_a_run_that_went_on_counts_as_a_whole_one(tmp_path: Path) -> None:
    all_groups = groups(3)
    for run in all_groups[0]:
        done(tmp_path, run, 100.0)
    for run in all_groups[1]:
        done(tmp_path, run, 2.0, share=0.01)
    # Half of it are updates: 1 s for a hundredth of them, so 101 s for a run, and not 2.
    assert RunSpeeds.of(tmp_path, all_groups[1:]).each["erm"] == pytest.approx(101, abs=0.1)


def test_what_earlier_commands_spent_counts(tmp_path: Path) -> None:
    all_groups = groups(4)
    for run in (*all_groups[0], *all_groups[1]):
        done(tmp_path, run, 10.0, age=1000)
    budget = Budget(seconds=76.0)
    assert budget.spent(tmp_path, all_groups) == pytest.approx(40.0, abs=1)
    assert budget.allows(tmp_path, all_groups, 2)
    assert not Budget(seconds=74.0).allows(tmp_path, all_groups, 2)
