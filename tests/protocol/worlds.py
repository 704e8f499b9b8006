"""A world of squares for workers, and sweeps over it that end in seconds."""

from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.algorithms import find
from shoal.protocol.execute import Machine
from shoal.protocol.plan import Data, Method, Sweep, folder_of, read_plan, runs_of, write_plan
from shoal.protocol.run import Protocol
from tests.protocol.small import squares

COMPARED = ("records.jsonl", "model.safetensors", "run.json")


@dataclass(frozen=True)
class Squares:
    """Methods of the registry, and squares whatever the data set is called."""

    def method(self, name: str) -> Method:
        return find(name), {}

    def data(self, name: str, trial: int) -> Data:
        return squares(name=name), None

    def machine(self) -> Machine:
        torch.set_num_threads(1)
        return Machine(torch.device("cpu"), "eager", checkpoint_every=0.0)


def planned(out: Path, algorithms: tuple[str, ...] = ("erm", "fishr"), steps: int = 3) -> None:
    """Write a plan of twelve runs for every method, or six for one draw."""
    settings = {"batch_size": "4"}
    protocol = Protocol(steps=steps)
    sweep = Sweep(algorithms, ("squares",), 1, 2, settings=settings, protocol=protocol)
    runs = runs_of(sweep, Squares().method, lambda name, trial: squares(name=name))
    write_plan(out, runs)


def contents(out: Path) -> dict[str, dict[str, bytes]]:
    """Return the compared files of every run of the plan."""
    return {
        run.identity: {name: (folder_of(out, run) / name).read_bytes() for name in COMPARED}
        for run in read_plan(out)
    }
