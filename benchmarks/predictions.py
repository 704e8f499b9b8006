"""``shoal.load(...).predict``: images per second after loading, including reading the files."""

import os
import time
from pathlib import Path

import torch

import shoal

from .recording import options, write


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--model", type=Path, required=True, help="the folder of a fit")
    parser.add_argument("--data", type=Path, required=True, help="a folder with images")
    parser.add_argument("--images", type=int, default=1000)
    asked = parser.parse_args()
    files = sorted(path for path in asked.data.rglob("*") if path.is_file())
    chosen = [files[k * len(files) // asked.images] for k in range(asked.images)]
    begin = time.perf_counter()
    model = shoal.load(asked.model)
    loaded, cpu = time.perf_counter(), time.process_time()
    found = model.predict(chosen)
    seconds, cpu = time.perf_counter() - loaded, time.process_time() - cpu
    right = sum(one.label == path.parent.name for one, path in zip(found, chosen, strict=True))
    numbers = {
        "images": len(chosen),
        "loading_s": round(loaded - begin, 2),
        "seconds": round(seconds, 2),
        "processor_seconds": round(cpu, 2),  # of all cores; the rest of the time is waiting
        "images_per_second": round(len(chosen) / seconds, 1),
        "unreadable": sum(one.error is not None for one in found),
        "right": right,
        "processors": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 1),  # of other processes
    }
    print(numbers)
    print(write("predictions", asked, numbers))


if __name__ == "__main__":
    main()
