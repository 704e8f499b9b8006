"""Fishr against one gradient per example, in a loop, and the moving average as a sum over steps."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.forward import Batch, Forward
from shoal.networks import Network, draw_weights
from shoal.randomness import stream

from .plain import Oracle, Plain, compare, make, make_batches


def oracle(
    weight: float = 1000.0,
    warmup: int = 0,
    decay: float = 0.0,
    mean_weight: float = 0.0,
    centered: bool = True,
    parameters: str = "classifier",
    ramp_steps: int = 0,
    reset: str = "all",
) -> Oracle:
    seen: list[tuple[list[Tensor], list[Tensor]]] = []  # variances and means of earlier steps

    def chosen(name: str) -> bool:
        return parameters == "all" or any(name.startswith(p) for p in parameters.split(","))

    def rows_of(plain: Plain, batch: Batch, wanted: Any) -> Tensor:
        rows = []
        for x, y in zip(*batch, strict=True):
            loss = F.cross_entropy(plain.logits(x[None]), y[None])
            grads = plain.gradients(loss, create_graph=True)
            rows.append(torch.cat([g.flatten() for name, g in grads.items() if wanted(name)]))
        return torch.stack(rows)

    def matched(history: list[list[Tensor]]) -> Tensor:
        """Mean over domains and weights of (u_e − u)², u_e = Σ_k γ^(t−k) v_e^k."""
        t = len(history) - 1
        u = [
            sum(
                decay ** (t - k) * (rows[e] if k == t else rows[e].detach())
                for k, rows in enumerate(history)
            )
            for e in range(len(history[0]))
        ]
        mean = sum(u) / len(u)
        return sum(((one - mean) ** 2).mean() for one in u) / len(u)

    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        if count == warmup and reset == "all":
            plain.forget()
        if count == warmup > 0 and reset == "mean":
            plain.adam().m = {name: 0 * m for name, m in plain.adam().m.items()}
        risen = min(max(count - warmup, 0) / ramp_steps, 1) if ramp_steps else count >= warmup
        variances, means = [], []
        for batch in batches:
            g = rows_of(plain, batch, chosen)
            centre = g.mean(0) if centered else 0
            variances.append(((g - centre) ** 2).sum(0) / len(g))
            means.append(rows_of(plain, batch, lambda name: name.startswith("classifier")).mean(0))
        seen.append((variances, means))
        pooled = F.cross_entropy(
            plain.logits(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])
        )
        penalty = weight * matched([v for v, _ in seen]) + mean_weight * matched(
            [m for _, m in seen]
        )
        loss = pooled + risen * penalty
        plain.adam().step(plain.weights, plain.gradients(loss))
        return loss

    return step


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight": 300.0, "warmup": 2, "decay": 0.9},
    {"weight": 300.0, "warmup": 100, "decay": 0.9},
    {"weight": 300.0, "centered": False},
    {"weight": 300.0, "decay": 0.5, "mean_weight": 50.0},
    {"weight": 0.0, "decay": 0.5, "mean_weight": 50.0, "warmup": 1},
    {"weight": 300.0, "parameters": "all", "decay": 0.5},
    {"weight": 300.0, "parameters": "features.0,classifier.bias", "centered": False},
    {"weight": 300.0, "warmup": 1, "decay": 0.5, "ramp_steps": 2, "reset": "none"},
    {"weight": 300.0, "warmup": 2, "reset": "mean", "mean_weight": 50.0, "ramp_steps": 2},
    {"weight": 300.0, "warmup": 2, "reset": "none"},
]
NAMES = {"weight": "penalty_weight", "warmup": "warmup_steps", "decay": "ema_decay"}


def make_fishr(num_domains: int, options: dict[str, Any], model: nn.Module | None = None) -> Any:
    defaults = {"warmup_steps": 0, "ema_decay": 0.0}
    hparams = {NAMES.get(name, name): value for name, value in options.items()}
    return make("fishr", num_domains, model, **defaults | hparams)


@pytest.mark.parametrize("sizes", [(4, 6, 5), (3, 2)])
@pytest.mark.parametrize("options", OPTIONS)
def test_fishr(sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    compare(make_fishr(len(sizes), options), oracle(**options), steps=4, sizes=sizes)


def test_gradient_share_is_for_a_matched_linear_classifier() -> None:
    with pytest.raises(ValueError, match="parameters='all'"):
        make_fishr(3, {"warmup": 60, "gradient_share": 1.0, "parameters": "all"})
    assert make_fishr(3, {"warmup": 60, "gradient_share": 0.5}).variances.gradient_share == 0.5
    with pytest.raises(ValueError, match="unknown reset 'al'"):
        make_fishr(3, {"reset": "al"})


def test_one_domain_has_nothing_to_match() -> None:
    compare(make_fishr(1, {"weight": 300.0}), oracle(0.0), sizes=(4,))


def headless_bias() -> Network:
    def build() -> Network:
        features = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        return Network(features, nn.Linear(4, 3, bias=False))

    return draw_weights(build, stream("no bias")).double()


def deep_head() -> Network:
    def build() -> Network:
        head = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
        return Network(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), head)

    return draw_weights(build, stream("deep head")).double()


@pytest.mark.parametrize("network", [headless_bias, deep_head])
def test_variances_and_means_of_any_head(network: Any) -> None:
    options = {"weight": 300.0, "mean_weight": 50.0, "decay": 0.5}
    compare(make_fishr(3, options, network()), oracle(**options), steps=3)


def test_means_follow_the_chosen_weights() -> None:
    options = {"weight": 300.0, "mean_weight": 50.0, "parameters": "all"}
    algorithm = make_fishr(3, options)
    algorithm.update(make_batches(0))
    assert algorithm.means.v_bar.shape == algorithm.variances.v_bar.shape


def test_a_domain_of_one_example_is_absent_on_any_weights() -> None:
    for parameters in ("classifier", "all"):
        algorithm = make_fishr(3, {"parameters": parameters, "weight": 300.0})
        algorithm.update(make_batches(0, (1, 4, 5)))
        assert algorithm.variances.updates.tolist() == [0, 1, 1]


def test_how_far_it_can_be_captured() -> None:
    assert make_fishr(3, {}).capture == "compiled"
    assert make_fishr(3, {"parameters": "all"}).capture == "graph"
    assert make_fishr(3, {}, deep_head()).capture == "graph"


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_all_weights_take_one_forward(micro_batch: int | None) -> None:
    """In micro-batches the chunks of the statistic are run again, without one they are not."""
    algorithm = make_fishr(3, {"parameters": "all", "weight": 300.0})
    algorithm.micro_batch = micro_batch
    seen: list[int] = []
    algorithm.model.features[0].register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    batches = make_batches(0)
    algorithm.update(batches)
    n = sum(len(labels) for _, labels in batches)
    assert seen == [n] if micro_batch is None else sum(seen) == 3 * n


def test_variances_that_no_method_has_asked_for() -> None:
    forward = Forward.of(deep_head(), make_batches(0))
    with pytest.raises(RuntimeError, match="no layers were recorded; name their weights"):
        forward.variance()
