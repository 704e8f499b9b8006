"""Many images on a CPU: ``fit`` and ``predict`` on 20,000, verifying 100,000 tiny files.

The images are made from a seed: a class is a pattern, a domain a colour. Rates are those of whole
commands; that of ``predict`` counts from its first line of output to its last.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from .recording import options, write

DOMAINS, CLASSES = ("north", "east", "south", "west"), ("dots", "lines", "noise", "plain", "waves")


def make_images(folder: Path, count: int, side: int) -> None:
    """Write ``count`` images into ``folder/domain/class``, equally many of each."""
    generator = np.random.default_rng(0)
    small = max(2, side // 8)
    for domain in DOMAINS:
        for name in CLASSES:
            (folder / domain / name).mkdir(parents=True)
    for number in range(count):
        domain, name = number % len(DOMAINS), number // len(DOMAINS) % len(CLASSES)
        pattern = generator.integers(0, 160, (small, small, 3), dtype=np.uint8)
        pattern[:: name + 1, :, domain % 3] += 90
        image = Image.fromarray(pattern).resize((side, side), Image.Resampling.NEAREST)
        place = folder / DOMAINS[domain] / CLASSES[name] / f"{number:06}.png"
        image.save(place, compress_level=1)


def measure(*words: str, lines: bool = False) -> dict[str, Any]:
    """Return the seconds and memory of a command, and its rate and growth if it prints lines."""
    command = [sys.executable, "-m", "shoal", *words]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    times: list[float] = []
    memory: list[int] = []
    assert process.stdout is not None
    for _ in process.stdout:
        times.append(time.perf_counter())
        if lines and len(times) % 500 == 1:
            memory.append(_kilobytes(process.pid, "VmRSS"))
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    found: dict[str, Any] = {
        "seconds": round(time.perf_counter() - begin, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "megabytes": round(usage.ru_maxrss / 1024),
    }
    if lines:
        quarter = len(memory) // 4
        found |= {
            "lines": len(times),
            "until_first_line": round(times[0] - begin, 1),
            "images_per_second": round((len(times) - 1) / (times[-1] - times[0]), 1),
            "megabytes_at_a_quarter": round(memory[quarter] / 1024),
            "megabytes_at_the_end": round(memory[-1] / 1024),
        }
    return found


def _kilobytes(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name)))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--tiny", type=int, default=100_000)
    parser.add_argument("--fit-images", type=int, default=None, help="default: as --images")
    parser.add_argument("--work", type=Path, help="keep images and model in this folder")
    asked = parser.parse_args()
    with TemporaryDirectory() as scratch:
        work = asked.work or Path(scratch)
        fitted = asked.fit_images or asked.images
        numbers: dict[str, Any] = {"images": asked.images, "tiny": asked.tiny, "fitted": fitted}
        for name, count, side in (
            ("images", asked.images, 64),
            ("fitted", fitted, 64),
            ("tiny", asked.tiny, 8),
        ):
            if not (work / name).exists():
                make_images(work / name, count, side)
        numbers["load_average"] = round(os.getloadavg()[0], 1)
        model, cache = str(work / "model"), str(work / "cache")
        steps = {
            "verify_tiny": ("data", "verify", str(work / "tiny"), "--json"),
            "fit": (
                *("fit", str(work / "fitted"), "--out", model, "--cache", cache, "--only", "erm"),
                *("--train", "head", "--runs", "4", "--steps", "300", "--no-reference"),
            ),
            "predict": ("predict", model, str(work / "images"), "--json"),
        }
        for name, words in steps.items():
            numbers[name] = measure(*words, lines=name == "predict")
            print(name, json.dumps(numbers[name]), flush=True)
    print(write("many_images", asked, numbers))


if __name__ == "__main__":
    main()
