"""Hessian diagonals of all weights of the two-logit Colored MNIST network, 2 × 25,000 examples.

The network is that of the paper's Hessian analyses: 392-390-390-2 with softmax, in float32 without
reduced-precision products, on a GPU if there is one. ``--backpack N`` also times BackPACK, on the
first N examples of each domain, 500 at a time.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.curvature import hessian_diagonal, network_diagonals
from shoal.experiments.colored_mnist import Setup, domains_of
from shoal.networks import MLP
from shoal.randomness import stream

from .recording import options, write

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Data = tuple[Tensor, Tensor, Tensor]


def examples(size: int) -> Data:
    """Return inputs, labels and domains, ``size`` of each domain."""
    parts = [domains_of(Setup(examples=size), 0)[name].to(DEVICE) for name in ("90%", "80%")]
    inputs = torch.cat([part.inputs for part in parts])
    labels = torch.cat([part.labels for part in parts])[:, 0].long()
    return inputs, labels, torch.arange(2).repeat_interleave(size)


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of a call, until the device has finished."""
    begin = time.perf_counter()
    call()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure(call: Callable[[], object], repeats: int) -> dict[str, Any]:
    """Return the seconds of the first call, and of the later ones."""
    first = seconds(call)
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    later = [seconds(call) for _ in range(repeats)]
    found: dict[str, Any] = {
        "first_s": round(first, 4),
        "median_s": round(statistics.median(later), 5),
        "min_max_s": [round(min(later), 5), round(max(later), 5)],
    }
    if DEVICE.type == "cuda":
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return found


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--examples", type=int, default=25_000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--backpack", type=int, default=0, metavar="N")
    asked = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    model = MLP(392, 390, 2, stream("benchmarks", "hessian")).to(DEVICE)
    data = examples(asked.examples)
    numbers: dict[str, Any] = {
        "examples": 2 * asked.examples,
        "weights": sum(p.numel() for p in model.parameters()),
        "hessian": measure(partial(hessian_diagonal, model, *data), asked.repeats),
        "all diagonals": measure(partial(network_diagonals, model, *data), asked.repeats),
    }
    if asked.backpack:
        fewer = examples(asked.backpack)
        theirs = partial(hessian_diagonal, model, *fewer, method="backpack", chunk_size=500)
        found, expected = theirs(), hessian_diagonal(model, *fewer)
        numbers["backpack"] = {"examples": 2 * asked.backpack} | measure(theirs, 1)
        gap = float((found - expected).norm() / expected.norm())
        numbers["relative_difference_from_backpack"] = gap
    print(numbers, write("hessian", asked, numbers), sep="\n")


if __name__ == "__main__":
    main()
