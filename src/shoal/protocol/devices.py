"""Which device of this machine is whose, where there are several GPUs."""

import torch


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
