"""Runs on vectors: columns are standardised with the training examples."""

import pytest
import torch

from shoal.algorithms import find
from shoal.datasets import Domain, DomainDataset, splits
from shoal.networks import Standardise
from shoal.runs.machine import Machine
from shoal.runs.prepare import prepare
from tests.fitting.made import table_setup


def dataset() -> DomainDataset:
    draws = torch.Generator().manual_seed(0)
    domains = (
        Domain(
            name,
            torch.arange(20) % 2,
            100.0 * number + torch.randn(20, 70, generator=draws),
        )
        for number, name in enumerate("abc")
    )
    return DomainDataset("vectors", ("no", "yes"), tuple(domains))


@pytest.mark.parametrize("algorithm", ["erm", "fishr", "coral", "dann"])
def test_columns_are_standardised_by_what_is_trained_on(algorithm: str) -> None:
    data = dataset()
    setup = table_setup(steps=5)
    run = setup.run(data, algorithm, (find(algorithm), {}), ("c",), 0)
    _, update = prepare(
        run, find(algorithm), data, None, Machine(device=torch.device("cpu"), step="eager")
    )
    parts = splits(data, 0)
    kept = torch.cat([data[name].images[parts[name].kept] for name in "ab"])  # type: ignore[index]
    (layer,) = [part for part in update.modules() if isinstance(part, Standardise)]
    torch.testing.assert_close(layer.mean.double(), kept.double().mean(0), rtol=1e-6, atol=1e-5)
    for _ in range(3):
        update()
    assert update.means(3)["loss"] < 100
    torch.testing.assert_close(layer.mean.double(), kept.double().mean(0), rtol=1e-6, atol=1e-5)
