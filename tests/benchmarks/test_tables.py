"""Tables to try ``shoal fit`` on: what is known of the made ones, and a file that it reads."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tables
from benchmarks.tables import AGREEMENT, CLASS, SITE, SIZES, interactions, spurious, varying_size


def parts(table: tables.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.array([values for name, values in table.items() if name not in (SITE, CLASS)]).T
    return x, np.array(table[CLASS]) == "yes", np.unique(table[SITE], return_inverse=True)[1]


def test_the_spurious_column_agrees_as_often_as_stated() -> None:
    x, classes, sites = parts(spurious())
    assert x.shape == (20_000, 30)
    assert np.isin(x[:, 7], (-1, 1)).all()
    agrees = (x[:, 7] > 0) == classes
    found = [agrees[sites == site].mean() for site in range(5)]
    assert found == pytest.approx(AGREEMENT, abs=0.03)  # four standard errors of 4,000 rows


def test_the_effect_varies_in_size_by_site() -> None:
    """With normal columns, E[x y] is proportional to the effect of x at its site."""
    x, classes, sites = parts(varying_size(200_000))
    found = np.array([np.mean(x[sites == site, 7] * classes[sites == site]) for site in range(5)])
    assert (np.diff(found) > 0).all() and len(SIZES) == 5
    assert 1.1 < found[-1] / found[0] < 1.5


def test_interactions_have_no_strong_linear_effect() -> None:
    x, classes, _ = parts(interactions(50_000))
    direction = np.linalg.lstsq(x, classes - 0.5, rcond=None)[0]
    assert 0.55 < ((x @ direction > 0) == classes).mean() < 0.65


def test_a_table_is_written_as_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tables", "interactions", str(tmp_path / "t.csv")])
    tables.main()
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10_000
    assert list(rows[0])[:3] == [SITE, CLASS, "x00"]
    assert {row[SITE] for row in rows} == {f"site {k}" for k in range(1, 6)}


def test_missing_values_and_rows_without_a_class() -> None:
    text = (
        '"","who","shop","size","what"\n"1","a","N",3,"x"\n"2","b","S",NA,"y"\n"3","b","S",1,NA\n'
    )
    found = tables._read(text, domain="shop", label="what", without=("who",))
    assert found == {SITE: ["N", "S"], CLASS: ["x", "y"], "size": ["3", ""]}


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps no_such_package"):
        tables._package("no_such_package")
