"""Unstable columns: how often stable ones are flagged, and unstable ones are not, in simulations.

Every table is drawn anew. In the first part all effects are equal in all domains, and a table counts
if any of its columns is flagged; the test aims at 5 %. In the second part the column ``x0`` is
unstable, and a table counts if that column is flagged; others that are flagged too are counted
apart.
"""

import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.fitting.stability import column_stability

from .recording import options, write


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
    torch.set_num_threads(1)
    found = column_stability(*draw(one, seed))
    return [column.name for column in found.columns if column.why], list(found.flagged)


def simulate(one: Simulation, repeats: int, pool: ProcessPoolExecutor) -> dict[str, Any]:
    begin = time.perf_counter()
    tables = list(pool.map(partial(look, one), range(repeats), chunksize=10))
    found: dict[str, Any] = {"tables": repeats}
    if one.effects:
        found["significant"] = sum("x0" in names for names, _ in tables) / repeats
        found["flagged"] = sum("x0" in names for _, names in tables) / repeats
        found["others_flagged"] = sum(bool(set(names) - {"x0"}) for _, names in tables) / repeats
    else:
        found["significant"] = sum(bool(names) for names, _ in tables) / repeats
        found["flagged"] = sum(bool(names) for _, names in tables) / repeats
    print(f"{found} {time.perf_counter() - begin:.0f} s", flush=True)
    return found


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=400, help="tables of each kind")
    asked = parser.parse_args()
    found = dict[str, dict[str, Any]]()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for part, kinds in (("stable", STABLE), ("unstable", UNSTABLE)):
            found[part] = {}
            for name, one in kinds.items():
                print(f"{name}: ", end="", flush=True)
                found[part][name] = simulate(one, asked.repeats, pool)
    errors = [one["flagged"] for one in found["stable"].values()]
    found["summary"] = {"largest": max(errors), "mean": sum(errors) / len(errors)}
    print(write("unstable_columns", asked, found))


if __name__ == "__main__":
    main()
