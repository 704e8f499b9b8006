"""The time of table:cmnist_25: six methods with ten restarts each, from start to finish.

With ``--ramp N`` the penalty's weight rises over N updates instead of jumping.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from shoal.experiments.colored_mnist import TABLES, Setup
from shoal.experiments.restarts import RestartFolder, run, table

from .recording import options, write


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--precision", choices=("float32", "tf32"), default="float32")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=None, choices=TABLES["table:cmnist_25"])
    parser.add_argument("--ramp", type=int, default=0, metavar="UPDATES")
    parser.add_argument(
        "--records",
        type=Path,
        default=None,
        help="folder that keeps the records (default: a temporary one)",
    )
    asked = parser.parse_args()
    label = "table:cmnist_25"
    setup = Setup(tf32=asked.precision == "tf32", ramp_updates=asked.ramp)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory() as scratch:
        folder = RestartFolder.open(asked.records or Path(scratch), setup)
        seconds = {}
        begin = time.perf_counter()
        for method in asked.methods or TABLES[label]:
            start = time.perf_counter()
            run([method], asked.restarts, setup, device, folder, lambda *_: None)
            seconds[method] = round(time.perf_counter() - start, 1)
        total = round(time.perf_counter() - begin, 1)
        rows = table(label, asked.restarts, setup.flip, folder)
    numbers = {
        "precision": asked.precision,
        "trainings": asked.restarts * len(seconds),
        "seconds": total,
        "seconds_by_method": seconds,
        "rows": [
            {"method": row["method"], "cells": row["cells"], "paper": row.get("paper")}
            for row in rows
        ],
    }
    ramp = f"_ramp{asked.ramp}" if asked.ramp else ""
    path = write(f"colored_mnist_{asked.precision}{ramp}", asked, numbers)
    print(seconds, f"{total} s in all", path, sep="\n")


if __name__ == "__main__":
    main()
