"""Which GPU or processor a run was timed on, and which this machine has."""

import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

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
