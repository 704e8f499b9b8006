"""Ablations: rows, runs and tables next to the paper's cells; the moving average by batch size."""

from dataclasses import asdict
from math import nan
from statistics import fmean

import pytest

from shoal.algorithms import ALGORITHMS, VARIANTS
from shoal.experiments import batch_size
from shoal.experiments.ablations import (
    ABLATIONS,
    DATASETS,
    RULES,
    draw_by_draw,
    in_row_order,
    table,
)
from shoal.reference import published_table
from shoal.results.records import Record, RunResult
from shoal.runs.run import Protocol
from shoal.sweeps.plan import Sweep, runs_of
from tests.report.made_up import make_run
from tests.runs.small import squares
from tests.sweeps.workspaces import Squares


@pytest.mark.parametrize("name", ABLATIONS)
def test_rows_are_the_papers_and_ours(name: str) -> None:
    ablation = ABLATIONS[name]
    assert set(ablation.rows) <= ALGORITHMS.keys() | VARIANTS.keys()
    assert sorted(ablation.in_order()) == sorted(ablation.rows)
    assert ablation.in_order()[: len(ablation.first)] == list(ablation.first)
    label = ablation.averages or ablation.tables["colored-mnist"]
    printed = list(published_table(label, "test-domain").rows)
    assert [row for row in ablation.rows if row != "fishr-rescaled"] == printed


def test_rows_are_trained_in_order() -> None:
    assert ABLATIONS["ablation-ema"].in_order()[:2] == ["fishr-no-ema", "fishr-rescaled"]
    assert ABLATIONS["ablation-iga"].in_order()[0] == "fishr-iga"


def test_runs_come_row_after_row() -> None:
    sweep = Sweep(algorithms=("erm", "fishr"), datasets=("squares",), trials=2, draws=2)
    runs = runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    domain = runs[0].test_domains[0]
    found = in_row_order(runs, ["fishr", "erm"], [domain])
    assert [run.algorithm for run in found] == ["fishr"] * 4 + ["erm"] * 4
    assert {run.test_domains for run in found} == {(domain,)}
    assert [(run.trial, run.draw) for run in found[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def made_up(row: str, domain: str, trials: int, draws: int) -> list[RunResult]:
    return [
        make_run("colored-mnist", row, (domain,), trial, draw)
        for trial in range(trials)
        for draw in range(draws)
    ]


def test_cells_next_to_the_papers() -> None:
    runs = made_up("fishr-no-ema", "-90%", 3, 2) + made_up("fishr-rescaled", "-90%", 2, 2)
    runs += made_up("coral", "-90%", 3, 2)
    rows = table(ABLATIONS["ablation-ema"], "colored-mnist", "test-domain", runs, planned=6)
    by_name = {row["row"]: row for row in rows}
    assert list(by_name) == list(ABLATIONS["ablation-ema"].rows)
    mine = by_name["fishr-no-ema"]
    best = []
    for trial in range(3):
        candidates = [run for run in runs[:6] if run.trial == trial]
        last = [run.records[-1].accuracy["-90%"] for run in candidates]
        best.append(max(last, key=lambda splits: splits["held_out"])["kept"])
    cell = mine["cells"]["-90%"]
    assert cell["mean"] == pytest.approx(100 * fmean(best))
    assert (cell["runs"], cell["planned"], cell["trials"]) == (6, 6, 3)
    assert mine["cells"]["+90%"] is None and mine["cells"]["average"] is None
    assert mine["paper"]["-90%"] == [34.0, 4.5] and mine["paper"]["average"] == [59.8]
    rescaled = by_name["fishr-rescaled"]
    assert (rescaled["cells"]["-90%"]["runs"], rescaled["paper"]) == (4, {})
    assert by_name["erm"]["cells"]["-90%"] is None


def test_an_average_counts_its_finished_runs() -> None:
    runs = [run for d in ("+90%", "+80%", "-90%") for run in made_up("fishr-v15", d, 1, 2)]
    rows = table(ABLATIONS["ablation-lambda"], "colored-mnist", RULES[0], runs[1:], 2)
    (average,) = [row["cells"]["average"] for row in rows if row["row"] == "fishr-v15"]
    assert (average["runs"], average["planned"]) == (5, 6)


def test_an_average_needs_all_domains() -> None:
    runs = [run for d in ("+90%", "+80%", "-90%") for run in made_up("fishr-v15", d, 2, 1)]
    ablation = ABLATIONS["ablation-lambda"]
    rows = {row["row"]: row for row in table(ablation, "colored-mnist", RULES[1], runs, 2)}
    average = rows["fishr-v15"]["cells"]["average"]
    cells = [rows["fishr-v15"]["cells"][d]["mean"] for d in ("+90%", "+80%", "-90%")]
    assert average["mean"] == pytest.approx(fmean(cells))
    assert (average["runs"], average["planned"]) == (6, 6)
    assert rows["fishr-v15"]["paper"] == {"average": [51.8, 0.3]}
    # The paper prints λ = 0 by domain under ERM's name.
    assert rows["fishr-lambda-0"]["paper"]["-90%"] == [10.0, 0.1]
    assert rows["fishr-lambda-0"]["paper"]["average"] == [51.5, 0.1]


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize("rule", RULES)
def test_every_table_works_without_runs(name: str, dataset: str, rule: str) -> None:
    for row in table(ABLATIONS[name], dataset, rule, [], 60):
        assert set(row["cells"].values()) == {None}
        assert row["paper"] or row["row"] == "fishr-rescaled"


def test_a_table_without_a_number_to_choose_by_has_no_cell() -> None:
    wrong = Record(step=0, accuracy={"-90%": {"kept": nan, "held_out": nan}}, terms={})
    runs = [
        RunResult(
            dataset="colored-mnist",
            algorithm="fishr",
            test_domains=("-90%",),
            trial=0,
            draw=d,
            hparams={},
            records=(wrong,),
        )
        for d in (0, 1)
    ]
    (row,) = (
        row
        for row in table(ABLATIONS["ablation-ema"], "colored-mnist", "test-domain", runs, 60)
        if row["row"] == "fishr"
    )
    assert set(row["cells"].values()) == {None}


def drawn(row: str, domain: str, draw: int, accuracy: float, **hparams: float) -> RunResult:
    last = Record(
        step=2,
        accuracy={domain: {"kept": accuracy, "held_out": 1.0}},
        calibration_error={},
        terms={},
    )
    before = Record(step=0, accuracy={domain: {"kept": 0.9}})
    return RunResult(
        dataset="colored-mnist",
        algorithm=row,
        test_domains=(domain,),
        trial=0,
        draw=draw,
        hparams=hparams,
        records=(last, before),
    )


def test_rows_are_compared_with_the_same_draw_of_fishr() -> None:
    strong, weak = {"penalty_weight": 1000.0}, {"penalty_weight": 999.0}
    runs = [
        drawn("fishr", "-90%", 0, 0.5, batch_size=64, **strong),
        drawn("fishr", "-90%", 1, 0.4, batch_size=65, **strong),
        drawn("fishr", "-90%", 2, 0.1, batch_size=8, **weak),
        drawn("fishr", "+80%", 0, 0.7, batch_size=8, **weak),
        # The group of a draw does not depend on the row's own hyperparameters.
        drawn("fishr-no-ema", "-90%", 0, 0.3, batch_size=512, **weak),
        drawn("fishr-no-ema", "-90%", 1, 0.5, batch_size=8, **weak),
        drawn("fishr-no-ema", "-90%", 2, 0.1, batch_size=8, **strong),
        drawn("fishr-no-ema", "-90%", 3, 0.9, batch_size=8, **strong),  # fishr's is not done
        drawn("erm", "+80%", 0, 0.6),
        drawn("iga", "-90%", 0, 0.6),  # of another ablation
    ]
    erm, no_ema = draw_by_draw(ABLATIONS["ablation-ema"], "colored-mnist", runs)
    assert (erm["row"], erm["domain"], list(erm["gaps"])) == ("erm", "+80%", ["all"])
    assert erm["gaps"]["all"]["mean"] == pytest.approx(-10)
    assert (no_ema["row"], no_ema["domain"]) == ("fishr-no-ema", "-90%")
    gaps = no_ema["gaps"]
    assert {group: gap["runs"] for group, gap in gaps.items()} == {"all": 3, "small": 1, "large": 1}
    assert gaps["all"]["mean"] == pytest.approx((-20 + 10 + 0) / 3)
    assert gaps["all"]["error"] == pytest.approx(((500 - 100 / 3) / 2 / 3) ** 0.5)
    assert gaps["small"]["error"] is None  # of a single draw; JSON has no NaN
    assert (gaps["small"]["mean"], gaps["large"]["mean"]) == pytest.approx((-20, 10))
    assert draw_by_draw(ABLATIONS["ablation-ema"], "office-home", runs) == []


# The moving average by batch size


def test_the_draw_is_the_published_one() -> None:
    best = asdict(batch_size.BEST_DRAW)
    assert best["batch_size"] == 39 and best["warmup_steps"] == 4264
    assert best["lr"] == pytest.approx(2.3969e-4, rel=1e-4)
    assert best["penalty_weight"] == pytest.approx(8089.5, rel=1e-4)
    assert best["ema_decay"] == pytest.approx(0.92697, rel=1e-4)


def test_either_lambda_or_the_pull_stays() -> None:
    keep, pull = batch_size.PULLS
    drawn = batch_size.BEST_DRAW.penalty_weight  # type: ignore[attr-defined]
    decay = batch_size.BEST_DRAW.ema_decay  # type: ignore[attr-defined]
    for other in batch_size.DECAYS:
        assert batch_size.strength(other, keep) == drawn
        assert batch_size.strength(other, pull) / (1 - other) == pytest.approx(drawn / (1 - decay))


def test_configurations_and_their_cells() -> None:
    sweeps = batch_size.sweeps(2, Protocol(steps=3))
    runs = [
        run
        for sweep in sweeps
        for run in runs_of(sweep, lambda name: (ALGORITHMS[name], {}), lambda *_: squares())
    ]
    # Of each configuration every test domain and trial; no two are the same run.
    assert len({run.identity for run in runs}) == len(runs) == 2 * 4 * 4 * 2 * len(squares().names)
    test = runs[0].test_domains
    finished = [
        RunResult(
            dataset=run.dataset,
            algorithm=run.algorithm,
            test_domains=test,
            trial=run.trial,
            draw=0,
            hparams=run.hparams,
            records=(
                Record(step=0, accuracy={test[0]: {"kept": 0.9}}),
                Record(
                    step=2,
                    accuracy={test[0]: {"kept": 0.1 * (1 + run.trial)}},
                    calibration_error={},
                    terms={},
                ),
            ),
        )
        for run in runs
        if run.test_domains == test and run.hparams["ema_decay"] == 0.5
    ]
    cells = batch_size.cells(finished)
    done = [cell for cell in cells if cell["mean"] is not None]
    assert {cell["ema_decay"] for cell in done} == {0.5} and len(done) == 8
    assert done[0]["mean"] == pytest.approx(15) and done[0]["trials"] == 2
    assert done[0]["error"] == pytest.approx(5 / 2**0.5)
    assert [cell["trials"] for cell in cells if cell["mean"] is None] == [0] * 24
