"""A world of squares for workers, and sweeps over it that end in seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from shoal.algorithms import find
from shoal.runs.machine import Machine
from shoal.runs.run import Protocol, Run
from shoal.sweeps.plan import (
    LoadedData,
    MethodChoice,
    Sweep,
    folder_of,
    read_plan,
    runs_of,
    write_plan,
)
from tests.runs.small import squares

COMPARED = ("records.jsonl", "model.safetensors", "run.json")


@dataclass(frozen=True)
class Squares:
    """Methods of the registry, and squares whatever the data set is called."""

    def method(self, name: str) -> MethodChoice:
        return find(name), {}

    def data(self, name: str, trial: int) -> LoadedData:
        return squares(name=name), None

    def machine(self) -> Machine:
        torch.set_num_threads(1)
        return Machine(device=torch.device("cpu"), step="eager", checkpoint_every=0.0)


@dataclass(frozen=True)
class Tight(Squares):
    """Squares for which there is memory the second time only."""

    marks: Path

    def data(self, name: str, trial: int) -> LoadedData:
        try:
            (self.marks / "tried").touch(exist_ok=False)  # of two at once, one is the first
        except FileExistsError:
            return super().data(name, trial)
        raise torch.OutOfMemoryError("CUDA out of memory")


@dataclass(frozen=True)
class Shared(Tight):
    """Such squares, which write down how much of a GPU Ray gave to each run that was begun."""

    def method(self, name: str) -> MethodChoice:
        import ray

        with (self.marks / "gpus").open("a") as file:
            file.write(f"{ray.get_runtime_context().get_assigned_resources()['GPU']}\n")
        return super().method(name)


@dataclass(frozen=True)
class Full(Squares):
    """Squares on a machine with two GPUs that never have memory.

    They write down which GPU each worker made its own, and which runs were tried.
    """

    marks: Path

    def machine(self) -> Machine:
        pretend_gpus(2, lambda device: self._mark("devices", str(device)))
        return Machine(device=torch.device("cuda"), step="eager")

    def data(self, name: str, trial: int) -> LoadedData:
        self._mark("tried", name)
        raise torch.OutOfMemoryError("CUDA out of memory")

    def _mark(self, file: str, text: str) -> None:
        with (self.marks / file).open("a") as marks:
            marks.write(f"{text}\n")


def pretend_gpus(count: int, taken: Callable[[torch.device], object]) -> None:
    """Let torch see so many GPUs in this process, and tell which one it makes its own."""
    cuda: Any = torch.cuda
    cuda.device_count = lambda: count
    cuda.set_device = taken
    cuda.synchronize = lambda device: None
    cuda.get_device_properties = lambda device: SimpleNamespace(uuid=f"GPU-{device.index or 0}")


@dataclass(frozen=True)
class Broken(Squares):
    """Squares on a machine that no worker can use."""

    def machine(self) -> Machine:
        raise ValueError("--device cuda was asked for, but torch sees no GPU")


def planned(out: Path, algorithms: tuple[str, ...] = ("erm", "fishr"), steps: int = 3) -> None:
    """Write a plan of twelve runs for every method, or six for one draw."""
    settings = {"batch_size": "4"}
    protocol = Protocol(steps=steps)
    sweep = Sweep(
        algorithms=algorithms,
        datasets=("squares",),
        trials=1,
        draws=2,
        settings=settings,
        protocol=protocol,
    )
    runs = runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    write_plan(out, runs)


def contents(out: Path, runs: Sequence[Run] | None = None) -> dict[str, dict[str, bytes]]:
    """Return the compared files of these runs, or of every run of the plan."""
    return {
        run.identity: {name: (folder_of(out, run) / name).read_bytes() for name in COMPARED}
        for run in (read_plan(out) if runs is None else runs)
    }
