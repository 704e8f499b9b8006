"""Fish against a walk through the domains with Adam written out."""

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch

from .plain import Oracle, Plain, compare, make, make_batches
from .stepping import asks_nothing, keeps_its_weights, two_biases, with_batch_norm

SIZES = [(4, 6, 5), (5, 5, 5), (3, 7), (4,), (2, 3, 4, 5, 3, 1)]


def oracle(meta_lr: float = 0.5, weight_decay: float = 0.0) -> Oracle:
    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        buffers = {name: b for name, b in plain.network.named_buffers() if b.dtype == torch.float64}
        start = {name: p.detach().clone() for name, p in (plain.weights | buffers).items()}
        risks = []
        for batch in batches:
            risk = plain.risk(batch)
            adam = plain.adam(weight_decay=weight_decay)  # one for all domains and all steps
            adam.step(plain.weights, plain.gradients(risk))
            risks.append(risk)
        with torch.no_grad():
            for name, p in (plain.weights | buffers).items():
                p.copy_(start[name] + meta_lr * (p - start[name]))
        return sum(risks) / len(risks)

    return step


@pytest.mark.parametrize("sizes", SIZES)
def test_fish(sizes: tuple[int, ...]) -> None:
    compare(make("fish", len(sizes)), oracle(), sizes=sizes)


@pytest.mark.parametrize("meta_lr", [0.05, 0.1, 1.0])
def test_hyperparameters(meta_lr: float) -> None:
    compare(make("fish", meta_lr=meta_lr, weight_decay=0.1), oracle(meta_lr, 0.1))


def test_weights_that_share_a_gradient_tensor() -> None:
    compare(make("fish", model=two_biases()), oracle())


def test_statistics_go_part_of_the_way_too() -> None:
    algorithm = make("fish", model=with_batch_norm(), meta_lr=0.1)
    plain = Plain(algorithm)
    compare(algorithm, oracle(0.1), plain=plain)
    found, expected = (dict(m.named_buffers()) for m in (algorithm.model, plain.network))
    assert len(found) == 3
    for name, buffer in found.items():
        torch.testing.assert_close(buffer, expected[name], rtol=1e-9, atol=1e-9)
    assert found["features.1.num_batches_tracked"] == 15  # a count stays one
    assert not torch.equal(found["features.1.running_mean"], torch.zeros(5, dtype=torch.float64))


def test_with_one_domain_and_all_of_the_way_it_is_erm() -> None:
    fish, erm = make("fish", 1, meta_lr=1.0), make("erm", 1)
    for step in range(4):
        batches = make_batches(step, (5,))
        assert torch.equal(fish.update(batches)["loss"], erm.update(batches)["loss"])
        for a, b in zip(fish.model.parameters(), erm.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_step_asks_nothing() -> None:
    asks_nothing(make("fish", model=with_batch_norm()))


@pytest.mark.parametrize("domain", [0, 1, 2])
def test_a_loss_that_is_not_finite_changes_no_weight(domain: int) -> None:
    """In any domain of the walk."""
    keeps_its_weights(make("fish"), domain, (4, 6, 5))
