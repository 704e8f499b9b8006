"""feature_moments and scale_slopes against loops and autograd, in float64, value and gradient."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.statistics import feature_moments, scale_slopes
from tests.oracles import autograd as oracle
from tests.test_capture_safety import NoQuestions

CLASSES = 4
SIZES = [(4, 4, 4), (3, 5, 2), (2, 7), (5,), (1, 4, 2), (1, 1), (1,)]


def features_of(n: int, d: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) + 0.5


def logits_of(n: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(max(classes, 2), (n,), generator=generator)


# feature_moments


def numpy_moments(features: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Return the moments, one domain and one entry after the other."""
    rows = []
    for part in np.split(features, np.cumsum(sizes)[:-1]):
        n, d = part.shape
        mean = part.mean(axis=0)
        covariance = np.zeros((d, d))
        for x in part:
            covariance += np.outer(x - mean, x - mean) / max(n - 1, 1)
        rows.append(np.concatenate([mean / np.sqrt(d), covariance.ravel() / d]))
    return np.stack(rows)


@pytest.mark.parametrize("sizes", SIZES)
def test_moments(sizes: tuple[int, ...]) -> None:
    features = features_of(sum(sizes))
    expected = torch.from_numpy(numpy_moments(features.numpy(), sizes))
    torch.testing.assert_close(feature_moments(features, sizes), expected, **oracle.VALUE)


def test_covariance_agrees_with_numpy() -> None:
    features = features_of(6, 2)
    covariance = feature_moments(features, (6,))[0, 2:].view(2, 2) * 2
    torch.testing.assert_close(covariance, torch.from_numpy(np.cov(features.numpy().T)))


def test_one_example_has_a_mean_and_no_covariance() -> None:
    features = features_of(3).requires_grad_()
    rows = feature_moments(features, (1, 2))
    assert torch.equal(rows[0, 3:], torch.zeros(9, dtype=torch.float64))
    assert rows[1, 3:].abs().min() > 0
    rows[0, 3:].sum().backward()
    assert torch.equal(features.grad, torch.zeros_like(features))


@pytest.mark.parametrize("sizes", SIZES)
def test_moments_gradcheck(sizes: tuple[int, ...]) -> None:
    features = features_of(sum(sizes)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: feature_moments(z, sizes), features)


def test_a_large_common_value_costs_no_accuracy_in_float32() -> None:
    features = (features_of(9) + 1000).float()
    expected = numpy_moments(features.double().numpy(), (5, 4))
    found = feature_moments(features, (5, 4)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3)


# scale_slopes


def slope(losses: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    """Return the derivative of the mean loss in the logits' scale, at 1; zero without examples."""
    if len(logits) == 0:
        return 0 * logits.sum()
    scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
    risk = losses(scale * logits, labels).mean()
    (found,) = torch.autograd.grad(risk, scale, create_graph=True)
    return found


def loop_slopes(
    losses: Callable[[Tensor, Tensor], Tensor],
    logits: Tensor,
    labels: Tensor,
    sizes: tuple[int, ...],
) -> Tensor:
    rows = []
    for x, y in zip(logits.split(sizes), labels.split(sizes), strict=True):
        rows.append([slope(losses, x[half::2], y[half::2]) for half in (0, 1)])
    return torch.stack([torch.stack(row) for row in rows])


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def binary(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(
        logits.reshape(-1), labels.to(logits.dtype), reduction="none"
    )


def agree(
    losses: Callable[[Tensor, Tensor], Tensor],
    logits: Tensor,
    labels: Tensor,
    sizes: tuple[int, ...],
) -> None:
    logits.requires_grad_()
    found = scale_slopes(logits, labels, sizes)
    expected = loop_slopes(losses, logits, labels, sizes)
    assert found.shape == (len(sizes), 2)
    torch.testing.assert_close(found, expected, **oracle.VALUE)
    weights = torch.arange(1.0, found.numel() + 1, dtype=found.dtype).view_as(found)
    one, other = (
        torch.autograd.grad((weights * rows).sum(), logits)[0] for rows in (found, expected)
    )
    torch.testing.assert_close(one, other, **oracle.GRADIENT)


@pytest.mark.parametrize("sizes", SIZES)
def test_slopes(sizes: tuple[int, ...]) -> None:
    agree(cross_entropy, *logits_of(sum(sizes)), sizes)


@pytest.mark.parametrize("sizes", SIZES)
def test_slopes_for_soft_targets(sizes: tuple[int, ...]) -> None:
    logits, labels = logits_of(sum(sizes))
    targets = 0.8 * F.one_hot(labels, CLASSES).double() + 0.05
    agree(cross_entropy, logits, targets, sizes)


@pytest.mark.parametrize("flat", [True, False], ids=["[n]", "[n, 1]"])
@pytest.mark.parametrize("sizes", SIZES)
def test_slopes_of_one_logit(sizes: tuple[int, ...], flat: bool) -> None:
    logits, labels = logits_of(sum(sizes), 1)
    agree(binary, logits[:, 0] if flat else logits, labels, sizes)


def test_an_empty_half_has_no_slope() -> None:
    logits, labels = logits_of(4)
    found = scale_slopes(logits, labels, (1, 3))
    assert found[0, 0] != 0
    assert found[0, 1] == 0
    assert (found[1] != 0).all()


@pytest.mark.parametrize("sizes", SIZES)
def test_slopes_gradcheck(sizes: tuple[int, ...]) -> None:
    logits, labels = logits_of(sum(sizes))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: scale_slopes(x, labels, sizes), logits)


# Both


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_float32_or_float64_under_autocast(dtype: torch.dtype) -> None:
    wanted = dtype if dtype == torch.float64 else torch.float32
    features, (logits, labels) = features_of(7).to(dtype), logits_of(7)
    logits = logits.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        moments = feature_moments(features, (4, 3))
        slopes = scale_slopes(logits, labels, (4, 3))
    assert moments.dtype == slopes.dtype == wanted
    exact = feature_moments(features.double(), (4, 3))
    torch.testing.assert_close(moments.double(), exact, rtol=1e-5, atol=1e-6)
    exact = scale_slopes(logits.double(), labels, (4, 3))
    torch.testing.assert_close(slopes.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(2, 3), (4, 0), (5, -1), ()])
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, ...]) -> None:
    text = re.escape(f"add up to the 4 examples, got {list(sizes)}")
    with pytest.raises(ValueError, match=text):
        feature_moments(torch.ones(4, 3), sizes)
    with pytest.raises(ValueError, match=text):
        scale_slopes(*logits_of(4), sizes)


def test_bad_features_logits_and_labels_are_refused() -> None:
    logits, labels = logits_of(4)
    with pytest.raises(ValueError, match=r"features must be \[n, p\]"):
        feature_moments(torch.ones(4), (2, 2))
    with pytest.raises(ValueError, match="labels must have one entry per example"):
        scale_slopes(logits, labels[:3], (2, 2))
    with pytest.raises(ValueError, match="labels must be in 0 … 3"):
        scale_slopes(logits, labels + 4, (2, 2))
    with pytest.raises(ValueError, match=r"logits must be \[n, C\]"):
        scale_slopes(logits[None], labels, (2, 2))


@pytest.mark.parametrize("sizes", [(4, 4), (3, 4, 1)])
def test_nothing_waits_for_the_host(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.checks.values_visible", lambda *tensors: False)
    features, (logits, labels) = features_of(8).requires_grad_(), logits_of(8)
    logits.requires_grad_()
    with NoQuestions():
        feature_moments(features, sizes).square().sum().backward()
        scale_slopes(logits, labels, sizes).square().sum().backward()
