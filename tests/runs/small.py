"""A small run: three domains of coloured squares, dozens of updates; and one of tiny images."""

from pathlib import Path
from typing import Any

import torch

from shoal.algorithms import find
from shoal.algorithms.hparams import draw
from shoal.datasets import Domain, DomainDataset
from shoal.randomness import stream
from shoal.results.records import RunResult
from shoal.runs.execute import execute
from shoal.runs.folder import open_run_folder
from shoal.runs.machine import Machine
from shoal.runs.run import Protocol, Run

CPU = torch.device("cpu")


def squares(
    sizes: tuple[int, ...] = (40, 50, 30), name: str = "squares", side: int = 28
) -> DomainDataset:
    """Return domains whose brightness differs; the class is where the square lies."""
    domains, unit = [], side // 7
    for number, size in enumerate(sizes):
        draws = stream(name, number)
        labels = torch.randint(2, (size,), generator=draws)
        images = torch.randint(40 + 30 * number, (size, 1, side, side), generator=draws)
        for image, label in zip(images, labels, strict=True):
            left = unit + 3 * unit * int(label)
            image[0, unit : 3 * unit, left : left + 2 * unit] += 120
        domains.append(Domain("abcdef"[number], labels, images.to(torch.uint8)))
    return DomainDataset(name, ("left", "right"), tuple(domains))


def tiny() -> DomainDataset:
    """Return squares of 8 × 8 pixels, on which an update takes milliseconds."""
    return squares(name="tiny", side=8)


def small_run(
    algorithm: str = "fishr", dataset: DomainDataset | None = None, **changes: Any
) -> Run:
    """Return a run on ``squares``; ``changes`` are of the run, its protocol or hyperparameters."""
    kind = find(algorithm)
    hparams = vars(draw(kind.Hparams, "small", 0, 0)) | {"batch_size": 4}
    if "warmup_steps" in hparams:
        hparams["warmup_steps"] = 6
    hparams |= {key: changes.pop(key) for key in list(changes) if key in hparams}
    known = {key: changes.pop(key) for key in list(changes) if key in Protocol.__annotations__}
    protocol = Protocol(**{"steps": 23, "record_every": 5} | known)
    dataset = dataset or squares()
    given = {"test_domains": ("c",)} | changes
    return Run(
        dataset=dataset.name,
        fingerprint=dataset.fingerprint,
        algorithm=algorithm,
        hparams=hparams,
        protocol=protocol,
        **given,  # type: ignore[arg-type]
    )


def tiny_run(algorithm: str = "fishr", **changes: Any) -> Run:
    """Return a run on ``tiny``, as ``small_run`` does."""
    return small_run(algorithm, tiny(), **{"network": "mnist-cnn", "steps": 7} | changes)


def carry_out(
    path: Path,
    run: Run,
    every: float | None = None,
    dataset: DomainDataset | None = None,
    **more: Any,
) -> RunResult:
    """Carry the run out in ``path``, on a CPU."""
    machine = Machine(device=CPU, step="eager", checkpoint_every=every, **more.pop("machine", {}))
    dataset = dataset or {"squares": squares, "tiny": tiny}[run.dataset]()
    with open_run_folder(path, run) as folder:
        return execute(run, find(run.algorithm), dataset, None, folder, machine, **more)
