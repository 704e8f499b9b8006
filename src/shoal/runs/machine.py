"""How a run is carried out on the machine at hand, which changes nothing of what the run is."""

import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..catalogue import StepKind

PROCESSORS = Path("/proc/cpuinfo")


def processor() -> str:
    """Return the name of this machine's processor."""
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(\S.*)$", PROCESSORS.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def gpus() -> list[str]:
    """Return the names of the GPUs that can be used, in torch's order."""
    # Names are properties: to read them takes none of a GPU's memory.
    with suppress(RuntimeError):
        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return []


def hardware_of(about: Mapping[str, Any]) -> str:
    """Return the GPU or processor in what ``about_machine`` says; "" where that is not known."""
    device = str(about.get("device", ""))
    return str(about.get("processor", device)) if device == "cpu" else device


def hardware_here(device: str | None) -> tuple[str, ...]:
    """Return what runs are timed on here, by ``--device``; None for all that this machine has."""
    on_gpus = [] if device == "cpu" else gpus()
    if device is None:
        return *dict.fromkeys(on_gpus), processor()
    return tuple(dict.fromkeys(on_gpus)) if on_gpus else (processor(),)


@dataclass(frozen=True)
class Machine:
    """How a run is carried out here: nothing of it changes what the run is.

    Args:
        device: where it is trained.
        step: how far a step is captured; the method may stop before.
        place: of the images: "auto", "device" or "host".
        weights: what the network begins with: "imagenet", a file, or None.
        checkpoint_every: seconds; by default as few checkpoints as cost 2 % of the time.
        predictions: whether to write what the model says of every image.
        log: what records hold of the training domains beside accuracies: "gaps" between them, a
            "diagnosis" of the head, or None.
        keep_best: rules of selection; weights that they may choose are kept.
        micro_batch: images that go through a large network at a time; by default all of an
            update, and fewer where memory runs out.
    """

    device: torch.device
    step: StepKind = "compiled"
    place: str = "auto"
    weights: str | Path | None = None
    checkpoint_every: float | None = None
    predictions: bool = False
    log: str | None = None
    keep_best: tuple[str, ...] = ()
    micro_batch: int | None = None


def about_machine(machine: Machine) -> dict[str, Any]:
    """Return what a run's time depends on, beside the run."""
    cuda = machine.device.type == "cuda"
    device = (
        {"device": torch.cuda.get_device_name(machine.device)}
        if cuda
        else {
            "device": "cpu",
            "processor": processor(),
        }
    )
    return device | {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def dealt(device: torch.device, worker: int) -> torch.device:
    """Return the worker's device, its process's own from now on: GPUs are dealt in turn.

    One that was asked for by its number is everybody's.
    """
    if device.type != "cuda":
        return device
    if device.index is None:
        device = torch.device("cuda", worker % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def different(device: torch.device, workers: int) -> int:
    """Return how many different devices so many workers are dealt."""
    several = device.type == "cuda" and device.index is None
    return min(workers, torch.cuda.device_count()) if several else 1


def mark_of(device: torch.device) -> str:
    """Return what tells a device from all others of its machine, by whatever number it is seen."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else "cpu"
