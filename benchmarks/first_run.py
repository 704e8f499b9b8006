"""A single run: the whole command ``shoal train`` in a new process, everything counted.

    python -m benchmarks.first_run --work DIR --name colored-mnist -- --dataset colored-mnist

The first time in an empty cache, so that images are decoded and code is compiled; the second time
with both at hand.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .recording import options, write

TIMES = ("nothing at hand", "at hand")


def measure(out: Path, cache: Path, command: list[str]) -> dict[str, Any]:
    """Return the seconds of the command, and those that its run has measured."""
    environment = os.environ | {
        "SHOAL_CACHE": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    words = [sys.executable, "-m", "shoal", "train", *command, "--out", str(out)]
    begin = time.perf_counter()
    subprocess.run(words, env=environment, check=True)
    seconds = time.perf_counter() - begin
    timing = json.loads((out / "timing.json").read_text())
    return {"seconds": round(seconds, 1), "timing": timing}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--name", required=True, help="of the result")
    parser.add_argument("train", nargs="+", help="options of shoal train, after --")
    asked = parser.parse_args()
    found = {
        name: measure(asked.work / f"run-{number}", asked.work / "cache", asked.train)
        for number, name in enumerate(TIMES)
    }
    print(write(f"first_run_{asked.name}", asked, found))


if __name__ == "__main__":
    main()
