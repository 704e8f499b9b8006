"""Parity: the difference between captured or compiled updates and eager ones, for every method.

All train on the same batches of Colored MNIST in DomainBed's protocol. Hyperparameters are the
defaults, with shorter warm-ups so that every switch happens within the updates. Reported are the
largest difference of a weight, relative to how far the weights have moved, and of the mean loss.
"""

import os
from dataclasses import asdict, fields
from typing import Any

import torch

from shoal.algorithms import ALGORITHMS, find
from shoal.algorithms.hparams import defaults
from shoal.datasets import DATASETS
from shoal.runs.machine import Machine
from shoal.runs.prepare import prepare
from shoal.runs.run import Protocol, Run
from shoal.training.step import Step

from .recording import options, write


def trained(run: Run, data: Any, kind: str, device: torch.device, updates: int) -> dict[str, Any]:
    """Return the weights before and after the updates, and the mean loss."""
    machine = Machine(device=device, step=kind)  # type: ignore[arg-type]
    _, update = prepare(run, find(run.algorithm), data, None, machine)
    before = [weight.detach().clone() for weight in update.algorithm.model.parameters()]
    step = Step(update, machine.step)
    for number in range(updates):
        step(number)
    step.wait()
    after = [weight.detach().clone() for weight in update.algorithm.model.parameters()]
    return {
        "kind": step.kind,
        "before": before,
        "after": after,
        "loss": update.means(updates)["loss"],
    }


def compare(mine: dict[str, Any], eager: dict[str, Any]) -> dict[str, float]:
    """Return the largest differences."""
    pairs = list(zip(mine["after"], eager["after"], strict=True))
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    moved = zip(eager["before"], eager["after"], strict=True)
    far = max(float((a - b).abs().max()) for a, b in moved)
    return {
        "weights": float(f"{apart / far if far else apart:.2g}"),
        "loss": float(f"{abs(mine['loss'] - eager['loss']) / abs(eager['loss']):.2g}"),
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--methods", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=["graph"])
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False
    data = DATASETS["colored-mnist"](None, 0)
    numbers: dict[str, Any] = {"updates": asked.updates}
    for name in asked.methods:
        hparams = asdict(defaults(find(name).Hparams, "small"))
        known = {field.name for field in fields(find(name).Hparams)}
        hparams |= {"warmup_steps": asked.updates // 2} if "warmup_steps" in known else {}
        protocol = Protocol(steps=asked.updates)
        run = Run(
            dataset=data.name,
            fingerprint=data.fingerprint,
            algorithm=name,
            test_domains=("-90%",),
            trial=0,
            draw=0,
            hparams=hparams,
            protocol=protocol,
        )
        eager = trained(run, data, "eager", device, asked.updates)
        for kind in asked.kinds:
            mine = trained(run, data, kind, device, asked.updates)
            numbers[f"{name}, {mine['kind']}"] = compare(mine, eager)
            print(name, mine["kind"], numbers[f"{name}, {mine['kind']}"], flush=True)
        write("parity", asked, numbers)


if __name__ == "__main__":
    main()
