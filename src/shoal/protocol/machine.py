"""How a run is carried out on the machine at hand, which changes nothing of what the run is."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..training.step import Kind
from .hardware import processor


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
    step: Kind = "compiled"
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
