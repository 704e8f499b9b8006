"""By which hardware timings are told apart."""

from pathlib import Path

import pytest
import torch

from shoal.runs import machine
from shoal.runs.machine import (
    choose_step,
    hardware_for,
    hardware_of,
    installed_gpus,
    installed_hardware,
    processor,
    usable_gpus,
)


def test_a_run_was_timed_on_its_gpu_or_its_processor() -> None:
    assert hardware_of({"device": "NVIDIA H200", "processor": "Xeon"}) == "NVIDIA H200"
    assert hardware_of({"device": "cpu", "processor": "Xeon", "threads": 8}) == "Xeon"
    assert hardware_of({"device": "cpu"}) == "cpu"  # as it was written once
    assert hardware_of({}) == ""


def test_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "processor", lambda: "Xeon")
    for name in ("usable_gpus", "installed_gpus"):
        monkeypatch.setattr(machine, name, lambda: ["L4", "H200", "L4"])
    for device in ("auto", "cuda", "cuda:1"):
        assert hardware_for(device) == ("L4", "H200")
    assert hardware_for("cpu") == ("Xeon",)
    assert installed_hardware() == ("L4", "H200", "Xeon")
    for name in ("usable_gpus", "installed_gpus"):
        monkeypatch.setattr(machine, name, list)
    assert hardware_for("auto") == installed_hardware() == ("Xeon",)


def test_the_driver_names_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "NVIDIA", tmp_path)
    assert installed_gpus() == []
    for bus, name in (("0000:8b:00.0", "NVIDIA L4"), ("0000:1b:00.0", "NVIDIA H200")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 0\n")
    assert installed_gpus() == ["NVIDIA H200", "NVIDIA L4"]


def test_the_processor_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor()
    monkeypatch.setattr(machine, "PROCESSORS", tmp_path / "cpuinfo")
    assert processor()  # where there is no such file
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9 \nmhz\t: 1\n")
    assert processor() == "AMD EPYC 9"


def test_gpus_that_cannot_be_used_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")
    assert usable_gpus() == ["GPU 0", "GPU 1"]

    def broken(number: int) -> str:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(torch.cuda, "get_device_name", broken)
    assert usable_gpus() == []


@pytest.mark.parametrize(
    ("asked", "device", "scale", "network", "updates", "kind"),
    [
        ("compiled", "cpu", "small", None, 1, "compiled"),
        ("auto", "cpu", "large", None, 10**6, "eager"),
        ("auto", "cuda", "large", None, 10**6, "graph"),
        ("auto", "cuda", "large", "efficientnet-lite0", 10**6, "graph"),
        ("auto", "cuda", "large", "timm:vit_small_patch16_224", 5001, "graph"),
        ("auto", "cuda", "large", "timm:vit_small_patch16_224", 10_000, "compiled"),
        ("auto", "cuda", "small", None, 5001, "graph"),
        ("auto", "cuda", "small", None, 10**6, "compiled"),
    ],
)
def test_a_step_is_compiled_only_if_that_pays(
    asked: str, device: str, scale: str, network: str | None, updates: int, kind: str
) -> None:
    assert choose_step(asked, torch.device(device), scale, network, updates) == kind
