"""Runs of the protocol on MNIST, from start to finish, with default hyperparameters.

``run_s`` is the time of a whole run: generating and placing the data, updates, evaluations,
records, checkpoints and the model. Two times are reported separately: ``capture_s`` for compiling
and capturing the step, and ``start_s`` for a process before its first run: the device's context,
and the import of torch's compiler, which its optimisers need as well.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from shoal.algorithms import find
from shoal.algorithms.hparams import defaults
from shoal.catalogue import record_every, scale_of
from shoal.datasets import DATASETS
from shoal.results.records import timing_of
from shoal.runs.execute import execute
from shoal.runs.folder import open_run_folder
from shoal.runs.machine import Machine
from shoal.runs.run import Protocol, Run

from .recording import options, write


def measure(
    dataset: str, algorithm: str, test_domain: str, step: str, changes: dict[str, Any]
) -> dict[str, Any]:
    """Return accuracies and seconds of one run."""
    begin = time.perf_counter()
    data = DATASETS[dataset](None, 0)
    scale = scale_of(dataset)
    kind = find(algorithm)
    protocol = replace(Protocol(record_every=record_every(dataset)), **changes)
    hparams = asdict(defaults(kind.Hparams, scale))
    run = Run(
        dataset=dataset,
        fingerprint=data.fingerprint,
        algorithm=algorithm,
        test_domains=(test_domain,),
        trial=0,
        draw=0,
        hparams=hparams,
        protocol=protocol,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = time.perf_counter() - begin
    with TemporaryDirectory() as scratch, open_run_folder(Path(scratch) / "run", run) as folder:
        machine = Machine(device=device, step=step)  # type: ignore[arg-type]
        result = execute(run, kind, data, None, folder, machine)
        total = time.perf_counter() - begin
        timing = timing_of(result)
    assert timing is not None
    found = result.records[-1].accuracy
    return {
        "dataset": dataset,
        "algorithm": algorithm,
        "test_domain": test_domain,
        "step": step,
        "updates": timing.updates,
        "records": len(result.records),
        "loading_s": round(loaded, 2),
        "capture_s": round(timing.preparing, 2),
        "updates_s": round(timing.updating, 2),
        "evaluations_s": round(timing.evaluating, 2),
        "run_s": round(total - timing.preparing, 2),
        "update_ms": round(1000 * timing.updating / timing.updates, 3),
        "test_accuracy": round(found[test_domain]["kept"], 4),
        "accuracy": found,
    }


def averages(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean test accuracy of each method and kind of step, over its test domains."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(f"{row['algorithm']}, {row['step']}", []).append(row["test_accuracy"])
    return {name: round(sum(values) / len(values), 4) for name, values in found.items()}


def start(device: torch.device) -> float:
    """Return the seconds until a first small network has run its first update."""
    begin = time.perf_counter()
    network = torch.nn.Conv2d(1, 1, 3).to(device)
    optimiser = torch.optim.Adam(network.parameters())
    network(torch.zeros(1, 1, 8, 8, device=device)).sum().backward()
    optimiser.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return round(time.perf_counter() - begin, 2)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--dataset", default="colored-mnist")
    parser.add_argument("--algorithms", nargs="+", default=["erm", "fishr"])
    parser.add_argument("--test-domains", nargs="+", default=["-90%"])
    parser.add_argument("--steps", type=int, default=5001)
    parser.add_argument("--step", nargs="+", default=["compiled"])
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    started = start(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    rows: list[dict[str, Any]] = []
    for step in asked.step:
        for test_domain in asked.test_domains:
            for algorithm in asked.algorithms:
                changes = {"steps": asked.steps, "precision": asked.precision}
                row = measure(asked.dataset, algorithm, test_domain, step, changes)
                rows.append(row)
                print({key: value for key, value in row.items() if key != "accuracy"}, flush=True)
                found = {"start_s": started, "averages": averages(rows), "rows": rows}
                write(f"engine_{asked.dataset}", asked, found)


if __name__ == "__main__":
    main()
