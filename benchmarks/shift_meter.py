"""Shift meter: diversity and correlation shift of known data sets, beside the published values.

    python -m benchmarks.shift_meter pacs.safetensors office31.safetensors --table gas-drift.parquet

Feature files are those of ``shoal data features``. Colored MNIST (2 × 14 × 14 pixels, the training
domains against -90%) and a made table with a column that turns at the last site come with the
repository. Every measurement is repeated with other random numbers, and on random halves of the
same data, where both shifts should be near 0. The last part repeats it with other hidden layers.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from shoal.datasets import colored_mnist
from shoal.datasets.base import Domain, DomainDataset
from shoal.datasets.features import load_features
from shoal.datasets.tables import table_data
from shoal.fitting import shift_meter
from shoal.fitting.shift_meter import MOST, MOST_TOGETHER, Examples, measure_shift, measure_shifts
from shoal.randomness import stream

from .recording import options, write
from .tables import CLASS, SITE, spurious

Array = np.ndarray[Any, Any]
# Ye et al. (2022), with whole networks trained on the images.
PUBLISHED = {"pacs": (0.66, 0.08), "colored-mnist": (0.00, 0.43)}
LAYERS = ((), (64,), (64, 64), (64, 64, 64))
REPEATS = 3
# Examples of each side, of small random halves.
SMALL = (400, 1000)


def coloured_digits() -> DomainDataset:
    """Return Colored MNIST as vectors: each channel shrunk to 14 × 14 pixels."""
    found = colored_mnist.load(None, 0)
    return DomainDataset(
        found.name,
        found.classes,
        tuple(
            Domain(one.name, one.labels, avg_pool2d(one.tensor / 255, 2).flatten(1))
            for one in found.domains
        ),
    )


def turning_table() -> DomainDataset:
    """Return the made table whose column ``x07`` follows the class, and opposes it at site 5."""
    table = spurious()
    sites, answers = np.array(table.pop(SITE)), np.array(table.pop(CLASS))
    vectors = torch.tensor(np.stack(list(table.values()), 1), dtype=torch.float32)
    labels = torch.from_numpy(answers == "yes").long()
    domains = ((str(name), torch.from_numpy(sites == name)) for name in np.unique(sites))
    return DomainDataset(
        "spurious",
        ("no", "yes"),
        tuple(Domain(name, labels[mine], vectors[mine]) for name, mine in domains),
    )


def measure(dataset: DomainDataset, only: str | None, repeats: int) -> dict[str, Any]:
    """Return the shifts of a data set as the page of a fit has them, and their spread."""
    # Of this process: others on the machine do not count.
    begin = time.process_time()
    first = measure_shifts(dataset)
    if first is None:
        raise ValueError(f"{dataset.name} has no domain that is large enough")
    seconds = (time.process_time() - begin) / len(first.domains)
    names = [only] if only else list(first.domains)
    runs, halves = repeat(dataset, names, repeats)
    return {
        "mean": _pair(runs.mean((0, 1))),
        "deviation_of_one_domain": _pair(runs.std(0, ddof=1).mean(0)) if repeats > 1 else None,
        "domains": {name: _pair(one) for name, one in zip(names, runs.mean(0), strict=True)},
        "random_halves": {"mean": _pair(halves.mean(0)), "most": _pair(halves.max(0))},
        "small_random_halves": {str(n): small_halves(dataset, n, repeats) for n in SMALL},
        "notes": list(first.notes),
        "cpu_seconds_per_domain": round(seconds, 2),
    }


def repeat(dataset: DomainDataset, names: Sequence[str], repeats: int) -> tuple[Array, Array]:
    """Return the shifts of these domains, ``[repeats, domains, 2]``, and of random halves."""
    most = min(MOST, MOST_TOGETHER // len(dataset.domains))
    runs = [
        [measure_shift(*sides(dataset, name), f"{name} {k}", most) for name in names]
        for k in range(repeats)
    ]
    halves = [
        measure_shift(*random_halves(dataset, k), f"halves {k}", most) for k in range(repeats)
    ]
    return np.array(runs), np.array(halves)


def other_layers(
    sets: Mapping[str, tuple[DomainDataset, str | None]],
) -> dict[str, dict[str, Any]]:
    """Return the same with other hidden layers between the vectors and z, once each."""
    found: dict[str, dict[str, Any]] = {}
    for widths in LAYERS:
        mine = found[" × ".join(map(str, widths)) or "none"] = {}
        for name, (dataset, only) in sets.items():
            with patch.object(shift_meter, "HIDDEN", widths):
                runs, halves = repeat(dataset, [only] if only else dataset.names, 1)
            mine[name] = {
                "mean": _pair(runs.mean((0, 1))),
                "random_halves": _pair(halves.mean(0)),
            }
    return found


def sides(dataset: DomainDataset, name: str) -> tuple[Examples, Examples]:
    """Return the other domains together, and the domain."""
    rest = dataset.without([name]).domains
    others = Examples(
        torch.cat([one.tensor for one in rest]), torch.cat([one.labels for one in rest])
    )
    return others, Examples(dataset[name].tensor, dataset[name].labels)


def small_halves(dataset: DomainDataset, n: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the shifts between random halves with n examples each."""
    found = np.array(
        [measure_shift(*random_halves(dataset, k, n), f"small {k}") for k in range(repeats)]
    )
    return {"mean": _pair(found.mean(0)), "most": _pair(found.max(0))}


def random_halves(
    dataset: DomainDataset, repeat: int, n: int | None = None
) -> tuple[Examples, Examples]:
    """Return all examples of a data set, or 2 n of them, split at random."""
    vectors = torch.cat([one.tensor for one in dataset.domains])
    labels = torch.cat([one.labels for one in dataset.domains])
    order = torch.randperm(len(labels), generator=stream("random halves", repeat))
    first, second = (
        Examples(vectors[half], labels[half]) for half in order[: 2 * n if n else None].chunk(2)
    )
    return first, second


def _pair(pair: Sequence[float]) -> dict[str, float]:
    return dict(zip(("diversity", "correlation"), (round(float(x), 4) for x in pair), strict=True))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("features", nargs="*", type=Path, help="feature files")
    parser.add_argument("--table", type=Path, help="gas drift, as a table")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    asked = parser.parse_args()
    torch.set_num_threads(1)

    sets: dict[str, tuple[DomainDataset, str | None]] = {
        path.stem: (load_features(path), None) for path in asked.features
    }
    digits = coloured_digits()
    sets["colored-mnist"] = (digits, digits.names[-1])
    sets["spurious table"] = (turning_table(), "site 5")
    if asked.table:
        gas = table_data("gas-drift", asked.table, "gas", "batch").dataset
        sets["gas-drift"] = (gas, None)

    found: dict[str, Any] = {}
    for name, (dataset, only) in sets.items():
        published = PUBLISHED.get(name)
        found[name] = {
            "published": published and _pair(published),
            **measure(dataset, only, asked.repeats),
        }
        print(name, found[name], flush=True)
    beside = {name: sets[name] for name in PUBLISHED if name in sets}
    print(
        write(
            "shift_meter",
            asked,
            {"data_sets": found, "layers": other_layers(beside)},
        )
    )


if __name__ == "__main__":
    main()
