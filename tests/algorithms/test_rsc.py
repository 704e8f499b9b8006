"""RSC against autograd in the features and NumPy's percentiles, example by example."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.forward import Batch
from shoal.algorithms.rsc import _quantile
from shoal.networks import Network
from shoal.randomness import stream

from .plain import Oracle, Plain, compare, make, tiny
from .stepping import asks_nothing, keeps_its_weights, single_logit

SIZES = [(4, 6, 5), (5, 5, 5), (3, 7), (4,), (1,), (2, 3, 4, 5, 3, 1)]


def oracle(feature_drop: float = 1 / 3, batch_drop: float = 1 / 3, decay: float = 0.0) -> Oracle:
    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        inputs = [x for batch in batches for x in batch[0]]
        labels = [y for batch in batches for y in batch[1]]
        left, changes = [], []
        for x, y in zip(inputs, labels, strict=True):
            z = plain.features(x[None])[0].detach().requires_grad_()
            logits = plain.classify(z)
            (g,) = torch.autograd.grad(logits[y], z)
            threshold = np.percentile(g.numpy(), (1 - feature_drop) * 100)
            keep = torch.tensor([float(value) < threshold for value in g])
            left.append(keep)
            muted = plain.classify(z * keep)
            change = F.softmax(logits, 0)[y] - F.softmax(muted, 0)[y]
            changes.append(float(change.detach()))
        threshold = np.percentile(np.array(changes), (1 - batch_drop) * 100)
        losses = []
        for x, y, keep, change in zip(inputs, labels, left, changes, strict=True):
            z = plain.features(x[None])[0]
            if change < threshold:
                keep = torch.ones_like(keep)
            losses.append(-F.log_softmax(plain.classify(z * keep), 0)[y])
        loss = torch.stack(losses).mean()
        plain.adam(weight_decay=decay).step(plain.weights, plain.gradients(loss))
        return loss

    return step


@pytest.mark.parametrize("sizes", SIZES)
def test_rsc(sizes: tuple[int, ...]) -> None:
    compare(make("rsc", len(sizes)), oracle(), sizes=sizes, steps=10)


@pytest.mark.parametrize(
    "options",
    [
        {"feature_drop": 0.5, "batch_drop": 0.5},
        {"feature_drop": 0.1, "batch_drop": 0.45},
        {"feature_drop": 0.45, "batch_drop": 0.1},
        {"feature_drop": 0.0, "batch_drop": 0.0},
    ],
)
def test_hyperparameters(options: dict[str, Any]) -> None:
    compare(make("rsc", weight_decay=0.1, **options), oracle(**options, decay=0.1), steps=10)


@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.5, 1 - 1 / 3, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_are_numpys(share: float, dtype: torch.dtype) -> None:
    for n in (*range(1, 40), 96, 128, 2048):
        values = torch.randn(3, n, generator=stream("quantile", n), dtype=dtype)
        values[1, n // 2 :] = values[1, 0]  # ties
        expected = np.percentile(values.numpy(), share * 100, axis=1, keepdims=True)
        found = _quantile(values, share)
        torch.testing.assert_close(found, torch.from_numpy(expected))
        # On the device, as in a compiled step.
        assert torch.equal(_quantile(values, torch.tensor(share, dtype=torch.float64)), found)


def test_quantiles_in_half_precision_are_rounded_once() -> None:
    values = torch.randn(3, 40, generator=stream("half")).bfloat16()
    for share in np.linspace(0, 1, 30).tolist():
        found = _quantile(values, torch.tensor(share, dtype=torch.float64))
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, _quantile(values, share))


def test_what_it_cannot_train() -> None:
    deep = Network(tiny().features, nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)))
    with pytest.raises(TypeError, match=r"RSC needs a linear classifier.*got Sequential"):
        make("rsc", model=deep.double())
    with pytest.raises(ValueError, match="RSC needs a logit for each class"):
        make("rsc", model=single_logit())
    with pytest.raises(ValueError, match=r"feature_drop must be a number in \[0, 1\], got 1.5"):
        make("rsc", feature_drop=1.5)
    with pytest.raises(ValueError, match=r"batch_drop must be a number in \[0, 1\], got -0.1"):
        make("rsc", batch_drop=-0.1)


def test_a_step_asks_nothing() -> None:
    asks_nothing(make("rsc"))


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    keeps_its_weights(make("rsc"), 1, (4, 6, 5))
