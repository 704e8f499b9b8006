"""SAM and SAGM against two gradients of plain functions of the weights."""

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import defaults, draw
from shoal.algorithms.optimiser import joint_norm, scale_gradients
from shoal.catalogue import DATASETS
from shoal.networks import Dropout, Network, draw_weights
from shoal.randomness import stream

from .plain import (
    CLASSES,
    FEATURES,
    INPUTS,
    Oracle,
    Plain,
    compare,
    domainbed_stream,
    make,
    make_batches,
)
from .stepping import asks_nothing, two_biases, with_batch_norm


def oracle(rho: float, alpha: float | None, weight_decay: float = 0.0) -> Oracle:
    """SAM's step if ``alpha`` is None, else SAGM's."""

    def step(plain: Plain, batches: list[Batch], _: int) -> Tensor:
        pooled = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        risk = plain.risk(pooled)
        first = plain.gradients(risk)
        length = sum((g**2).sum() for g in first.values()) ** 0.5
        reach = rho / (length + 1e-12) - (0.0 if alpha is None else alpha)
        there = {
            name: (w.detach() + reach * first[name]).requires_grad_()
            for name, w in plain.weights.items()
        }
        uphill = plain.risk(pooled, there)
        found = torch.autograd.grad(uphill, list(there.values()))
        second = dict(zip(there, found, strict=True))
        if alpha is not None:
            second = {name: (first[name] + g) / 2 for name, g in second.items()}
        plain.adam(weight_decay=weight_decay).step(plain.weights, second)
        return uphill if alpha is None else (risk + uphill) / 2

    return step


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 3), (1,), (1, 2, 3, 1, 2, 4)])
@pytest.mark.parametrize("rho", [0.05, 2.0])
def test_sam(sizes: tuple[int, ...], rho: float) -> None:
    algorithm = make("sam", len(sizes), rho=rho, weight_decay=0.1)
    compare(algorithm, oracle(rho, None, 0.1), sizes=sizes)


@pytest.mark.parametrize("sizes", [(4, 6, 5), (1, 2, 3, 1, 2, 4)])
@pytest.mark.parametrize(("rho", "alpha"), [(0.05, 1e-3), (1.0, 0.5), (0.0, 2.0)])
def test_sagm(sizes: tuple[int, ...], rho: float, alpha: float) -> None:
    algorithm = make("sagm", len(sizes), rho=rho, alpha=alpha, weight_decay=0.1)
    compare(algorithm, oracle(rho, alpha, 0.1), sizes=sizes)


def test_two_weights_that_share_a_gradient() -> None:
    compare(make("sam", model=two_biases(), rho=1.0), oracle(1.0, None))
    compare(make("sagm", model=two_biases(), rho=1.0, alpha=0.1), oracle(1.0, 0.1))


def test_without_a_distance_it_is_erm() -> None:
    one, erm = make("sam", rho=0.0), make("erm")
    for step in range(3):
        batches = make_batches(step)
        torch.testing.assert_close(one.update(batches)["loss"], erm.update(batches)["loss"])
    for p, q in zip(one.model.parameters(), erm.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_gradient_of_zero_moves_nothing(dtype: torch.dtype) -> None:
    grads = [torch.zeros(3, dtype=dtype), torch.zeros(2, dtype=dtype)]
    norm = joint_norm(grads)
    assert norm == 0 and norm.dtype == torch.float64
    for name in ("sam", "sagm"):
        shift = scale_gradients(grads, make(name).reach(norm))
        assert all(torch.equal(one, torch.zeros_like(one)) for one in shift)


@pytest.mark.parametrize("name", ["sam", "sagm"])
def test_examples_that_teach_nothing(name: str) -> None:
    """So sure of their class that the risk and all gradients are zero."""
    algorithm = make(name)
    with torch.no_grad():
        algorithm.model.classifier.weight.zero_()
        algorithm.model.classifier.bias.copy_(torch.tensor([1e3, 0.0, 0.0]))
    before = [p.detach().clone() for p in algorithm.parameters()]
    batches = [(x, torch.zeros_like(y)) for x, y in make_batches(0)]
    assert algorithm.check(algorithm.update(batches)) == {"loss": 0.0, "risk": 0.0}
    assert all(torch.equal(p, q) for p, q in zip(algorithm.parameters(), before, strict=True))


def test_the_norm_is_that_of_all_weights_together() -> None:
    grads = [torch.tensor([3.0]), torch.tensor([[0.0, 4.0]], dtype=torch.float64)]
    assert joint_norm(grads) == 5
    shift = scale_gradients(grads, make("sam", rho=1.0).reach(joint_norm(grads)))
    assert [one.dtype for one in shift] == [torch.float32, torch.float64]
    assert [one.tolist() for one in shift] == [[pytest.approx(0.6)], [[0.0, pytest.approx(0.8)]]]


@pytest.mark.parametrize("name", ["sam", "sagm"])
def test_running_statistics_move_in_the_first_pass_alone(name: str) -> None:
    one, erm = make(name, model=with_batch_norm(), rho=0.5), make("erm", model=with_batch_norm())
    batches = make_batches(0)
    one.update(batches)
    erm.update(batches)
    for (key, found), expected in zip(one.model.named_buffers(), erm.model.buffers(), strict=True):
        assert torch.equal(found, expected), key
    assert int(one.model.features[1].num_batches_tracked) == 1


@pytest.mark.parametrize("name", ["sam", "sagm"])
def test_both_passes_have_the_same_dropout(name: str) -> None:
    def build() -> nn.Linear:
        return nn.Linear(INPUTS, FEATURES)

    head = draw_weights(lambda: nn.Linear(FEATURES, CLASSES), stream("head"))
    dropout = Dropout(0.5, stream("dropout"))
    features = nn.Sequential(draw_weights(build, stream("features")), nn.Tanh(), dropout)
    algorithm = make(name, model=Network(features, head).double(), rho=0.5)
    masks: list[Tensor] = []
    dropout.register_forward_hook(lambda _, __, found: masks.append(found.detach() == 0))
    for step in range(2):
        algorithm.update(make_batches(step))
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[2], masks[3])
    assert not torch.equal(masks[0], masks[2])
    assert int(dropout.draws.count) == 2


@pytest.mark.parametrize("name", ["sam", "sagm"])
def test_the_weights_are_back_if_the_second_pass_fails(name: str) -> None:
    algorithm = make(name)
    algorithm.reach = lambda norm: norm * float("nan")  # type: ignore[method-assign]
    before = {key: p.detach().clone() for key, p in algorithm.named_parameters()}
    terms = algorithm.update(make_batches(0))
    assert terms["risk"].isfinite()
    with pytest.raises(FloatingPointError, match="loss was not finite at step 0"):
        algorithm.check(terms)
    assert all(torch.equal(p, before[key]) for key, p in algorithm.named_parameters())


def test_searches() -> None:
    assert defaults(ALGORITHMS["sam"].Hparams, "large").rho == 0.05
    for name in ("sam", "sagm"):
        for number in range(1, 6):
            found = draw(ALGORITHMS[name].Hparams, "large", 0, number)
            assert found.rho == domainbed_stream("rho", number).choice([0.01, 0.02, 0.05, 0.1])
    by_data = {
        name: defaults(ALGORITHMS["sagm"].Hparams, name).alpha for name in ("large", *DATASETS)
    }
    halved = [name for name, alpha in by_data.items() if alpha == 5e-4]
    assert halved == ["office-home", "domainnet"]
    assert set(by_data.values()) == {5e-4, 1e-3}
    drawn = {draw(ALGORITHMS["sagm"].Hparams, "large", 0, number).alpha for number in range(1, 20)}
    assert drawn == {5e-4, 1e-3}


@pytest.mark.parametrize("name", ["sam", "sagm"])
def test_a_step_asks_nothing_and_keeps_its_addresses(name: str) -> None:
    asks_nothing(make(name))
