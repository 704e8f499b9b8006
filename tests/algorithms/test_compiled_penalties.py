"""Compiled losses: one graph, with the terms and gradients of the eager loss."""

from collections.abc import Iterator

import pytest
import torch

from shoal.penalties import mmd

from .plain import make, make_batches

SETTINGS = {
    "irm": {"penalty_weight": 20.0, "warmup_steps": 2},
    "coral": {"penalty_weight": 7.0},
    "mmd": {"penalty_weight": 7.0},
    "ib-irm": {"penalty_weight": 20.0, "warmup_steps": 2, "bottleneck_warmup_steps": 1},
    "eqrm": {"quantile": 0.8, "warmup_steps": 0},
    "rdm": {"variance_weight": 3.0, "warmup_steps": 2},
}
# Unequal and odd, down to one example, in four steps over the end of the warm-up. The contract of
# all methods compiles equal and changing sizes.
SIZES = [(7, 4, 1)] * 4


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", SETTINGS)
def test_compiled_is_eager(name: str) -> None:
    eager, compiled = (make(name, **SETTINGS[name]) for _ in range(2))
    compiled.compile(backend="aot_eager", fullgraph=True)
    for step, sizes in enumerate(SIZES):
        batches, results = make_batches(step, sizes), []
        for algorithm in (eager, compiled):
            terms = algorithm(batches)
            weights = algorithm.optimiser.weights
            gradients = torch.autograd.grad(terms["loss"], weights)
            algorithm.optimiser.step(gradients)
            results.append([*terms.values(), *gradients])
        for found, expected in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    for (one, found), (other, expected) in zip(
        compiled.state_dict().items(), eager.state_dict().items(), strict=True
    ):
        assert one == other
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_gradients_of_mmd_by_inductor() -> None:
    # Its gradients of a diagonal come out wrong on the CPU, the values right.
    features = make_batches(0, (16,))[0][0].requires_grad_()
    compiled = torch.compile(mmd, fullgraph=True)
    found, expected = (
        torch.autograd.grad(function(features, (6, 6, 4)), features)[0]
        for function in (compiled, mmd)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
