"""Runs killed at random moments: every one must end bit for bit like an undisturbed run.

Small runs of several methods on a CPU: three domains, 23 updates of an MNIST CNN, a new checkpoint
as soon as the last one is written. The moment of every kill is uniform over the length of a run.
Every file of the run's folder is compared, except its times. With ``--averages`` runs have 200
updates on smaller images, average their weights in all ways, and write predictions and logits.
"""

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.runs.killing import averaged_in, content, finish_with_kills, small_in, timed

from .recording import options, write

METHODS = ("erm", "fishr", "dann", "fish", "mldg")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--averages", action="store_true", help="average weights along the runs")
    asked = parser.parse_args()
    work = averaged_in if asked.averages else small_in
    moments = random.Random(0)
    with TemporaryDirectory() as scratch:
        whole: dict[str, Any] = {}
        for method in METHODS:
            path = Path(scratch) / method
            seconds = timed(path, work, method)
            whole[method] = content(path), seconds
        kills, runs, same = 0, 0, 0
        while kills < asked.kills:
            method = METHODS[runs % len(METHODS)]
            expected, seconds = whole[method]
            path = Path(scratch) / f"killed-{runs}"
            kills += finish_with_kills(path, work, method, moments, seconds, limit=8)
            found = content(path)
            same += found == expected
            names = found.keys() | expected.keys()
            if different := [name for name in names if found.get(name) != expected.get(name)]:
                print(f"{method}, run {runs}: {', '.join(sorted(different))} differ", flush=True)
            runs += 1
    numbers = {
        "kills": kills,
        "runs": runs,
        "bit_identical": same,
        "files": sorted(whole[METHODS[0]][0]),
        "seconds_of_a_run": {method: round(seconds, 1) for method, (_, seconds) in whole.items()},
    }
    print(numbers)
    print(write("kills_averages" if asked.averages else "kills", asked, numbers))


if __name__ == "__main__":
    main()
