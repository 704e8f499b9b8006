"""Time full-network Hessian diagonals of the two-logit Colored MNIST network, 2 × 25,000 examples.

    python -m benchmarks.hessian --out benchmarks/results/hessian.json

In float32, without reduced-precision products; the network of the paper's Hessian analyses,
392-390-390-2 with softmax. BackPACK is timed beside it where it is installed, on the examples
that ``--backpack`` names.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.head_overhead import describe_machine
from shoal.curvature import hessian_diagonal, network_diagonals
from shoal.experiments.colored_mnist import Setup, domains_of
from shoal.networks import MLP
from shoal.randomness import stream

DOMAINS = ("90%", "80%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=25_000, help="of each domain")
    parser.add_argument("--backpack", type=int, default=0, help="examples of each for BackPACK")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = MLP(392, 390, 2, stream("benchmarks", "hessian")).to(device)
    data = examples(options.examples, device)
    found = {
        "machine": describe_machine(device),
        "examples": 2 * options.examples,
        "weights": sum(p.numel() for p in model.parameters()),
        "hessian": timed(partial(hessian_diagonal, model, *data), options.repeats, device),
        "all_diagonals": timed(partial(network_diagonals, model, *data), options.repeats, device),
    }
    if options.backpack:
        fewer = examples(options.backpack, device)
        road = partial(hessian_diagonal, model, *fewer, method="backpack", chunk_size=500)
        found["backpack"] = {"examples": 2 * options.backpack}
        found["backpack"] |= timed(road, 1, device)
    text = json.dumps(found, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def examples(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    parts = [domains_of(Setup(examples=size), 0)[name] for name in DOMAINS]
    inputs = torch.cat([part.inputs for part in parts]).to(device)
    labels = torch.cat([part.labels for part in parts])[:, 0].long().to(device)
    return inputs, labels, torch.arange(2).repeat_interleave(size)


def timed(call: Callable[[], object], repeats: int, device: torch.device) -> dict[str, object]:
    """Return seconds of the first call and of each later one, and the memory at its peak."""
    seconds = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - begin, 5))
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {"first_seconds": seconds[0], "seconds": seconds[1:], "peak_GiB": peak}


if __name__ == "__main__":
    main()
