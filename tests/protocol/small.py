"""A small run: three domains of coloured squares, a network of a few weights, dozens of updates."""

from pathlib import Path
from typing import Any

import torch

from shoal.algorithms import find
from shoal.algorithms.hparams import draw
from shoal.datasets import Domain, DomainDataset
from shoal.protocol.execute import Machine, Result, execute
from shoal.protocol.folder import opened
from shoal.protocol.run import Protocol, Run
from shoal.randomness import stream

CPU = torch.device("cpu")


def squares(sizes: tuple[int, ...] = (40, 50, 30), name: str = "squares") -> DomainDataset:
    """Return domains whose brightness differs; the class is where the square lies."""
    domains = []
    for number, size in enumerate(sizes):
        draws = stream(name, number)
        labels = torch.randint(2, (size,), generator=draws)
        images = torch.randint(40 + 30 * number, (size, 1, 28, 28), generator=draws)
        for image, label in zip(images, labels, strict=True):
            image[0, 4:12, 4 + 12 * int(label) : 12 + 12 * int(label)] += 120
        domains.append(Domain("abcdef"[number], labels, images.to(torch.uint8)))
    return DomainDataset(name, ("left", "right"), tuple(domains))


def small_run(algorithm: str = "fishr", **changes: Any) -> Run:
    """Return a run on ``squares``; ``changes`` are of the run, its protocol or hyperparameters."""
    kind = find(algorithm)
    hparams = vars(draw(kind.Hparams, "small", 0, 0)) | {"batch_size": 4}
    if "warmup_steps" in hparams:
        hparams["warmup_steps"] = 6
    hparams |= {key: changes.pop(key) for key in list(changes) if key in hparams}
    known = {key: changes.pop(key) for key in list(changes) if key in Protocol.__annotations__}
    protocol = Protocol(**{"steps": 23, "record_every": 5} | known)
    dataset = squares()
    given = {"test_domains": ("c",)} | changes
    return Run(
        dataset.name,
        dataset.fingerprint,
        algorithm,
        hparams=hparams,
        protocol=protocol,
        **given,  # type: ignore[arg-type]
    )


def carry_out(path: Path, run: Run, every: float | None = None, **more: Any) -> Result:
    """Carry the run out in ``path``, on a CPU."""
    machine = Machine(CPU, "eager", checkpoint_every=every, **more.pop("machine", {}))
    with opened(path, run) as folder:
        return execute(run, find(run.algorithm), squares(), None, folder, machine, **more)
