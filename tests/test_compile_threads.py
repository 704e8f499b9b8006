"""Fishr compiled for two threads: Inductor's CPU loops differ from those for one."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch import Tensor

import shoal

N, E, FEATURES, CLASSES = 13, 4, 6, 3


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads, and no graphs that were compiled for one."""
    before = torch.get_num_threads()
    torch._dynamo.reset()
    torch.set_num_threads(2)
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.timeout(300)  # always compiles
def test_fishr_compiled_for_two_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    domains = torch.arange(N) % E
    labels = torch.randint(0, CLASSES, (N,), generator=generator)
    z, x = (torch.randn(N, width, generator=generator) for width in (FEATURES, CLASSES))

    def run(loss: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        inputs = [t.to(dtype).requires_grad_() for t in (z, x)]
        value = loss(*inputs)
        return [value.detach(), *torch.autograd.grad(value, inputs)]

    def penalty() -> Callable[..., Tensor]:
        fishr = shoal.Fishr(E, 1.0, 0.9, warmup_steps=0)
        return lambda z, x: fishr(z, x, labels, domains)

    found = run(torch.compile(penalty()), torch.float32)
    for one, other in zip(found, run(penalty(), torch.float64), strict=True):
        gap = (one - other).abs().max() / other.abs().max()
        assert gap < 1e-5, f"off by {gap:.1%}"
