"""Paired differences: of every method to ERM, and of any two on request."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.catalogue import title_of
from shoal.cli import main
from shoal.report.grid import Grid, GridEntry
from shoal.report.sweep import against_each, paired, rule_reports
from shoal.results.averages import AVERAGES_FILE, averages_as_text
from shoal.results.selection import choose_runs
from tests.report.made_up import make_run, make_sweep, write_run

METHODS = ("vrex", "erm", "fishr")
RUNS = make_sweep(METHODS, ("colored-mnist",), trials=2, draws=2)
CHOICES = choose_runs(RUNS, "training-domain")


def expected(one: str, other: str) -> list[str]:
    """Return the row by NumPy, the p-value from all outcomes of the coins."""
    values = {
        name: {(c.test_domain, c.trial): c.accuracy for c in CHOICES if c.algorithm == name}
        for name in (one, other)
    }
    gaps = 100 * np.array([values[one][place] - values[other][place] for place in values[one]])
    n, won = len(gaps), int((gaps > 0).sum())
    coins = (np.arange(2**n)[:, None] >> np.arange(n) & 1).sum(1)
    p = np.mean(abs(coins - n / 2) >= abs(won - n / 2))
    # Trials of a domain are averaged first: three domains are three.
    domains = [place[0] for place in values[one]]
    means = np.array([gaps[[d == name for d in domains]].mean() for name in dict.fromkeys(domains)])
    assert len(means) == 3 and n == 6
    return [shown(gaps), str(n), str(won), str(n - won), f"{p:.3f}", shown(means), "3"]


def shown(gaps: np.ndarray) -> str:
    error = gaps.std(ddof=1) / math.sqrt(len(gaps))
    return f"{gaps.mean():+.1f} ± {error:.1f}".replace("-", "−")


def rows(table: Grid) -> dict[str, list[str]]:
    return {
        line.name: [f"{e.text} ± {e.error}" if e.error else e.text for e in line.cells]
        for line in table.lines
    }


def test_a_row_is_the_paired_comparison() -> None:
    found = rows(paired(CHOICES, [("fishr", "vrex"), ("erm", "fishr")], ""))
    assert found == {
        "Fishr minus V-REx": expected("fishr", "vrex"),
        "ERM minus Fishr": expected("erm", "fishr"),
    }


def test_every_method_against_every_other() -> None:
    found = against_each(CHOICES)
    assert [*found] == ["erm", "vrex", "fishr"]  # the baseline first
    for other, table in found.items():
        names = [name for name in found if name != other]
        assert rows(table) == {title_of(name): expected(name, other) for name in names}


def test_too_few_to_compare_is_a_gap() -> None:
    few = [c for c in CHOICES if c.algorithm == "erm" or (c.test_domain, c.trial) == ("+90%", 0)]
    (line,) = paired(few, [("fishr", "erm")], "").lines
    assert line.cells == (GridEntry(),) * 7
    assert paired(few, [("none", "erm")], "").lines[0].cells == line.cells
    one_domain = [c for c in CHOICES if c.test_domain == "+90%"]
    (line,) = paired(one_domain, [("fishr", "erm")], "").lines
    assert line.cells[1] == GridEntry("2") and line.cells[5:] == (GridEntry(), GridEntry())


def test_a_chapter_compares_all_with_erm_and_the_pairs_asked_for() -> None:
    asked = [("fishr", "vrex"), ("fishr", "erm")]
    (chapter,) = rule_reports(RUNS, ["training-domain"], asked)
    (table,) = chapter.paired
    keys = ["vrex less erm", "fishr less erm", "fishr less vrex"]
    assert [line.key for line in table.lines] == keys
    names = ["V-REx minus ERM", "Fishr minus ERM", "Fishr minus V-REx"]
    assert [line.name for line in table.lines] == names
    *others, before, last = chapter.all_tables
    assert before is table and (last,) == chapter.best_of_n
    assert table.label not in {one.label for one in (*others, last)}
    (alone,) = rule_reports(make_sweep(("fishr", "vrex"), draws=1), ["training-domain"])
    assert alone.paired == () and not any("Paired" in line for line in alone.lines)
    assert any("Paired" in line for line in chapter.lines)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    for run in RUNS:
        write_run(folder, run)
    return folder


# The pair that is asked for, and those with the baseline; keys in JSON.
NAMES = {
    "json": ("fishr less vrex", ("fishr less erm", "vrex less erm")),
    "text": ("Fishr minus V-REx", ("Fishr minus ERM", "V-REx minus ERM")),
}


@pytest.mark.parametrize("kind", ["terminal", "markdown", "latex", "json"])
def test_the_command_shows_it(kind: str, sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = ["--rule", "training-domain", "--format", kind]
    assert main(["report", str(sweep), "--compare", "fishr", "vrex", *rule]) == 0
    told = capsys.readouterr().out
    shown, others = NAMES["json" if kind == "json" else "text"]
    assert shown in told and all(one in told for one in others)
    *_, p, over_domains, _ = expected("fishr", "vrex")
    assert p in told and "Over domains" in told
    difference, error = over_domains.split(" ± ")
    assert (difference if kind != "latex" else difference.replace("−", "$-$")) in told
    assert error in told
    assert main(["report", str(sweep), *rule]) == 0
    told = capsys.readouterr().out
    assert shown not in told and others[0] in told


def test_an_average_is_compared_with_another_and_with_its_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in (one for one in RUNS if one.algorithm != "vrex"):
        lines = [
            replace(one, extra={"average": "half", "updates": [0, one.step]})
            for one in make_run("colored-mnist", "coral", run.test_domains, run.trial, 0).records
        ]
        folder = write_run(tmp_path, run).path or tmp_path
        (folder / AVERAGES_FILE).write_text(averages_as_text(lines))
    pairs = [("fishr+half", "fishr"), ("fishr+half", "erm+half")]
    asked = [word for pair in pairs for word in ("--compare", *pair)]
    rule = ["--rule", "test-domain", "--format", "json"]
    assert main(["report", str(tmp_path), *asked, *rule]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rules"]
    mine = {(one["method"], one["other"]): one for one in found["paired"]}
    # Both averages were made the same, so only the methods differ.
    assert mine["fishr+half", "erm+half"]["difference"] == 0
    assert mine["fishr+half", "erm+half"]["over_domains"]["domains"] == 3
    assert mine["fishr+half", "fishr"]["difference"] != 0
    assert mine["fishr+half", "fishr"]["pairs"] == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--compare", "fish", "erm"), "'fish'; did you mean 'fishr'? One of: erm, fishr, vrex"),
        (("--compare", "erm", "coral"), "unknown method of these runs 'coral'. One of: erm"),
        (("--compare", "erm", "erm"), "--compare needs two different methods, got erm twice"),
        (("--compare", "erm", "vrex", "--format", "html"), "the page compares any two methods"),
    ],
)
def test_what_cannot_be_compared_is_said(
    arguments: tuple[str, ...], said: str, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(sweep), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_published_cells_have_no_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--published", "--compare", "erm", "fishr"]) == 2
    assert "--compare needs folders with runs, not --published" in capsys.readouterr().err
