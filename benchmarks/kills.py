"""Runs killed at random moments: every one must end bit for bit like an undisturbed run.

Small runs of several methods on a CPU: three domains, 23 updates of an MNIST CNN, a new checkpoint
as soon as the last one is written. The moment of every kill is uniform over the length of a run.
"""

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.runs.killing import content, finish_with_kills, small_in, timed

from .recording import options, write

METHODS = ("erm", "fishr", "dann", "fish", "mldg")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--kills", type=int, default=50)
    asked = parser.parse_args()
    moments = random.Random(0)
    with TemporaryDirectory() as scratch:
        whole: dict[str, Any] = {}
        for method in METHODS:
            path = Path(scratch) / method
            seconds = timed(path, small_in, method)
            whole[method] = content(path), seconds
        kills, runs, same = 0, 0, 0
        while kills < asked.kills:
            method = METHODS[runs % len(METHODS)]
            expected, seconds = whole[method]
            path = Path(scratch) / f"killed-{runs}"
            kills += finish_with_kills(path, small_in, method, moments, seconds, limit=8)
            same += content(path) == expected
            runs += 1
    numbers = {
        "kills": kills,
        "runs": runs,
        "bit_identical": same,
        "seconds_of_a_run": {method: round(seconds, 1) for method, (_, seconds) in whole.items()},
    }
    print(numbers)
    print(write("kills", asked, numbers))


if __name__ == "__main__":
    main()
