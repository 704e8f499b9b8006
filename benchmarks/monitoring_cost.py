"""The cost of monitoring: ``monitor`` beside ``predict`` on the same rows or images.

    python -m benchmarks.monitoring_cost --model DIR --data rows.csv

Both are timed in turn, three times, after loading; the least of each counts.
"""

import time
from pathlib import Path

import shoal

from .recording import options, write

TIMES = 3


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--model", type=Path, required=True, help="the folder of a fit")
    parser.add_argument("--data", type=Path, required=True, help="a table, or a folder of images")
    asked = parser.parse_args()
    model = shoal.load(asked.model)
    seconds: dict[str, list[float]] = {"predict": [], "monitor": []}
    for _ in range(TIMES):
        for name, times in seconds.items():
            begin = time.perf_counter()
            found = getattr(model, name)(asked.data)
            times.append(time.perf_counter() - begin)
    least = {name: min(times) for name, times in seconds.items()}
    numbers = {
        "inputs": found.inputs,
        "kind": "rows" if model.takes_rows else "images",
        "seconds": {name: [round(one, 3) for one in times] for name, times in seconds.items()},
        "ratio": round(least["monitor"] / least["predict"], 3),
    }
    print(numbers)
    print(write(f"monitoring_cost_{numbers['kind']}", asked, numbers))


if __name__ == "__main__":
    main()
