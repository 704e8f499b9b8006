"""chunk_size bounds the memory in use, in the forward and in the backward."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import shoal

E, CHANNELS, SIDE, CLASSES = 2, 48, 4, 3
N, CHUNK = 64, 4


class Alive(TorchDispatchMode):
    """Record the largest tensor and the most bytes that were alive at once inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, int] = {}
        self.now = self.peak = self.largest = 0

    def _forget(self, key: int) -> None:
        self.now -= self.storages.pop(key, 0)

    def _count(self, tensor: Tensor) -> None:
        # A view is as large as its base, but takes no memory.
        self.largest = max(self.largest, tensor.numel() if not _is_expanded(tensor) else 0)
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.storages or storage.nbytes() == 0:
            return
        self.storages[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, Tensor):
                self._count(t)
        return result


def _is_expanded(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def make_model() -> nn.Sequential:
    """Return a net whose middle convolution has 20,736 weights but only 768 activations."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, CLASSES),
    )


WEIGHTS = CHANNELS * CHANNELS * 9


def make_batch(n: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 1, SIDE, SIDE, generator=generator)
    return inputs, torch.randint(CLASSES, (n,), generator=generator), torch.arange(n) % E


def measure(n: int, chunk_size: int | None, statistic: Any) -> tuple[Alive, Alive, Tensor]:
    """Return the memory in use in the forward and in the backward, and the gradient."""
    model = make_model()
    batch = make_batch(n)
    # The first call also compares with autograd, which other steps do not.
    with torch.no_grad():
        statistic(model, *make_batch(4), chunk_size=2)
    with Alive() as forward:
        value = shoal.spread(statistic(model, *batch, chunk_size=chunk_size))
    with Alive() as backward:
        value.backward()
    return forward, backward, torch.cat([p.grad.flatten() for p in model.parameters()])


STATISTICS = {"variance": shoal.gradient_variance, "mean": shoal.gradient_mean}


def test_no_tensor_of_all_individual_gradients_ever_exists() -> None:
    forward, backward, _ = measure(N, CHUNK, shoal.gradient_variance)
    for alive in (forward, backward):
        assert CHUNK * WEIGHTS <= alive.largest < N * WEIGHTS
        # No more than the chunk's own, plus a little.
        assert alive.largest <= 2 * CHUNK * WEIGHTS


def test_the_measurement_sees_individual_gradients_that_exist() -> None:
    forward, backward, _ = measure(N, None, shoal.gradient_variance)
    # Half of the examples belong to one domain, and one domain is processed at a time.
    assert forward.largest >= N // E * WEIGHTS
    assert max(forward.peak, backward.peak) >= N // E * WEIGHTS * 4


@pytest.mark.parametrize("statistic", STATISTICS)
def test_peak_hardly_grows_with_the_batch(statistic: str) -> None:
    small = measure(N, CHUNK, STATISTICS[statistic])
    large = measure(2 * N, CHUNK, STATISTICS[statistic])
    for one, two in zip(small[:2], large[:2], strict=True):
        assert one.peak > 0
        # Twice the examples add their inputs and random states, nothing else.
        assert two.peak <= 1.25 * one.peak


def test_peak_grows_with_the_chunk() -> None:
    small, large = (measure(N, size, shoal.gradient_variance) for size in (CHUNK, 4 * CHUNK))
    for one, two in zip(small[:2], large[:2], strict=True):
        assert two.peak > 1.5 * one.peak


@pytest.mark.parametrize("statistic", STATISTICS)
def test_chunks_need_a_fraction_of_the_memory_and_give_the_same_gradient(statistic: str) -> None:
    *chunked, ours = measure(N, CHUNK, STATISTICS[statistic])
    *whole, theirs = measure(N, None, STATISTICS[statistic])
    at_once, in_chunks = (max(a.peak for a in both) for both in (whole, chunked))
    factor = 4 if statistic == "variance" else 1.5
    assert in_chunks * factor < at_once
    assert ((ours - theirs).norm() / theirs.norm()).item() < 1e-3


def test_a_linear_layer_never_forms_individual_gradients() -> None:
    torch.manual_seed(0)
    n, width = 512, 64
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES))
    inputs, labels, domains = (
        torch.randn(n, width),
        torch.randint(CLASSES, (n,)),
        torch.arange(n) % E,
    )
    with Alive() as alive:
        shoal.spread(shoal.gradient_variance(model, inputs, labels, domains)).backward()
    # [n, P] would be 2.3 million numbers; the largest tensors are an activation and its square.
    assert alive.largest <= (2 * n + E) * width


def test_the_head_never_forms_individual_gradients() -> None:
    n, p, classes = 256, 32, 10
    z, x = torch.randn(n, p, requires_grad=True), torch.randn(n, classes, requires_grad=True)
    with Alive() as alive:
        v = shoal.head_variance(z, x, torch.randint(classes, (n,)), torch.arange(n) % E)
        shoal.spread(v).backward()
    assert alive.largest <= (2 * n + E) * p


def test_many_examples_are_not_even_doubled() -> None:
    n, p, classes = 1024, 32, 10
    z, x = torch.randn(n, p, requires_grad=True), torch.randn(n, classes, requires_grad=True)
    with Alive() as alive:
        v = shoal.head_variance(z, x, torch.randint(classes, (n,)), torch.arange(n) % 2)
        shoal.spread(v).backward()
    assert alive.largest <= n * p


def test_the_measurement_counts_live_tensors() -> None:
    with Alive() as alive:
        one = torch.zeros(1000)
        view = one.view(10, 100)
        assert alive.now == 4000
        two = one + 1
        assert alive.now == alive.peak == 8000
        del one
        assert alive.now == 8000
        del view
        assert alive.now == 4000
        two = two * 2
        assert alive.now == 4000
    assert (alive.peak, alive.largest) == (8000, 1000)
