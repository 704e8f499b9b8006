"""The benchmark of gradient statistics: what it compares is the same, and failures are rows."""

import argparse
import json
import subprocess
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import gradient_statistics as benchmark
from benchmarks.gradient_statistics import ViT


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return ViT(side=32, width=12, depth=1, heads=2).eval()


@pytest.mark.parametrize("library", ["shoal", "vmap", "vmap in chunks"])
def test_every_library_computes_the_same(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "build", lambda network, side: tiny())
    monkeypatch.setattr(benchmark, "CHUNK", 2)
    far = benchmark.parity("vit-s", library, 3, 32, torch.device("cpu"))
    assert far.keys() == {"norms", "fisher"}
    assert max(far.values()) < 1e-12


def test_the_plain_network_is_the_one_of_timm() -> None:
    """vit_small_patch16_224 has 22,050,664 weights."""
    with torch.device("meta"):
        model = ViT(224)
    assert sum(p.numel() for p in model.parameters()) == 22_050_664


def asked(**changes: Any) -> argparse.Namespace:
    settings = {"device": "cpu", "batch": 2, "side": 32, "rounds": 1, "parity": 2, "timeout": 5}
    return argparse.Namespace(
        statistics=["norms"], networks=benchmark.NETWORKS, extra_path=[], **settings | changes
    )


def test_a_library_that_is_missing_or_too_large_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "build", lambda network, side: tiny())

    def absent(model: nn.Module) -> Any:
        raise ModuleNotFoundError("No module named 'opacus'")

    def large(model: nn.Module) -> Any:
        def fail(*_: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")

        return {"norms": fail, "fisher": fail}

    monkeypatch.setitem(benchmark.MAKERS, "opacus", absent)
    rows = benchmark.work(asked(), "vit-s", "opacus")
    assert rows["norms"]["error"] == "ModuleNotFoundError: No module named 'opacus'"
    monkeypatch.setitem(benchmark.MAKERS, "vmap", large)
    rows = benchmark.work(asked(), "vit-s", "vmap")
    assert "out of memory" in rows["norms"]["error"].lower()


def test_a_process_that_dies_or_hangs_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it measured before is kept."""
    first = {"norms": {"ms": 1.0}}

    def killed(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, -9, json.dumps(first) + "\n", "Killed")

    monkeypatch.setattr(benchmark.subprocess, "run", killed)
    rows = benchmark.in_process(asked(), "vmap")
    second = {"norms": {"error": "the process ended with -9: Killed"}}
    assert rows == {"resnet50": first, "vit-s": second}

    def hanging(command: list[str], timeout: float, **_: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout, json.dumps(first).encode())

    monkeypatch.setattr(benchmark.subprocess, "run", hanging)
    rows = benchmark.in_process(asked(), "vmap")
    assert rows == {"resnet50": first, "vit-s": {"norms": {"error": "no result in 5 s"}}}


def test_ratios_are_of_the_same_network_and_statistic() -> None:
    rows = {
        "vit-s, norms, shoal": {"ms": 10.0, "peak_gb": 2.0},
        "vit-s, norms, vmap": {"ms": 30.0, "peak_gb": 8.0},
        "vit-s, norms, opacus": {"error": "missing"},
    }
    assert benchmark.compared(rows) == {"vit-s, norms, vmap": {"memory": 4.0, "time": 3.0}}
