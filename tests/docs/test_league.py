"""The league: up to date with the committed records, and its numbers by hand."""

import importlib.util
import json
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from shoal.catalogue import title_of
from tests.docs.test_documents import ROOT


@pytest.fixture(scope="module")
def league() -> ModuleType:
    path = ROOT / "tools" / "league.py"
    spec = importlib.util.spec_from_file_location("league", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["league"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_pages_are_up_to_date(league: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    status = league.main(["--check"])
    assert status == 0, capsys.readouterr().out


def test_rows_agree_with_the_records_and_each_other(league: ModuleType) -> None:
    rows = league.league(league.read_sources(league.SOURCES))
    titles = {row.title: row for row in rows}
    assert {"ERM", "ERM + second half", "Fishr", "Fishr + SWAD"} <= set(titles)
    half = titles["ERM + second half"]
    domains = [cell.mean for cell in half.found.domains.values()]
    assert half.average.mean == pytest.approx(sum(domains) / 4)
    last = [cell.mean for cell in titles["ERM"].found.domains.values()]
    gains = [one - other for one, other in zip(domains, last, strict=True)]
    assert half.gained.difference == pytest.approx(sum(gains) / 4)
    assert half.gap is None and titles["ERM"].gained is None
    assert sorted(row.place for row in rows)[0] == 1
    leader = max(rows, key=lambda row: round(100 * row.average.mean, 1))
    assert leader.place == 1 and leader.title in league.answers(rows)[0]
    assert league.not_run(rows) == []
    costs = json.loads((ROOT / "benchmarks/results/league_costs.json").read_text())["rows"]
    dear = max(costs, key=lambda row: row["update_ms"])
    ratio = dear["update_ms"] / costs[0]["update_ms"]
    told = f"An update of {title_of(dear['method'])} takes longest, {ratio:.1f} times as long"
    assert league.answers(rows)[-1].startswith(told)
    assert costs[0]["method"] == "erm" and costs[1]["method"] == "fishr"
    assert league.update_cost(league.RISING).seconds == costs[1]["seconds"]


def test_methods_without_a_run_are_named(league: ModuleType) -> None:
    runs = league.read_sources(league.SOURCES)
    rows = league.league([run for run in runs if not run.algorithm.startswith("coral")])
    assert league.not_run(rows) == ["CORAL"]
    assert league.answers(rows)[-1].endswith("Not run yet: CORAL.")


def test_unfinished_trials_do_not_count(league: ModuleType) -> None:
    runs = league.read_sources(league.SOURCES)
    whole = {row.title: row for row in league.league(runs)}
    # Of Fishr there is trial 0, and three domains of trial 1.
    some = [
        run
        for run in runs
        if not run.algorithm.startswith("fishr")
        or run.trial == 0
        or (run.trial == 1 and run.test_domains != ("sketch",))
    ]
    found = {row.title: row for row in league.league(some)}
    row = found["Fishr + SMA (1 of 3 trials)"]
    first = [run for run in runs if run.trial == 0]
    assert row.average.mean == pytest.approx(
        {one.title: one for one in league.league(first)}[row.title].average.mean
    )
    assert row.average.mean != whole["Fishr + SMA"].average.mean
    title, _, average, *_ = league.cells(row)
    assert title == row.title and average == f"{100 * row.average.mean:.1f}"
    assert "±" in league.cells(found["ERM"])[2]
    assert found["ERM"].average == whole["ERM"].average


def test_rows_with_all_trials_answer_and_the_leader_is_named(league: ModuleType) -> None:
    runs = league.read_sources(league.SOURCES)
    half = "erm+half"
    rows = league.league([run for run in runs if run.algorithm != half or run.trial == 0])
    (part,) = (row for row in rows if (row.method, row.weights) == ("erm", "half"))
    assert part.average.trials == 1 and league.best_of(rows).average.trials == 3
    raised = [replace(row, place=1) if row is part else row for row in rows]
    first, *others = league.answers(raised)
    assert first.startswith("Of the rows with 3 trials ")
    assert f"; so far {part.title} has {100 * part.average.mean:.1f} %." in first
    assert all("trials)" not in line for line in others)
