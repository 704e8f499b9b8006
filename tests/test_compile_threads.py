"""Fishr compiled for two threads: Inductor's CPU loops differ from those for one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEP = """
import torch, shoal
torch.set_num_threads(2)
torch.manual_seed(0)
n, E, features, classes = 13, 4, 6, 3
domains, labels = torch.arange(n) % E, torch.randint(0, classes, (n,))
z, x = torch.randn(n, features), torch.randn(n, classes)

def run(loss, dtype):
    inputs = [t.to(dtype).requires_grad_() for t in (z, x)]
    value = loss(*inputs)
    return [value.detach(), *torch.autograd.grad(value, inputs)]

def penalty():
    fishr = shoal.Fishr(E, 1.0, 0.9, warmup_steps=0)
    return lambda z, x: fishr(z, x, labels, domains)

expected, found = run(penalty(), torch.float64), run(torch.compile(penalty()), torch.float32)
for one, other in zip(found, expected, strict=True):
    gap = (one - other).abs().max() / other.abs().max()
    assert gap < 1e-5, f"off by {gap:.1%}"
"""


@pytest.mark.timeout(300)  # always compiles: a cache could hold code for one thread
def test_fishr_compiled_for_two_threads(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STEP],
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
