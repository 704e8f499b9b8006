"""Where a training might have ended, and what selection makes of it."""

from random import Random

import pytest

from benchmarks.last_record import beside, cell, chosen, drawn_cells, late
from shoal.results.records import Record, RunResult


def run(
    trial: int, draw: int, by_step: dict[int, float], old: float = 0.5, **hparams: float
) -> RunResult:
    """A run with these accuracies on the test domain, and ``old`` + step / 1000 on another."""
    measured = tuple(
        Record(
            step=step,
            accuracy={
                "new": {"kept": accuracy, "held_out": accuracy},
                "old": {"held_out": old + step / 1000},
            },
            calibration_error={},
        )
        for step, accuracy in by_step.items()
    )
    return RunResult(
        dataset="data",
        algorithm="method",
        test_domains=("new",),
        trial=trial,
        draw=draw,
        hparams=hparams,
        records=measured,
    )


@pytest.mark.parametrize(
    ("warmup_steps", "expected"),
    [
        (0, [3000, 4000, 5000]),
        (3800, [4000, 5000]),
        (4950, [5000]),  # on its way at the end
        (9000, [3000, 4000, 5000]),  # never acts
    ],
)
def test_late_records_are_those_after_the_penalty_has_settled(
    warmup_steps: int, expected: list[int]
) -> None:
    steps = dict.fromkeys((0, 1000, 2000, 3000, 4000, 5000), 0.5)
    found = late(run(0, 0, steps, warmup_steps=warmup_steps), after=2500)
    assert [measured.step for measured in found] == expected


def test_a_cell_is_the_mean_over_trials_of_the_best_last_record() -> None:
    runs = [
        run(0, 0, {0: 0.9, 10: 0.2}),
        run(0, 1, {0: 0.1, 10: 0.4}),
        run(1, 0, {0: 0.1, 10: 0.6}),
    ]
    assert cell(runs) == pytest.approx(50)


def test_drawn_ends_give_the_cells_of_all_combinations() -> None:
    """Two draws that end at 0 or 1 with equal chances: the better of them is 0 in a quarter."""
    runs = [run(0, draw, {10: 0.0, 20: 1.0}) for draw in (0, 1)]
    cells = drawn_cells(runs, 10, 2000, Random(0))
    assert set(cells) == {0.0, 100.0}
    assert sum(cells) / len(cells) == pytest.approx(75, abs=4)  # four standard errors


def test_what_is_chosen_stands_beside_its_accuracy_where_it_was_trained() -> None:
    runs = [
        run(1, 0, {10: 0.6, 0: 0.9}, old=0.2),
        run(0, 0, {0: 0.9, 10: 0.2}, old=0.8),
        run(0, 1, {0: 0.1, 10: 0.4}, old=0.1),
    ]
    assert runs[0].last_inside == pytest.approx(0.21)  # of the last step, not of the last line
    assert chosen(runs) == [
        {"trial": 0, "draw": 1, "accuracy": 40.0, "on_training_domains": 11.0},
        {"trial": 1, "draw": 0, "accuracy": 60.0, "on_training_domains": 21.0},
    ]


def test_the_same_draws_of_another_sweep_are_compared_one_by_one() -> None:
    mine = [run(0, 0, {10: 0.2, 20: 0.4}), run(0, 1, {10: 0.5, 20: 0.5}), run(0, 2, {20: 0.9})]
    theirs = [run(0, 1, {10: 0.5, 20: 0.7}), run(0, 0, {10: 0.5, 20: 0.5}), run(1, 2, {20: 0.1})]
    assert beside(mine, theirs, after=10) == {
        "draws": 2,
        "theirs_less_ours": 15.0,  # 10 and 20 points
        "error": 5.0,
        "unrest": 7.1,  # the mean of 20 / √2 and 0
        "their_unrest": 7.1,
        "they_choose": [{"trial": 0, "draw": 1, "accuracy": 70.0, "on_training_domains": 52.0}],
    }
    assert beside(mine, theirs[2:], after=10) is None
