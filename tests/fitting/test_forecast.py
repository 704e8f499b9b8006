"""The forecast of a fit: no more runs than the budget allows, and the time left."""

from pathlib import Path

import pytest

from shoal.fitting.budget import Budget, FitForecast, FitProgress
from shoal.training.loop import Progress
from tests.fitting.test_budget import done, groups


def at(steps_done: int, seconds_left: float | None, steps: int = 100) -> Progress:
    return Progress(done=steps_done, steps=steps, rate=1.0, seconds_left=seconds_left, record=None)


def test_no_more_runs_than_were_asked_for(tmp_path: Path) -> None:
    all_groups = groups(5)
    outlook = FitForecast(tmp_path, all_groups, Budget(runs=7))
    assert outlook(all_groups[0][0], None) == FitProgress(0, 6, None)
    for run in (*all_groups[0], *all_groups[1]):
        done(tmp_path, run, 10.0)
    # Two runs, and the last one, which counts for one and a half.
    assert outlook(all_groups[2][0], None) == FitProgress(4, 6, pytest.approx(35.0))
    assert outlook(all_groups[2][1], None) == FitProgress(5, 6, pytest.approx(25.0))


def test_the_first_run_tells_by_its_own_pace(tmp_path: Path) -> None:
    all_groups = groups(3)
    (erm, fishr), *_ = all_groups
    outlook = FitForecast(tmp_path, all_groups, Budget())
    outlook(erm, None)
    assert outlook(erm, at(0, None)).left is None
    # 60 s for the whole run: 45 s of it, five more, and the last one.
    assert outlook(erm, at(25, 45.0)).left == pytest.approx(45 + 5 * 60 + 90)
    assert outlook(erm, at(50, 20.0)).left == pytest.approx(20 + 5 * 40 + 60)
    assert outlook(erm, at(100, 0.0)).left == pytest.approx(5 * 40 + 60)
    done(tmp_path, erm, 40.0)
    # A method of which nothing is done: as long as the slowest, until it has a pace of its own.
    assert outlook(fishr, None).left == pytest.approx(40 + 4 * 40 + 60)
    assert outlook(fishr, at(50, 40.0)).left == pytest.approx(40 + 2 * 40 + 2 * 80 + 120)


def test_a_run_that_is_slow_says_nothing_of_others_like_it(tmp_path: Path) -> None:
    all_groups = groups(2)
    for run in all_groups[0]:
        done(tmp_path, run, 10.0)
    outlook = FitForecast(tmp_path, all_groups, Budget())
    outlook(all_groups[1][0], None)
    assert outlook(all_groups[1][0], at(50, 50.0)).left == pytest.approx(50 + 10 + 15)


def test_what_is_done_already_takes_no_time(tmp_path: Path) -> None:
    all_groups = groups(3)
    for run in (*all_groups[0], *all_groups[2]):
        done(tmp_path, run, 10.0)
    outlook = FitForecast(tmp_path, all_groups, Budget())
    assert outlook(all_groups[1][0], None) == FitProgress(2, 6, pytest.approx(35.0))


def test_no_more_runs_than_there_is_time_for(tmp_path: Path) -> None:
    all_groups = groups(6)
    for run in all_groups[0]:
        done(tmp_path, run, 10.0, age=1000)

    def total(seconds: float, group: int = 1) -> int:
        return FitForecast(tmp_path, all_groups, Budget(seconds))(all_groups[group][0], None).total

    # 20 s are spent, and two groups are made in any case; every further one takes 20 s, and the
    # last run 15 s.
    assert [total(seconds) for seconds in (1.0, 74.0, 76.0, 96.0, 1000.0)] == [4, 4, 6, 8, 12]
    assert (total(1.0, group=0), total(1.0, group=3)) == (4, 8)  # the fourth group has begun
