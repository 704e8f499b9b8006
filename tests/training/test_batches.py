"""Batches that are drawn by compiled code: the same ones, and compiled once for all sizes."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from shoal.training.batches import InMemory, Sampler

CPU = torch.device("cpu")


def source(size: int, domain: str, balanced: bool) -> InMemory:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 2, 3, 3), generator=generator, dtype=torch.uint8)
    labels = torch.arange(40) % 3
    kept = torch.arange(5, 35)
    sampler = Sampler(kept, labels[kept] if balanced else None, ("made up", domain), CPU)
    return InMemory(images, labels, sampler, size)


def test_compiled_batches_are_those_of_plain_code() -> None:
    """With balanced classes; a compiled step in ``test_step.py`` draws without."""
    plain, fused = source(7, "a", balanced=True), source(7, "a", balanced=True)
    fused.fuse()
    for _ in range(3):
        for mine, expected in zip(fused(), plain(), strict=True):
            assert torch.equal(mine, expected)


def test_one_compiled_draw_serves_all_sizes_and_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    counter, compile_ = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile_(function, backend=counter))
    for size, domain in ((7, "a"), (7, "b"), (12, "a"), (33, "c")):
        fused = source(size, domain, balanced=False)
        fused.fuse()
        assert len(fused()[1]) == size
    assert counter.frame_count == 1
