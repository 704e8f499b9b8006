"""Restarts of Colored MNIST: records and checkpoints on disk, so that a table can be resumed."""

import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ..choices import choose
from ..documents import damage_named, read_json, read_object
from ..reference import published_rows
from ..storage import write_json
from ..tensor_files import load_tensors, save_tensors
from .colored_mnist import METHODS, TABLES, Setup, Training

# Seconds between checkpoints of a restart.
CHECKPOINT_EVERY = 60.0

# The paper's covariance on ω is the released form; the full covariance is ours alone.
PAPER_ROWS = {"covariance-omega-released": "covariance-omega", "covariance-omega": "none"}

Record = dict[str, Any]
# Its accuracies.
COLUMNS = ("train", "test", "gray")


class RestartProgress(Protocol):
    """A function that follows the training: a method, its restart, updates done and in total."""

    def __call__(self, method: str, restart: int, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class RestartFolder:
    """A folder with the records and checkpoints of one setup."""

    path: Path

    @staticmethod
    def open(path: Path, setup: Setup) -> "RestartFolder":
        """Open or create the folder; raise if it holds results of another setup."""
        wanted = {key: value for key, value in setup.as_json().items() if key != "flip"}
        file = path / "setup.json"
        if file.exists():
            found = read_json(file)
            if found != wanted:
                raise ValueError(
                    f"{path} holds results of another setup: {found}, not {wanted}; "
                    "choose another --out"
                )
        else:
            write_json(file, wanted)
        return RestartFolder(path)

    def record(self, method: str, flip: float, restart: int) -> Path:
        return self.path / "records" / f"{method}-flip{flip:g}-{restart:02d}.json"

    def checkpoint(self, method: str, flip: float, restart: int) -> Path:
        return self.path / "checkpoints" / f"{method}-flip{flip:g}-{restart:02d}.pt"

    def records(self, method: str, flip: float, restarts: int) -> list[Record]:
        files = [self.record(method, flip, restart) for restart in range(restarts)]
        return [_read(file) for file in files if file.exists()]


def _read(file: Path) -> Record:
    found = read_object(file, COLUMNS)
    with damage_named(file):
        return found | {name: float(found[name]) for name in COLUMNS}


def run(
    methods: Sequence[str],
    restarts: int,
    setup: Setup,
    device: torch.device,
    folder: RestartFolder,
    progress: RestartProgress,
) -> None:
    """Train every restart of every method that has no record yet."""
    for method in methods:
        choose("method", method, METHODS)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if setup.tf32 else "highest")
    try:
        for method in methods:
            _run_method(method, restarts, setup, device, folder, progress)
    finally:
        torch.set_float32_matmul_precision(before)


def _run_method(
    method: str,
    restarts: int,
    setup: Setup,
    device: torch.device,
    folder: RestartFolder,
    progress: RestartProgress,
) -> None:
    todo = []
    for restart in range(restarts):
        if folder.record(method, setup.flip, restart).exists():
            progress(method, restart, setup.updates, setup.updates)
        else:
            todo.append(restart)
    width = min(side_by_side(method, device), len(todo))
    trainings = [Training(METHODS[method], setup, device) for _ in range(width)]
    for start in range(0, len(todo), max(width, 1)):
        together = todo[start : start + width]
        _run_together(method, trainings[: len(together)], together, folder, progress)


def side_by_side(method: str, device: torch.device) -> int:
    """Return how many restarts run at once: a GPU hides the memory traffic of one under others."""
    full_covariance = METHODS[method].statistic == "covariance" and METHODS[method].weights != "ω"
    return 5 if device.type == "cuda" and not full_covariance else 1


def _run_together(
    method: str,
    trainings: Sequence[Training],
    restarts: Sequence[int],
    folder: RestartFolder,
    progress: RestartProgress,
) -> None:
    setup, device = trainings[0].setup, trainings[0].device
    begin = saved = time.perf_counter()
    checkpoints = [folder.checkpoint(method, setup.flip, restart) for restart in restarts]
    for training, restart, checkpoint in zip(trainings, restarts, checkpoints, strict=True):
        training.start(restart)
        if checkpoint.exists():
            with damage_named(checkpoint, "delete it to start this restart again"):
                training.resume(load_tensors(checkpoint))
    try:
        while any(training.done < setup.updates for training in trainings):
            for training, restart in zip(trainings, restarts, strict=True):
                if training.done < setup.updates:
                    training.step()
                    progress(method, restart, training.done, setup.updates)
            if time.perf_counter() - saved > CHECKPOINT_EVERY:
                _save(trainings, checkpoints)
                saved = time.perf_counter()
    except KeyboardInterrupt:
        _save(trainings, checkpoints)
        raise
    accuracies = [training.accuracies() for training in trainings]
    seconds = (time.perf_counter() - begin) / len(trainings)
    for found, restart, checkpoint in zip(accuracies, restarts, checkpoints, strict=True):
        record = {
            "method": method,
            "restart": restart,
            "flip": setup.flip,
            **found,
            "seconds": round(seconds, 3),
            "precision": "tf32" if setup.tf32 else "float32",
            "device": device_name(device),
            "torch": torch.__version__,
        }
        write_json(folder.record(method, setup.flip, restart), record)
        checkpoint.unlink(missing_ok=True)


def _save(trainings: Sequence[Training], checkpoints: Sequence[Path]) -> None:
    for training, checkpoint in zip(trainings, checkpoints, strict=True):
        if training.whole:  # an interrupt inside a step leaves the checkpoint before it
            save_tensors(checkpoint, training.state())


def device_name(device: torch.device) -> str:
    """Return the name of the device, for a record."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def table(label: str, restarts: int, flip: float, folder: RestartFolder) -> list[dict[str, Any]]:
    """Return the rows of a table: our mean and population deviation, in %, and the paper's."""
    paper = published_rows(label, flip)
    rows = []
    for method in TABLES[label]:
        records = folder.records(method, flip, restarts)
        row: dict[str, Any] = {"method": method, "name": METHODS[method].name}
        row["cells"] = {column: _cell(records, column) for column in COLUMNS}
        cell = PAPER_ROWS.get(method, method)
        if cell in paper:
            row["paper"] = paper[cell]
        rows.append(row)
    return rows


def _cell(records: list[Record], column: str) -> dict[str, float] | None:
    if not records:
        return None
    values = [100 * record[column] for record in records]
    return {
        "mean": statistics.fmean(values),
        "std": statistics.pstdev(values),
        "count": len(values),
    }


def tables_of(methods: Sequence[str], flip: float) -> list[str]:
    """Return the paper's tables with this share of flipped labels that have any of the methods."""
    other = "table:cmnist_0" if flip else "table:cmnist_25"
    return [label for label, rows in TABLES.items() if label != other and set(rows) & set(methods)]


# Methods of the analyses by title: Fishr here uses the classifier ω alone.
SHOWN = {"ERM": "erm", "Fishr": "fishr-omega"}


def describe_models(result: Mapping[str, Any]) -> str:
    """Return a sentence with the sizes of an analysis's data and models, and its device."""
    setup = result["setup"]
    return (
        f"{setup['examples']:,} examples of each domain, {setup['hidden']} units, "
        f"{setup['updates']} updates. {result['device']}."
    )


def train_or_load(
    name: str, setup: Setup, device: torch.device, folder: RestartFolder, progress: RestartProgress
) -> Training:
    """Return restart 0 of ERM or Fishr after its last update; load it if the folder has it."""
    key = SHOWN[name]
    training = Training(METHODS[key], setup, device)
    saved = folder.checkpoint(f"trained-{key}", setup.flip, 0)
    if saved.exists():
        with damage_named(saved, "delete it to start again"):
            training.resume(load_tensors(saved))
    while training.done < setup.updates:
        training.step()
        progress(name, 0, training.done, setup.updates)
    if not saved.exists():
        save_tensors(saved, training.state())
    training.wait()
    return training


@torch.no_grad()
def head_inputs(training: Training) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (z, 1) of each training domain, ``[2, n, p + 1]``, and logits and labels ``[2, n]``.

    In float64: the analyses are of small differences between large numbers.
    """
    features = training.model.features(training.inputs).double()
    z = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    weight, bias = training.model.classifier.parameters()
    weights = torch.cat([weight[0], bias]).double()
    shape = (2, training.setup.examples)
    return z.view(*shape, -1), (z @ weights).view(shape), training.labels.double().view(shape)
