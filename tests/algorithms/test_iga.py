"""IGA against gradients of each domain, flattened and compared in a loop."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.forward import Batch
from shoal.networks import Network, draw_weights
from shoal.randomness import stream

from .plain import Oracle, Plain, compare, make, make_batches


def oracle(
    weight: float = 1000.0,
    parameters: str = "all",
    normalise: bool = False,
    warmup: int = 0,
    decay: float = 0.0,
) -> Oracle:
    past: list[Tensor] = []

    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        if count == warmup:
            plain.forget()
        risks = [plain.risk(batch) for batch in batches]
        rows = []
        for risk in risks:
            grads = plain.gradients(risk, create_graph=True)
            chosen = [g for name, g in grads.items() if parameters in ("all", name.split(".")[0])]
            rows.append(torch.cat([g.flatten() for g in chosen]))
        u = [row + (decay * past[e] if past else 0) for e, row in enumerate(rows)]
        past[:] = [row.detach() for row in u]
        mean = sum(u) / len(u)
        penalty = sum(((row - mean) ** 2).sum() for row in u)
        if normalise:
            penalty = penalty / len(u) / rows[0].numel()
        sizes = [len(labels) for _, labels in batches]
        pooled = sum(n * r for n, r in zip(sizes, risks, strict=True)) / sum(sizes)
        loss = pooled + (weight if count >= warmup else 0.0) * penalty
        plain.adam().step(plain.weights, plain.gradients(loss))
        return loss

    return step


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight": 3.0},
    {"weight": 3.0, "parameters": "classifier"},
    {"weight": 30.0, "parameters": "classifier", "normalise": True},
    {"weight": 30.0, "normalise": True},
    {"weight": 3.0, "warmup": 2, "decay": 0.9},
    {"weight": 30.0, "parameters": "classifier", "warmup": 2, "decay": 0.9, "normalise": True},
]
NAMES = {"weight": "penalty_weight", "warmup": "warmup_steps", "decay": "ema_decay"}


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 5), (3,), (1, 2, 3, 1, 2, 4)])
@pytest.mark.parametrize("options", OPTIONS)
def test_iga(sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    hparams = {NAMES.get(name, name): value for name, value in options.items()}
    compare(make("iga", len(sizes), **hparams), oracle(**options), sizes=sizes)


def test_head_of_several_layers() -> None:
    """With no closed form the head's gradients come from autograd."""

    def build() -> Network:
        head = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
        return Network(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), head)

    model = draw_weights(build, stream("deep head")).double()
    algorithm = make("iga", model=model, parameters="classifier", penalty_weight=3.0)
    compare(algorithm, oracle(3.0, "classifier"))


def test_unknown_part_of_the_network() -> None:
    with pytest.raises(ValueError, match="did you mean 'classifier'"):
        make("iga", parameters="clasifier")


def test_a_head_without_bias() -> None:
    def build() -> Network:
        features = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        return Network(features, nn.Linear(4, 3, bias=False))

    model = draw_weights(build, stream("no bias")).double()
    algorithm = make("iga", model=model, parameters="classifier", penalty_weight=3.0)
    compare(algorithm, oracle(3.0, "classifier"))


def test_each_domain_has_a_pass_of_its_own_on_all_weights_and_none_on_the_head() -> None:
    for parameters, sizes in (("all", [4, 6, 5]), ("classifier", [15])):
        algorithm = make("iga", parameters=parameters)
        passes: list[int] = []
        algorithm.model.features.register_forward_hook(
            lambda module, args, out, passes=passes: passes.append(len(out))
        )
        algorithm.update(make_batches(0))
        assert passes == sizes
