"""IRM against a scale of the logits that autograd differentiates in, half by half."""

from collections.abc import Callable, Sequence
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import Hparams

from .plain import Plain, compare, make, make_batches, tiny
from .stepping import asks_nothing


def pooled_risk(plain: Plain, batches: list[Batch]) -> Tensor:
    losses = []
    for inputs, labels in batches:
        for x, y in zip(inputs, labels, strict=True):
            losses.append(F.cross_entropy(plain.logits(x[None]), y[None]))
    return sum(losses) / len(losses)


def slope(logits: list[Tensor], labels: list[Tensor]) -> Tensor:
    """The derivative of the mean loss in a factor of the logits, at 1."""
    if not logits:
        return torch.zeros((), dtype=torch.float64)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    total = sum(F.cross_entropy(scale * x, y) for x, y in zip(logits, labels, strict=True))
    (found,) = torch.autograd.grad(total / len(logits), scale, create_graph=True)
    return found


def irm_penalty(plain: Plain, batches: list[Batch]) -> Tensor:
    products = []
    for inputs, labels in batches:
        logits = list(plain.logits(inputs))
        even = slope(logits[0::2], list(labels[0::2]))
        odd = slope(logits[1::2], list(labels[1::2]))
        products.append(even * odd)
    return sum(products) / len(products)


def oracle(
    penalty_weight: float, warmup_steps: int, weight_decay: float = 0.0
) -> Callable[[Plain, list[Batch], int], Tensor]:
    def update(plain: Plain, batches: list[Batch], step: int) -> Tensor:
        weight = penalty_weight if step >= warmup_steps else 1.0
        if step == warmup_steps:
            plain.forget()
        loss = pooled_risk(plain, batches) + weight * irm_penalty(plain, batches)
        adam = plain.adam(weight_decay=weight_decay)
        adam.step(plain.weights, plain.gradients(loss))
        return loss

    return update


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 100])
def test_irm(warmup_steps: int) -> None:
    settings = {"penalty_weight": 20.0, "warmup_steps": warmup_steps, "weight_decay": 0.1}
    compare(make("irm", **settings), oracle(**settings))


@pytest.mark.parametrize("sizes", [(5,), (6, 3), (4, 4, 4), (7, 5, 3), (2, 1, 1)])
def test_irm_for_any_number_of_domains_and_sizes(sizes: Sequence[int]) -> None:
    settings = {"penalty_weight": 50.0, "warmup_steps": 2}
    compare(make("irm", len(sizes), **settings), oracle(**settings), sizes=sizes)


def test_the_penalty_may_be_negative_and_is_in_the_loss() -> None:
    algorithm = make("irm", penalty_weight=20.0, warmup_steps=0)
    plain, signs = Plain(algorithm), set()
    for step in range(8):
        batches = make_batches(step)
        terms = algorithm(batches)
        torch.testing.assert_close(terms["penalty"], 20 * irm_penalty(plain, batches))
        torch.testing.assert_close(terms["loss"], terms["risk"] + terms["penalty"])
        signs.add(bool(terms["penalty"] < 0))
    assert signs == {True, False}


def test_a_domain_of_one_example_has_no_penalty() -> None:
    """Nor has it by autograd, whose risk of the empty half is NaN but has no slope."""
    algorithm = make("irm", 1, warmup_steps=0)
    (batch,) = make_batches(0, (1,))
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    logits = algorithm.model(batch[0]).detach()
    empty = torch.nn.functional.cross_entropy(scale * logits[1::2], batch[1][1::2])
    assert empty.isnan() and torch.autograd.grad(empty, scale)[0] == 0
    terms = make("irm", 1, warmup_steps=0).update(make_batches(0, (1,)))
    assert terms["penalty"] == 0
    assert terms["loss"] == terms["risk"]


def test_binary_labels_on_one_logit() -> None:
    model = tiny()
    model.classifier = torch.nn.Linear(model.classifier.in_features, 1).double()
    algorithm = make("irm", 2, model, penalty_weight=20.0, warmup_steps=0)
    batches = [(inputs, labels % 2) for inputs, labels in make_batches(0, (4, 5))]
    products = []
    for inputs, labels in batches:
        halves = []
        for start in (0, 1):
            scale = torch.ones((), dtype=torch.float64, requires_grad=True)
            logits = scale * model(inputs[start::2])[:, 0]
            risk = F.binary_cross_entropy_with_logits(logits, labels[start::2].double())
            halves.append(torch.autograd.grad(risk, scale)[0])
        products.append(halves[0] * halves[1])
    expected = 20 * (products[0] + products[1]) / 2
    torch.testing.assert_close(algorithm(batches)["penalty"], expected)


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    algorithm = make("irm", warmup_steps=2)
    assert "warmup.steps" in algorithm.state_dict()
    asks_nothing(algorithm)


def test_all_state_is_on_the_device_of_the_network() -> None:
    model = tiny().to("meta")
    state = make("irm", model=model).state_dict()
    assert {name for name, tensor in state.items() if not tensor.is_meta} == set()


def searches(name: str) -> dict[str, tuple[float, str]]:
    """Default and search of the method's own hyperparameters; the same at every scale."""
    found = {}
    for f in fields(ALGORITHMS[name].Hparams)[len(fields(Hparams)) :]:
        ((default, text),) = {
            (s.default, s.distribution.text) for s in f.metadata["searches"].values()
        }
        found[f.metadata["key"]] = (default, text)
    return found


def test_hyperparameters_are_those_of_domainbed() -> None:
    assert searches("irm") == {
        "irm_lambda": (100.0, "10^U(-1, 5)"),
        "irm_penalty_anneal_iters": (500, "int(10^U(0, 4))"),
    }
