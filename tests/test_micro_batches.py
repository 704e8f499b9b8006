"""Micro-batches give the value, gradient and state of one large batch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from shoal.internals import trace_memory
from shoal.networks.base import Dropout
from shoal.randomness import stream

E, N, INPUTS, FEATURES, CLASSES = 3, 23, 5, 7, 4
CLOSE = {"rtol": 1e-12, "atol": 1e-14}


class Network(nn.Module):
    """A network that returns features and logits, with dropout by its own draws or by torch's."""

    def __init__(self, dropout: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh())
        self.dropout = dropout or nn.Identity()
        self.classifier = nn.Linear(FEATURES, CLASSES)
        self.double()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        z = self.dropout(self.features(inputs))
        return z, self.classifier(z)


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(N, INPUTS, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (N,), generator=generator), torch.arange(N) % E


def step(network: nn.Module, fishr: shoal.Fishr, outputs: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return loss and gradients of the batch with these features and logits."""
    _, labels, domains = make_batch()
    loss = F.cross_entropy(outputs[1], labels) + fishr(*outputs, labels, domains)
    return [loss, *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("size", [1, 5, 22, 23, 100])
def test_a_step_equals_that_of_the_whole_batch(size: int) -> None:
    network, inputs = Network(), make_batch()[0]
    whole, parts = (shoal.Fishr(E, 5.0, 0.9, warmup_steps=1) for _ in range(2))
    for _ in range(3):
        expected = step(network, whole, network(inputs))
        found = step(network, parts, shoal.in_micro_batches(network, inputs, size))
        torch.testing.assert_close(found, expected, **CLOSE)
    assert expected[0] > 0
    for ours, theirs in zip(parts.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_a_sum_of_penalties_is_another_penalty() -> None:
    """One penalty per micro-batch differs, so the test above is not trivial."""
    network, (inputs, labels, domains) = Network(), make_batch()
    fishr = shoal.Fishr(E, 5.0, 0.0, 0)
    whole = fishr(*network(inputs), labels, domains)
    parts = [
        fishr(*network(x), y, d)
        for x, y, d in zip(inputs.split(8), labels.split(8), domains.split(8), strict=True)
    ]
    assert torch.stack(parts).mean() > 1.1 * whole


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", ["torch's", "its own", "in place"])
def test_masks_equal_those_of_the_whole_batch(kind: str, grad: bool) -> None:
    dropouts = {
        "torch's": nn.Dropout(0.5),
        "its own": Dropout(0.5, stream("masks")),
        "in place": nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Dropout(0.3, inplace=True)),
    }
    network, inputs = Network(dropouts[kind]), make_batch()[0]
    found = []
    with torch.set_grad_enabled(grad):
        for size in (N, 5):
            torch.manual_seed(3)
            if kind == "its own":
                network.dropout.draws.count.fill_(4)
            outputs = shoal.in_micro_batches(network, inputs, size)
            row = [*outputs, torch.get_rng_state(), *network.buffers()]
            if grad:
                loss = outputs[1].square().sum()
                row += torch.autograd.grad(loss, list(network.parameters()))
            found.append([tensor.clone() for tensor in row])
    torch.testing.assert_close(found[1], found[0], **CLOSE)
    assert (found[0][0] == 0).float().mean() > 0.2


@pytest.mark.parametrize("kind", ["torch's", "its own"])
def test_masks_are_the_same_in_the_backward(kind: str) -> None:
    """Finite differences: the gradient uses the masks of the value."""
    dropout = nn.Dropout(0.5) if kind == "torch's" else Dropout(0.5, stream("masks"))
    network, inputs = Network(dropout), make_batch()[0]

    def loss() -> Tensor:
        torch.manual_seed(3)
        if kind == "its own":
            network.dropout.draws.count.fill_(0)
        return shoal.in_micro_batches(network, inputs, 6)[1].square().sum()

    weight = network.classifier.weight
    torch.manual_seed(9)
    (gradient,) = torch.autograd.grad(loss(), weight)
    with torch.no_grad():
        weight[0, 0] += 1e-6
        above = loss()
        weight[0, 0] -= 2e-6
        below = loss()
    assert gradient[0, 0].item() == pytest.approx(float(above - below) / 2e-6, rel=1e-6)


def test_random_draws_continue_after_the_backward() -> None:
    network, inputs = Network(nn.Dropout(0.5)), make_batch()[0]
    torch.manual_seed(0)
    out = shoal.in_micro_batches(network, inputs, 6)[1]
    expected = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), expected)


def test_weights_that_are_replaced_before_the_backward_do_not_matter() -> None:
    """The second forward uses the weights of the first, which a method that swaps them needs."""
    network, inputs = Network(), make_batch()[0]
    others = {name: (p + 0.3).detach().requires_grad_() for name, p in network.named_parameters()}

    def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(
            Cut(network), {f"network.{k}": v for k, v in others.items()}, (inputs,)
        )

    leaves = list(others.values())
    found = torch.autograd.grad(run(inputs)[1].square().sum(), leaves)
    whole = torch.func.functional_call(network, others, (inputs,))
    expected = torch.autograd.grad(whole[1].square().sum(), leaves)
    torch.testing.assert_close(found, expected, **CLOSE)


class Cut(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Any:
        return shoal.in_micro_batches(self.network, inputs, 4)


def test_inputs_and_outputs_can_be_dicts() -> None:
    inputs = make_batch()[0]

    def both(a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"sum": a + b, "product": a * b}

    found = shoal.in_micro_batches(both, {"a": inputs, "b": 2 * inputs}, 4)
    torch.testing.assert_close(found, {"sum": 3 * inputs, "product": 2 * inputs**2})
    found = shoal.in_micro_batches(lambda a, b: [a - b], (inputs, inputs), 4)
    assert isinstance(found, list)
    assert not found[0].any()


def test_memory_is_that_of_one_micro_batch() -> None:
    deep = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)])
    inputs, peaks = torch.randn(2048, 64), []
    for size in (2048, 64):
        with trace_memory() as living:
            shoal.in_micro_batches(deep, inputs, size).square().sum().backward()
        peaks.append(living.peak)
        deep.zero_grad()
    assert peaks[1] < 0.5 * peaks[0]


def test_without_gradients_nothing_is_kept() -> None:
    network, inputs = Network(), make_batch()[0]
    with torch.no_grad():
        z, logits = shoal.in_micro_batches(network, inputs, 6)
    assert not logits.requires_grad
    torch.testing.assert_close((z, logits), network(inputs), **CLOSE)


def test_training_batch_norm_is_refused() -> None:
    network = nn.Sequential(nn.Linear(INPUTS, 3), nn.BatchNorm1d(3)).double()
    inputs = make_batch()[0]
    with pytest.raises(ValueError, match=r"1 normalises with the statistics .* eval mode"):
        shoal.in_micro_batches(network, inputs, 6)
    network.eval()
    torch.testing.assert_close(shoal.in_micro_batches(network, inputs, 6), network(inputs), **CLOSE)


def test_a_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="size must be 1 or more, got 0"):
        shoal.in_micro_batches(Network(), make_batch()[0], 0)


def test_inputs_that_do_not_fit_each_other_are_refused() -> None:
    inputs = torch.zeros(6, 3)
    with pytest.raises(ValueError, match="inputs is empty"):
        shoal.in_micro_batches(nn.Identity(), (), 2)
    with pytest.raises(ValueError, match=r"inputs\[1\] must have one entry per example \(6"):
        shoal.in_micro_batches(lambda one, other: one, (inputs, inputs[:4]), 2)
