"""Kernels for a GPU: a captured update of large networks with them and without, side by side.

A training step of ERM with the paper's augmentation, on random images of PACS' size. The kernels of
networks, augmentation and random draws are switched off for the comparison, so that the same layers
and operations of torch run instead. The first update of each kind includes everything that has to
be loaded, compiled and captured.
"""

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from shoal import random_kernels
from shoal.algorithms import find
from shoal.algorithms.hparams import defaults
from shoal.catalogue import StepKind
from shoal.datasets import DomainDataset, load_dataset
from shoal.datasets.cache import ImageCache, build
from shoal.networks import gpu_kernels
from shoal.runs.machine import Machine
from shoal.runs.prepare import evaluation_of_run, prepare
from shoal.runs.run import Protocol, Run
from shoal.training import augmentation_kernels
from shoal.training.placement import RunData
from shoal.training.step import Step, Update

from .recording import options, write

NETWORKS = ("efficientnet-lite0", "resnet50")
KERNELS: tuple[Any, ...] = (gpu_kernels, augmentation_kernels, random_kernels)
STEP: StepKind = "graph"
TEST = "d"
SIDE = 227  # as PACS has them
BLOCKS, UPDATES = 5, 40


def write_images(folder: Path, each: int = 12) -> None:
    """Write random images of four domains and seven classes."""
    random = np.random.RandomState(0)
    for domain in ("a", "b", "c", TEST):
        for kind in "stuvwxy":
            place = folder / domain / kind
            place.mkdir(parents=True)
            for number in range(each):
                small = random.randint(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(small).resize((SIDE, SIDE)).save(place / f"{number}.jpg")


@contextmanager
def random_images() -> Iterator[tuple[DomainDataset, ImageCache]]:
    """Yield a data set of random images and its cache."""
    with TemporaryDirectory() as scratch:
        write_images(Path(scratch) / "images")
        dataset = load_dataset(str(Path(scratch) / "images"), Path(scratch), 0)
        yield dataset, build(dataset, Path(scratch) / "cache")


def prepare_run(
    dataset: DomainDataset,
    cache: ImageCache,
    network: str,
    precision: str,
    device: torch.device,
    algorithm: str = "erm",
) -> tuple[RunData, Update]:
    """Return the data of a run, and its method, before the first update."""
    method = find(algorithm)
    run = Run(
        dataset=dataset.name,
        fingerprint="",
        algorithm=algorithm,
        test_domains=(TEST,),
        hparams=asdict(defaults(method.Hparams, "large")),
        protocol=Protocol(network=network, precision=precision),
    )
    return prepare(run, method, dataset, cache, Machine(device=device, step=STEP))


def measure(
    dataset: DomainDataset,
    cache: ImageCache,
    network: str,
    precision: str,
    device: torch.device,
    algorithm: str = "erm",
) -> dict[str, Any]:
    """Return the times of an update and the memory that it takes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    placed, update = prepare_run(dataset, cache, network, precision, device, algorithm)
    evaluate = evaluation_of_run(update, placed.parts, STEP)
    step = Step(update, STEP)
    evaluate.warm_up()
    step(0)
    step.wait()
    first = time.perf_counter() - begin
    times = []
    for block in range(BLOCKS):
        begin = time.perf_counter()
        for number in range(UPDATES):
            step(1 + block * UPDATES + number)
        step.wait()
        times.append(1000 * (time.perf_counter() - begin) / UPDATES)
    return {
        "update_ms": round(statistics.median(times), 3),
        "update_ms_range": [round(min(times), 3), round(max(times), 3)],
        "first_update_s": round(first, 2),
        "peak_gb": round(torch.cuda.max_memory_reserved() / 1e9, 2),
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--precision", default="bf16")
    asked = parser.parse_args()
    device = torch.device("cuda")
    rows = []
    with random_images() as (dataset, cache):
        for network in asked.networks:
            found: dict[str, Any] = {}
            for name in ("with", "without"):
                kept = [module.triton for module in KERNELS]
                if name == "without":
                    for module in KERNELS:
                        module.triton = None
                found[name] = measure(dataset, cache, network, asked.precision, device)
                for module, its in zip(KERNELS, kept, strict=True):
                    module.triton = its
                print(network, name, found[name], flush=True)
            ratio = found["without"]["update_ms"] / found["with"]["update_ms"]
            rows.append({"network": network, "faster": round(ratio, 2), **found})
    print(write("kernels", asked, {"precision": asked.precision, "images": 96, "rows": rows}))


if __name__ == "__main__":
    main()
