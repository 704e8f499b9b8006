"""Several trainings at once on one GPU: captured updates of ERM in so many processes.

EfficientNet-Lite0 and the paper's augmentation, 3 × 32 random images of PACS' size for each. Start
NVIDIA's multi-process service before (``nvidia-cuda-mps-control -d``); without it a GPU runs the
processes in turns.
"""

import multiprocessing
import subprocess
import time
from typing import Any

import torch

from shoal.training.step import Step

from .kernels import STEP, prepare_run, random_images
from .recording import options, write

NETWORK, PRECISION = "efficientnet-lite0", "bf16"
UPDATES = 160
# Seconds until a process that is ready gives up on one that failed.
WAIT = 120


def train(number: int, barrier: Any, times: Any) -> None:
    """Write the seconds of the updates, made while all other processes make theirs."""
    device = torch.device("cuda")
    with random_images() as (dataset, cache):
        _, update = prepare_run(dataset, cache, NETWORK, PRECISION, device)
        step = Step(update, STEP)
        step(0)
        step.wait()
        barrier.wait(timeout=WAIT)
        begin = time.perf_counter()
        for k in range(UPDATES):
            step(1 + k)
        step.wait()
        times[number] = time.perf_counter() - begin


def measure(processes: int) -> dict[str, Any]:
    """Return the time of an update over all processes, and of each process."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    times: Any = context.Array("d", processes)
    workers = [
        context.Process(target=train, args=(number, barrier, times)) for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit(f"one of {processes} processes failed; see above")
    each = 1000 * max(times) / UPDATES
    return {
        "processes": processes,
        "update_ms": round(each / processes, 3),
        "update_ms_of_each": round(each, 3),
    }


def service_runs() -> bool:
    """Return whether the multi-process service answers."""
    try:
        asked = subprocess.run(
            ["nvidia-cuda-mps-control"],
            input="get_server_list",
            text=True,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return False
    return asked.returncode == 0


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 3, 5])
    asked = parser.parse_args()
    rows = []
    for number in asked.processes:
        rows.append(measure(number))
        print(rows[-1], flush=True)
    numbers = {
        "network": NETWORK,
        "precision": PRECISION,
        "images": 96,
        "multi_process_service": service_runs(),
        "rows": rows,
    }
    print(write("sharing_efficientnet-lite0", asked, numbers))


if __name__ == "__main__":
    main()
