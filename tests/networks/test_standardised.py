"""Standardised columns: means and deviations of known values, and a head without them."""

import numpy as np
import pytest
import torch

from shoal.networks import (
    Standardise,
    WithRanks,
    fold_standardisation,
    for_data,
    measure_inputs,
)
from shoal.randomness import stream


def columns() -> torch.Tensor:
    found = torch.randn(50, 4, generator=stream("columns")) * torch.tensor([1.0, 30, 0.01, 1])
    found = found + torch.tensor([0.0, 1000, 5, 0])
    found[::3, 1] = float("nan")
    found[:, 3] = 7.0
    return found


def test_columns_have_mean_0_and_deviation_1_where_they_are_known() -> None:
    inputs = columns()
    layer = Standardise(4)
    layer.measure(inputs)
    plain = inputs.double().numpy()
    mean, std = np.nanmean(plain, 0), np.nanstd(plain, 0)
    std[3] = np.finfo(np.float32).max  # the same everywhere; finite, for Fish
    expected = np.nan_to_num((plain - mean) / std, nan=0.0)
    np.testing.assert_allclose(layer(inputs).numpy(), expected, atol=1e-3)
    np.testing.assert_allclose(layer.mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(layer.std.numpy(), std, rtol=1e-5)


@pytest.mark.parametrize("layer", [Standardise, WithRanks])
def test_an_input_of_weight_k_counts_as_k(layer: type[Standardise | WithRanks]) -> None:
    inputs, times = columns(), torch.arange(50) % 4
    repeated, weighted, scaled, plain = (layer(4) for _ in range(4))
    repeated.measure(inputs.repeat_interleave(times, 0))
    weighted.measure(inputs, times)
    scaled.measure(inputs, times * 1e-3)
    plain.measure(inputs)
    for name, expected in repeated.state_dict().items():
        for found in (weighted, scaled):
            torch.testing.assert_close(found.state_dict()[name], expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(weighted(inputs), plain(inputs), equal_nan=True)


def test_a_column_that_is_never_known_is_zero() -> None:
    inputs = torch.full((5, 1), float("nan"))
    layer = Standardise(1)
    layer.measure(inputs)
    assert layer(inputs).tolist() == [[0.0]] * 5
    assert layer(torch.ones(1, 1)).isfinite().all()


@pytest.mark.parametrize("name", ["linear", "standardised-mlp"])
def test_a_column_that_was_the_same_everywhere_has_no_influence(name: str) -> None:
    network = for_data((4,), 3, name=name, generator=stream("net"))
    measure_inputs(network, columns())
    other = columns()
    other[:, 3] = 2024.0
    assert torch.equal(network(other), network(columns()))


@pytest.mark.parametrize("name", ["linear", "standardised-mlp"])
def test_networks_measure_their_inputs(name: str) -> None:
    network = for_data((4,), 3, name=name, generator=stream("net"))
    before = network(columns())
    measure_inputs(network, columns())
    after = network(columns())
    assert after.shape == (50, 3)
    assert after.isfinite().all()
    assert not torch.equal(before, after)
    # A column far from zero would drown the rest; standardised, all count the same.
    assert after.abs().max() < 20


def test_a_folded_head_needs_no_standardised_features() -> None:
    inputs = columns().nan_to_num(nan=1000.0)
    network = for_data((4,), 3, name="linear", generator=stream("net"))
    measure_inputs(network, inputs)
    weight, bias = fold_standardisation(network)
    torch.testing.assert_close(inputs @ weight.T + bias, network(inputs), atol=1e-3, rtol=1e-4)


def test_only_a_linear_network_can_be_folded() -> None:
    with pytest.raises(TypeError, match="only the network 'linear'"):
        fold_standardisation(for_data((4,), 3, name="standardised-mlp", generator=stream("net")))
