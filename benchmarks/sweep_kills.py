"""Sweeps with workers and drivers killed at random moments: all must end like an undisturbed one.

Twelve small runs on a CPU with two workers, a new checkpoint as soon as the last one is written,
with the local engine and, if it is installed, with Ray. A killed driver is started again. The sweep
must end with exactly the runs of its plan, and with the same records and models, bit for bit.
"""

import importlib.util
import random
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shoal.sweeps.plan import RUNS, folder_of, read_plan
from tests.sweeps.driving import drive, finish_with_kills
from tests.sweeps.workspaces import contents, planned

from .recording import options, write

STEPS = 20


def disturbed(scratch: Path, engine: str, kills: int, expected: Any) -> dict[str, Any]:
    """Return the outcomes of as many sweeps as it takes to kill ``kills`` processes."""
    moments = random.Random(0)
    counted: Counter[str] = Counter()
    sweeps, same, begin = 0, 0, time.monotonic()
    while counted.total() < kills:
        out = scratch / f"{engine}-{sweeps}"
        planned(out, steps=STEPS)
        limit = kills - counted.total()
        counted += finish_with_kills(out, engine, moments, longest=8.0, limit=limit)
        there = {path.name for path in (out / RUNS).iterdir()}
        whole = there == {folder_of(out, run).name for run in read_plan(out)}
        same += whole and contents(out) == expected
        sweeps += 1
    return {
        "killed_workers": counted["workers"],
        "killed_drivers": counted["drivers"],
        "sweeps": sweeps,
        "identical_sweeps": same,
        "runs": 12 * sweeps,
        "seconds": round(time.monotonic() - begin),
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--kills", type=int, default=20, help="kills for each engine (default: %(default)s)"
    )
    asked = parser.parse_args()
    engines = ["local", *(["ray"] if importlib.util.find_spec("ray") else [])]
    with TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        planned(whole, steps=STEPS)
        begin = time.monotonic()
        if drive(whole, "local").wait():
            raise SystemExit("the undisturbed sweep did not end well")
        numbers: dict[str, Any] = {"seconds_undisturbed": round(time.monotonic() - begin)}
        for engine in engines:
            numbers[engine] = disturbed(Path(scratch), engine, asked.kills, contents(whole))
            print(engine, numbers[engine], flush=True)
    print(write("sweep_kills", asked, numbers))


if __name__ == "__main__":
    main()
