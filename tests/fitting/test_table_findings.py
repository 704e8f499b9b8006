"""Disasters in tables: each is told, and what only looks like one is not."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.fitting import domain_shift
from shoal.fitting.inspection import inspect_data
from shoal.fitting.rules import RuleScore
from shoal.fitting.table_findings import gives_away

SITES = ("a", "b", "c")
ROWS = 80


def table(path: Path, **columns: Callable[[np.random.RandomState, int, np.ndarray], Any]) -> Path:
    """Write a table of three sites with a noisy class; columns are made from (random, site, y)."""
    random = np.random.RandomState(0)
    lines = [",".join(["domain", "class", "x", *columns])]
    for number, site in enumerate(SITES):
        y = random.rand(ROWS) < 0.4
        x = y + random.randn(ROWS)
        made = [np.broadcast_to(make(random, number, y), ROWS) for make in columns.values()]
        lines += [
            ",".join([site, "sick" if y[k] else "well", f"{x[k]:.4f}", *(str(c[k]) for c in made)])
            for k in range(ROWS)
        ]
    path.write_text("\n".join(lines))
    return path


def notes(path: Path) -> list[str]:
    return inspect_data(path).notes


def test_an_ordinary_table_has_no_notes(tmp_path: Path) -> None:
    ordinary = table(
        tmp_path / "t.csv",
        age=lambda random, site, y: random.randint(20, 90, ROWS),
        colour=lambda random, site, y: random.choice(["red", "green"], ROWS),
        shade=lambda random, site, y: np.where(random.rand(ROWS) < 0.3, "", random.randn(ROWS)),
    )
    assert notes(ordinary) == []


# Columns that give the class away


LEAKS = {
    "code": lambda random, site, y: np.where(
        y, random.choice(["c1", "c2", "c3"], ROWS), random.choice(["d1", "d2"], ROWS)
    ),
    "days": lambda random, site, y: np.where(y, 3 + random.rand(ROWS), random.rand(ROWS)),
    "band": lambda random, site, y: (
        np.where(y, 0, random.choice([-1, 1], ROWS) * 5) + random.rand(ROWS)
    ),
    "dose": lambda random, site, y: np.where(y, random.rand(ROWS).astype(str), ""),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_column_that_gives_the_class_is_named(tmp_path: Path, name: str) -> None:
    (note,) = (
        one for one in notes(table(tmp_path / "t.csv", **{name: LEAKS[name]})) if "alone" in one
    )
    what = f"whether the column '{name}' is missing" if name == "dose" else f"the column '{name}'"
    assert note.startswith(
        f"{what} alone gives the class in 100.0 % of the rows (the most frequent"
    )
    assert note.endswith(f"--leave-out {name}")


def test_a_good_column_is_not_a_leak(tmp_path: Path) -> None:
    """One that is right in 95 % of the rows is what everybody hopes for."""
    path = table(tmp_path / "t.csv", good=lambda random, site, y: y ^ (random.rand(ROWS) < 0.05))
    assert notes(path) == []


def test_a_rare_class_is_not_given_away_by_anything() -> None:
    assert not gives_away(RuleScore(0.992, 0.99, 10_000))
    assert gives_away(RuleScore(0.9995, 0.99, 10_000))
    assert gives_away(RuleScore(0.99, 0.6, 100))
    assert not gives_away(RuleScore(0.985, 0.6, 100))


# Missing values


def test_a_column_that_is_missing_in_one_domain_is_named(tmp_path: Path) -> None:
    def gone(random: np.random.RandomState, site: int, y: np.ndarray) -> np.ndarray:
        return np.where((site == 1) | (random.rand(ROWS) < 0.02), "", random.randn(ROWS).round(3))

    def gone_text(random: np.random.RandomState, site: int, y: np.ndarray) -> np.ndarray:
        return np.where(site == 1, "?", random.choice(["red", "green"], ROWS))

    (note,) = (one for one in notes(table(tmp_path / "t.csv", chol=gone)) if "missing" in one)
    assert note.startswith("the column 'chol' is missing in 100 % of the rows of 'b', and in at mo")
    assert note.endswith("so fill it in or use --leave-out chol")
    both = table(tmp_path / "u.csv", chol=gone, hue=gone_text)
    (note,) = (one for one in notes(both) if "missing" in one)
    assert note.startswith("the columns 'chol', 'hue' are missing in at least 100 % of the rows of")
    assert note.endswith("--leave-out chol hue")


def test_a_column_with_gaps_everywhere_is_not_named(tmp_path: Path) -> None:
    def half(random: np.random.RandomState, site: int, y: np.ndarray) -> np.ndarray:
        return np.where(random.rand(ROWS) < (0.3, 0.5, 0.7)[site], "", random.randn(ROWS))

    assert not any("missing" in one for one in notes(table(tmp_path / "t.csv", chol=half)))


# Equal rows


def copied(path: Path, *lines: str) -> list[str]:
    path.write_text(path.read_text() + "\n" + "\n".join(lines))
    return [note for note in notes(path) if "rows are equal" in note]


def test_equal_rows_are_told_by_domain_and_class(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", z=lambda random, site, y: random.randn(ROWS).round(2))
    lines = path.read_text().splitlines()
    assert copied(path) == []
    _, kind, x = lines[5].split(",", 2)
    within = copied(path, lines[5])
    assert len(within) == 1
    assert within[0].startswith(
        "2 rows are equal to another row of the same domain in every column"
    )
    assert within[0].endswith("with --group-column: row 5 (a) = row 241 (a)")
    across = copied(path, f"c,{kind},{x}")
    assert len(across) == 1
    assert across[0].startswith("3 rows are equal to a row of another domain")
    assert "scores on a held-out domain may be too high" in across[0]
    other = "well" if kind == "sick" else "sick"
    wrong = copied(path, f"a,{other},{x}")
    assert wrong[-1].startswith("4 rows are equal to a row of another class")
    assert "no model can tell them apart" in wrong[-1]


def test_rows_of_few_categories_are_equal_by_chance(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    rows = [
        f"{site},{random.choice(['sick', 'well'])},{random.randint(4)},{random.choice(['r', 'g'])}"
        for site in SITES
        for _ in range(60)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["domain,class,x,hue", *rows]))
    assert notes(tmp_path / "t.csv") == []


# The domain


def test_a_shifted_column_tells_the_domain(tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.csv",
        noise=lambda random, site, y: random.randn(ROWS),
        device=lambda random, site, y: 3 * site + random.randn(ROWS),
    )
    (note,) = notes(path)
    assert note.startswith("the domain can be told from the columns with 8")
    assert "% accuracy (chance 33 %), most of all from device, " in note


def test_domains_too_small_to_judge_and_no_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.repeat([[0.0], [5.0]], 19, 0)
    domains = np.repeat([0, 1], 19)
    assert domain_shift.domain_accuracy(features, ["x"], domains) is None
    features, domains = np.repeat([[0.0], [5.0]], 30, 0), np.repeat([0, 1], 30)
    found = domain_shift.domain_accuracy(features, ["x"], domains)
    assert found == (1, 0.5, ("x",))
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert domain_shift.domain_accuracy(features, ["x"], domains) is None


def test_many_and_uneven_domains_are_sampled_evenly() -> None:
    domains = np.repeat(np.arange(80), [1000, *range(20, 99)])
    chosen = domain_shift._sample(domains)
    counts = np.bincount(domains[chosen])
    assert (counts > 0).sum() == domain_shift.DOMAINS
    assert counts.max() == domain_shift.ROWS // domain_shift.DOMAINS
    assert counts[0] == counts.max()
    assert len(set(chosen.tolist())) == len(chosen)
