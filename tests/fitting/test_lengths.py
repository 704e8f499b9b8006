"""The default number of updates of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.algorithms import find
from shoal.cli.fit import print_plan
from shoal.datasets import Domain, DomainDataset
from shoal.fitting import fit, run_length
from shoal.fitting.folds import Fold
from shoal.fitting.leave_one_out import FitWatcher
from shoal.fitting.run_length import LENGTHS, SHARE, length_within, longest
from shoal.fitting.schedule import Budget, FitPlan
from shoal.fitting.setup import FitSetup, FitWorkspace, table_length
from shoal.runs.machine import Machine
from shoal.sweeps.cost import Rates
from tests.fitting.made import table_setup, write_table

SETUP = FitSetup(
    dataset="x",
    fingerprint="f",
    kind="images",
    trained="all",
    backbone="efficientnet-lite0",
    steps=1000,
    precision="bf16",
    settings={},
)
METHODS = {name: (find(name), {}) for name in ("erm", "fishr")}


@pytest.fixture
def workspace() -> FitWorkspace:
    domains = [
        Domain(name, torch.arange(4) % 2, torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
        for name in "abc"
    ]
    data = DomainDataset("x", ("n", "y"), tuple(domains))
    return FitWorkspace(METHODS, data, None, Machine(device=torch.device("cpu"), step="eager"))


def seconds_of_a_round(steps: int, rates: Rates) -> float:
    """Return what it takes to leave each of three domains out once, and for the model itself.

    Two methods, batches of 32 of each domain; five records, after the first update, after each
    quarter and after the last.
    """
    without, whole = rates.update + 2 * 32 * rates.image, rates.update + 3 * 32 * rates.image
    return steps * (6 * without + whole) + 7 * 5 * rates.evaluation


@pytest.mark.parametrize(
    ("rows", "steps"), [([60] * 4, 200), ([20] * 30, 200), ([600, 400], 391), ([9000] * 3, 1000)]
)
def test_small_tables_are_not_seen_too_often(rows: list[int], steps: int) -> None:
    assert table_length(rows) == steps


@pytest.mark.parametrize("steps", LENGTHS)
def test_the_longest_that_fits(steps: int, workspace: FitWorkspace) -> None:
    rates = Rates(0.01, 0.0005, 2.0, domains=3)
    enough = seconds_of_a_round(steps, rates)
    assert longest(enough * 1.0001, rates, SETUP, workspace) == steps
    shorter = [length for length in LENGTHS if length < steps] or [steps]
    assert longest(enough * 0.9999, rates, SETUP, workspace) == shorter[0]


@pytest.mark.parametrize("names", [("fishr", "erm"), ("fishr", "coral")])
def test_a_probe_of_erm_or_of_the_first_method_tells(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch, workspace: FitWorkspace
) -> None:
    rates = Rates(0.01, 0.0, 0.0, domains=3)
    seen: list[Any] = []
    workspace = replace(workspace, methods={name: (find(name), {}) for name in names})
    probed_name = "erm" if "erm" in names else "fishr"

    def probe_rates(runs: Any, probed: FitWorkspace, dataset: Any) -> Any:
        seen.append([run.algorithm for run in runs])
        assert list(probed.methods) == [probed_name]  # what else there is may not go to a process
        assert dataset("x", 0) is workspace.dataset
        return {("here", ("x", probed_name)): rates}

    monkeypatch.setattr(run_length, "probe_rates", probe_rates)
    needed = seconds_of_a_round(2000, rates) / SHARE
    assert length_within(needed * 1.0001, SETUP, workspace)[0] == 2000
    assert length_within(needed * 0.9999, SETUP, workspace)[0] == 1500
    assert seen == [[probed_name], [probed_name]]


def test_where_nothing_is_found(monkeypatch: pytest.MonkeyPatch, workspace: FitWorkspace) -> None:
    monkeypatch.setattr(run_length, "probe_rates", lambda *_: {})
    assert length_within(1e9, SETUP, workspace) == (SETUP.steps, 0.0)


def test_a_time_that_is_too_short_is_told(
    monkeypatch: pytest.MonkeyPatch, workspace: FitWorkspace, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = Rates(1.0, 0.0, 0.0, domains=3)
    monkeypatch.setattr(run_length, "probe_rates", lambda *_: {("here", ("x", "erm")): rates})
    # ERM without each of three domains, which is the least for a verdict, and the model.
    least = 4 * 300 * 1.0

    def printed(seconds: float) -> str:
        lines = Lines()
        setup, shortest = fit.choose_length(SETUP, workspace, seconds, lines)
        assert setup.steps == 300
        assert lines.lines == ["timing a few updates to choose the length of the runs"]
        plan = FitPlan(
            setup=setup,
            candidates=(),
            metric="accuracy",
            judge="mean",
            folds=tuple(Fold(name, (name,)) for name in "abc"),
            trials=3,
            budget=Budget(seconds),
            shortest=shortest,
            without_gpu=False,
        )
        print_plan(plan)
        return capsys.readouterr().out

    assert "too short" not in printed(least * 1.01)
    line = printed(60.0)
    assert (
        "takes about 20 min 0 s even with 300 updates in each run, but 1 min 0 s are left" in line
    )
    assert "a longer --time, --train head, or fewer --steps" in line


class Lines(FitWatcher):
    """Keeps the notes of a fit."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(
    ("setup", "seconds", "expected"),
    [
        (SETUP, 60.0, 77),
        (SETUP, None, 1000),  # there is no time to fit into
        (replace(SETUP, trained="head"), 60.0, 1000),
        (replace(SETUP, kind="table", backbone=None), 60.0, 1000),
    ],
)
def test_only_the_length_of_whole_networks_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    workspace: FitWorkspace,
    setup: FitSetup,
    seconds: float | None,
    expected: int,
) -> None:
    monkeypatch.setattr(fit, "length_within", lambda *_: (77, 0.0))
    lines = Lines()
    assert fit.choose_length(setup, workspace, seconds, lines)[0].steps == expected
    assert bool(lines.lines) == (expected == 77)  # it takes a while, and a note announces it


@pytest.mark.parametrize("before", [True, False])
def test_a_length_that_was_given_or_chosen_before_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: bool
) -> None:
    """An earlier command chose 1 update, or this one gives it: nothing is timed."""

    def timed(*_: object) -> None:
        raise AssertionError("updates were timed")

    class Planned(Exception):
        pass

    class Stops(FitWatcher):
        def plan(self, plan: FitPlan) -> None:
            assert plan.setup.steps == 5
            raise Planned

    monkeypatch.setattr(fit, "choose_length", timed)
    data, out = write_table(tmp_path / "t.csv"), tmp_path / "out"
    if before:
        (out / "runs" / "one").mkdir(parents=True)
        table_setup(steps=5).save(out)
    with pytest.raises(Planned):
        fit.fit(data, out=out, steps=None if before else 5, device="cpu", watcher=Stops())
