"""The machine of a run: device, kind of step, hardware names. It changes nothing of the run itself.

Free of torch until a device is used, so that the status of a sweep can be read without it.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..catalogue import StepKind
from ..files import JSON_BYTES, read_text

if TYPE_CHECKING:
    import torch

PROCESSORS = Path("/proc/cpuinfo")
# One folder for each GPU, written by NVIDIA's driver.
NVIDIA = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Settings of the machine that trains a run; none of them changes the run.

    Args:
        device: where the network is trained.
        step: the furthest that a step is captured; a method can stop earlier.
        place: of the images: "auto", "device" or "host".
        weights: what the network starts from: "imagenet", a file, or None.
        checkpoint_every: seconds; by default as few checkpoints as cost 2 % of the time.
        predictions: whether to write the prediction and the logits for every image.
        log: extra metrics in records: "gaps" between training domains, a "diagnosis" of the
            head, or None.
        keep_best: selection rules; the weights that they can choose are kept.
        averages: of the weights along the run, recorded beside it: names of
            ``catalogue.AVERAGES``.
        micro_batch: images that go through a large network at a time; by default a whole update,
            and fewer if memory runs out.
    """

    device: "torch.device"
    step: StepKind = "compiled"
    place: str = "auto"
    weights: str | Path | None = None
    checkpoint_every: float | None = None
    predictions: bool = False
    log: str | None = None
    keep_best: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()
    micro_batch: int | None = None


# Networks with kernels of their own for a GPU: compiling them gains nothing.
WITH_KERNELS = ("efficientnet-lite0", "resnet18", "resnet50")
# Updates from which on compiling pays: it takes two minutes for a large network and half a minute
# for a small one, and halves the time of an update.
COMPILING_PAYS = {"large": 10_000, "small": 20_000}


def choose_step(
    asked: str, device: "torch.device", scale: str, network: str | None, updates: int
) -> StepKind:
    """Return the kind of step: the one that was asked for, or for "auto" the one to be done first.

    Args:
        scale: of the data set's images, "large" or "small".
        network: its name; None for the default of the data.
        updates: those that one process will make.
    """
    if asked != "auto":
        return cast(StepKind, asked)
    if device.type != "cuda":
        return "eager"
    kernels = scale == "large" and (network or "resnet50") in WITH_KERNELS
    return "graph" if kernels or updates < COMPILING_PAYS[scale] else "compiled"


def be_deterministic() -> None:
    """Let this process use only kernels whose results do not depend on the order of threads."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


@contextmanager
def one_thread() -> Iterator[None]:
    """Run every torch operation inside on one core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processor() -> str:
    """Return the name of this machine's processor."""
    with suppress(OSError, ValueError):
        found = re.search(
            r"^model name\s*:\s*(\S.*)$", read_text(PROCESSORS, JSON_BYTES), re.MULTILINE
        )
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def usable_gpus() -> list[str]:
    """Return the names of the GPUs that torch can use, in its order."""
    import torch

    # Names are properties: to read them takes none of a GPU's memory.
    with suppress(RuntimeError):
        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return []


def installed_gpus() -> list[str]:
    """Return the names of the GPUs that the driver lists, without torch."""
    names = []
    for path in sorted(NVIDIA.glob("*/information")):
        with suppress(OSError, ValueError):
            found = re.search(r"^Model:\s*(\S.*)$", read_text(path, JSON_BYTES), re.MULTILINE)
            names += [found[1].strip()] if found else []
    return names


def usable_devices() -> tuple[str, ...]:
    """Return the kinds of devices that torch can use here; MPS is untried."""
    import torch

    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ("cpu", *(kind for kind, there in found.items() if there))


def hardware_of(about: Mapping[str, Any]) -> str:
    """Return the GPU or processor in the result of ``about_machine``; "" if it is not known."""
    device = str(about.get("device", ""))
    # Of Apple's GPUs, the name of the processor says which it is.
    return str(about.get("processor", device)) if device in ("cpu", "mps") else device


def hardware_for(device: str) -> tuple[str, ...]:
    """Return the hardware that runs are timed on with this ``--device``."""
    gpus = [] if device == "cpu" else usable_gpus()
    return tuple(dict.fromkeys(gpus)) if gpus else (processor(),)


def installed_hardware() -> tuple[str, ...]:
    """Return the names of all hardware of this machine, GPUs first, without torch."""
    return *dict.fromkeys(installed_gpus()), processor()


def about_machine(machine: Machine) -> dict[str, Any]:
    """Return everything that the time of a run depends on, except the run."""
    import torch

    if machine.device.type == "cuda":
        device = {"device": torch.cuda.get_device_name(machine.device)}
    else:
        device = {"device": machine.device.type, "processor": processor()}
    return device | {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def worker_device(device: "torch.device", worker: int) -> "torch.device":
    """Return the device of a worker, and make it the default of its process.

    Workers take the GPUs in turn; a GPU that is named by its number is shared by all of them.
    """
    import torch

    if device.type != "cuda":
        return device
    if device.index is None:
        device = torch.device("cuda", worker % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def count_devices(device: "torch.device", workers: int) -> int:
    """Return how many different devices these workers use."""
    import torch

    several = device.type == "cuda" and device.index is None
    return min(workers, torch.cuda.device_count()) if several else 1


def device_id(device: "torch.device") -> str:
    """Return a name that no other device of this machine has, under whatever number it is seen."""
    import torch

    if device.type != "cuda":
        return device.type
    return str(torch.cuda.get_device_properties(device).uuid)
