"""A step is the same under a scaler, autocast, channels last and a compiled network."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from tests.gradients.test_whole_network import CLASSES, DOMAINS, E, make_batch, make_network

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
WEIGHT = 20.0


def head(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    z = model[:-1](images)
    logits = model[-1](z)
    fishr = shoal.Fishr(E, WEIGHT, 0.0, 0)
    return F.cross_entropy(logits.float(), labels) + fishr(z, logits, labels, DOMAINS)


def micro_batches(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    z = shoal.in_micro_batches(model[:-1], images, 4)
    logits = model[-1](z)
    fishr = shoal.Fishr(E, WEIGHT, 0.0, 0)
    return F.cross_entropy(logits.float(), labels) + fishr(z, logits, labels, DOMAINS)


def whole(model: nn.Module, images: Tensor, labels: Tensor, chunk: int | None = None) -> Tensor:
    losses, v = shoal.losses_and_variance(
        model, images, labels, DOMAINS, num_domains=E, chunk_size=chunk
    )
    return losses.mean() + WEIGHT * shoal.spread(v)


def chunks(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return whole(model, images, labels, 4)


LOSSES: dict[str, Loss] = {"head": head, "micro": micro_batches, "all": whole, "chunks": chunks}
every_loss = pytest.mark.parametrize("kind", LOSSES)


def problem(last: bool = False) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the residual network in float32, its images and labels."""
    model, (images, labels) = make_network().float(), make_batch()
    images = images.float()
    if last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    return model, images, labels


def gradient(loss: Tensor, model: nn.Module, scale: float = 1.0) -> Tensor:
    found = torch.autograd.grad(scale * loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in found]) / scale


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@every_loss
def test_a_scaler_changes_no_bit(kind: str) -> None:
    """A scale that is a power of two passes through every backward unchanged."""
    model, images, labels = problem()
    plain = gradient(LOSSES[kind](model, images, labels), model)
    scaled = gradient(LOSSES[kind](model, images, labels), model, 2.0**12)
    assert torch.equal(plain, scaled)


@every_loss
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)], ids=["bf16", "fp16"]
)
def test_autocast(kind: str, dtype: torch.dtype, close: float) -> None:
    model, images, labels = problem()
    expected = LOSSES[kind](model, images, labels)
    with torch.autocast("cpu", dtype):
        found = LOSSES[kind](model, images, labels)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=close / 2)
    assert distance(gradient(found, model), gradient(expected, model)) < close


@every_loss
def test_channels_last(kind: str) -> None:
    model, images, labels = problem()
    expected = gradient(LOSSES[kind](model, images, labels), model)
    model, images, labels = problem(last=True)
    assert distance(gradient(LOSSES[kind](model, images, labels), model), expected) < 1e-5


@pytest.mark.parametrize("kind", ["head", "all"])
def test_steps_under_fp16_and_a_scaler(kind: str) -> None:
    """Three steps agree with float32, and the scaler skips none."""
    ends = []
    for half in (False, True):
        model, images, labels = problem()
        optimiser = torch.optim.SGD(model.parameters(), 0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=half)
        for _ in range(3):
            with torch.autocast("cpu", torch.float16, enabled=half):
                loss = LOSSES[kind](model, images, labels)
            optimiser.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
        if half:
            assert scaler.get_scale() == 2.0**10
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in problem()[0].parameters()])
    assert distance(ends[1] - start, ends[0] - start) < 0.05


@pytest.mark.parametrize("cut", [False, True])
def test_a_compiled_network(cut: bool) -> None:
    """The network compiled, alone or in micro-batches; Fishr on its head."""
    model, images, labels = problem()
    expected = gradient(head(model, images, labels), model)
    features = torch.compile(model[:-1], backend="aot_eager")
    z = shoal.in_micro_batches(features, images, 4) if cut else features(images)
    logits = model[-1](z)
    assert logits.shape[1] == CLASSES
    loss = F.cross_entropy(logits, labels) + shoal.Fishr(E, WEIGHT, 0.0, 0)(
        z, logits, labels, DOMAINS
    )
    assert distance(gradient(loss, model), expected) < 1e-5
