"""How many updates a run gets where nobody says."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.algorithms import find
from shoal.cli.fit import with_length
from shoal.datasets import Domain, DomainDataset
from shoal.fitting import lengths
from shoal.fitting.leave_one_out import FitWorkspace
from shoal.fitting.lengths import length_within, longest
from shoal.fitting.setup import FitSetup, table_length
from shoal.runs.machine import Machine
from shoal.sweeps.cost import write_rates
from shoal.sweeps.probe import Rates

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
def world() -> FitWorkspace:
    domains = [
        Domain(name, torch.arange(4) % 2, torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
        for name in "abc"
    ]
    data = DomainDataset("x", ("n", "y"), tuple(domains))
    return FitWorkspace(METHODS, data, None, Machine(torch.device("cpu"), "eager"))


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


@pytest.mark.parametrize("steps", lengths.LENGTHS)
def test_the_longest_that_fits(steps: int, world: FitWorkspace) -> None:
    rates = Rates(0.01, 0.0005, 2.0, domains=3)
    enough = seconds_of_a_round(steps, rates)
    assert longest(enough * 1.0001, rates, SETUP, world) == steps
    shorter = [length for length in lengths.LENGTHS if length < steps] or [steps]
    assert longest(enough * 0.9999, rates, SETUP, world) == shorter[0]


def test_a_probe_of_erm_tells(monkeypatch: pytest.MonkeyPatch, world: FitWorkspace) -> None:
    rates = Rates(0.01, 0.0, 0.0, domains=3)
    seen: list[Any] = []

    def find_rates(out: Path, runs: Any, probed: FitWorkspace, dataset: Any) -> None:
        seen.append([run.algorithm for run in runs])
        assert list(probed.methods) == ["erm"]  # what else there is may not go to a process
        assert dataset("x", 0) is world.dataset
        write_rates(out, {("here", ("x", "erm")): rates})

    monkeypatch.setattr(lengths, "find_rates", find_rates)
    needed = seconds_of_a_round(2000, rates) / lengths.SHARE
    assert length_within(needed * 1.0001, SETUP, world)[0] == 2000
    assert length_within(needed * 0.9999, SETUP, world)[0] == 1500
    assert seen == [["erm"], ["erm"]]


def test_where_nothing_is_found(monkeypatch: pytest.MonkeyPatch, world: FitWorkspace) -> None:
    monkeypatch.setattr(lengths, "find_rates", lambda *_: None)
    assert length_within(1e9, SETUP, world) == (SETUP.steps, 0.0)


def test_a_time_that_is_too_short_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: FitWorkspace
) -> None:
    rates = Rates(1.0, 0.0, 0.0, domains=3)
    wrote = {("here", ("x", "erm")): rates}
    monkeypatch.setattr(lengths, "find_rates", lambda out, *_: write_rates(out, wrote))
    # Two methods without each of two domains, and the model; not the third domain.
    least = 5 * 300 * 1.0

    def told(seconds: float) -> list[str]:
        lines: list[str] = []
        found = with_length(Namespace(steps=None), SETUP, world, tmp_path, seconds, lines.append)
        assert found.steps == 300
        return lines[1:]  # the first says that updates are timed

    assert told(least * 1.0001) == []
    (line,) = told(60.0)
    assert "take about 25 min 0 s even with 300 updates a run, and 1 min 0 s are left" in line
    assert "a longer --time, --train head, or fewer --steps" in line


@pytest.mark.parametrize(
    ("setup", "steps", "seconds", "expected"),
    [
        (SETUP, None, 60.0, 77),
        (SETUP, 1000, 60.0, 1000),  # as asked
        (SETUP, None, None, 1000),  # there is no time to fit into
        (replace(SETUP, trained="head"), None, 60.0, 1000),
        (replace(SETUP, kind="table", backbone=None), None, 60.0, 1000),
    ],
)
def test_only_what_is_left_open_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    world: FitWorkspace,
    setup: FitSetup,
    steps: int | None,
    seconds: float | None,
    expected: int,
) -> None:
    monkeypatch.setattr(lengths, "length_within", lambda *_: (77, 0.0))
    told: list[str] = []
    given = Namespace(steps=steps), setup, world, tmp_path, seconds
    assert with_length(*given, told.append).steps == expected
    assert bool(told) == (expected == 77)  # it takes a while, and says so


def test_what_was_chosen_before_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: FitWorkspace
) -> None:
    monkeypatch.setattr(lengths, "length_within", lambda *_: (77, 0.0))
    (tmp_path / "runs" / "one").mkdir(parents=True)
    SETUP.save(tmp_path)
    found = with_length(Namespace(steps=None), SETUP, world, tmp_path, 60.0, print)
    assert found.steps == SETUP.steps
