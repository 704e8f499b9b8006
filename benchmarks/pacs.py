"""PACS with a large network: throughput of training on real augmented images, and whole runs.

Every given method and test domain trains for ``--steps`` updates; decoding the images is not part
of a run. Without ``--weights imagenet`` a ResNet-50 starts from random weights; its speed does not
depend on them.
"""

import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from shoal.algorithms import find
from shoal.algorithms.hparams import defaults
from shoal.datasets import DATASETS
from shoal.datasets.cache import build
from shoal.results.records import timing_of
from shoal.runs.execute import execute
from shoal.runs.folder import open_run_folder
from shoal.runs.machine import Machine
from shoal.runs.run import Protocol, Run

from .recording import options, write


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds PACS/")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--weights", default=None)
    parser.add_argument("--algorithms", nargs="+", default=["erm", "fishr"])
    parser.add_argument("--test-domains", nargs="+", default=None)
    parser.add_argument("--steps", type=int, default=5001)
    parser.add_argument("--record-every", type=int, default=300)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--step", default="compiled")
    parser.add_argument("--place", default="auto")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    begin = time.perf_counter()
    data = DATASETS["pacs"](asked.data, 0)
    cache = build(data, asked.cache)
    print(f"decoded in {time.perf_counter() - begin:.1f} s", flush=True)
    rows: list[dict[str, Any]] = []
    for test_domain in asked.test_domains or data.names:
        for algorithm in asked.algorithms:
            kind = find(algorithm)
            hparams = asdict(defaults(kind.Hparams, "large"))
            protocol = Protocol(
                steps=asked.steps,
                record_every=asked.record_every,
                network=asked.network,
                weights=asked.weights,
                precision=asked.precision,
            )
            run = Run(
                dataset="pacs",
                fingerprint=data.fingerprint,
                algorithm=algorithm,
                test_domains=(test_domain,),
                trial=0,
                draw=0,
                hparams=hparams,
                protocol=protocol,
            )
            machine = Machine(
                device=device, step=asked.step, place=asked.place, weights=asked.weights
            )
            with (
                TemporaryDirectory() as scratch,
                open_run_folder(Path(scratch) / "run", run) as folder,
            ):
                begin = time.perf_counter()
                result = execute(run, kind, data, cache, folder, machine)
                seconds = time.perf_counter() - begin
                timing = timing_of(result)
            assert timing is not None
            images = 3 * hparams["batch_size"]
            accuracy = result.records[-1].accuracy
            row = {
                "algorithm": algorithm,
                "test_domain": test_domain,
                "test_accuracy": round(accuracy[test_domain]["kept"], 4),
                "images_per_second": round(images * timing.updates / timing.updating),
                "update_ms": round(1000 * timing.updating / timing.updates, 2),
                "updates_s": round(timing.updating, 1),
                "evaluations_s": round(timing.evaluating, 1),
                "compile_s": round(timing.preparing, 1),
                "run_s": round(seconds, 1),
                "peak_gb": _peak(device),
                "accuracy": accuracy,
            }
            rows.append(row)
            print({key: value for key, value in row.items() if key != "accuracy"}, flush=True)
            write(f"pacs_{asked.network}", asked, {"rows": rows})


def _peak(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    return round(peak, 2)


if __name__ == "__main__":
    main()
