"""Works killed at random moments: each must end like an undisturbed one, byte for byte.

Small works on a CPU: two runs with averages and predictions; a sweep with two workers, local and on
Ray; fits to a table (a baseline and two methods) and to images (heads on frozen features); a page
of ``monitor``; soups. Each is killed by SIGKILL at a moment that is uniform over its length, and
the same command is given again, until it ends. Who is killed: the process of the command; and of a
sweep also all its processes at once, or one worker alone. All files are compared, but for the
names in ``may_differ``.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.chaos.kills import Moments, carry_out_whole, finish_with_kills
from tests.chaos.losses import in_process
from tests.chaos.works import DIFFERS, content_of, emptied, prepare

from .recording import options, write

# Kills for each work of a hundred; sweeps take longest, because their workers import torch anew.
SHARES = {
    "train": 24,
    "sweep": 12,
    "ray": 8,
    "fit table": 22,
    "fit heads": 10,
    "monitor": 10,
    "soup": 14,
}
RESULT, SUMS = "kills_of_all_works", ("kills", "works", "identical")
# Kills of one work; a run whose process dies five times at one place is given up.
EACH = 4


def disturbed(name: str, scratch: Path, kills: int, seed: int) -> dict[str, Any]:
    """Return the outcomes of as many works as it takes for so many kills."""
    given, out, begin = scratch / "given", scratch / "out", time.monotonic()
    in_process(prepare, name, given)
    seconds = carry_out_whole(name, given, emptied(out))
    expected = content_of(out)
    moments, counted, works, same = Moments(seed, seconds), Counter[str](), 0, 0
    while counted.total() < kills:
        limit = min(EACH, kills - counted.total())
        counted += finish_with_kills(name, given, emptied(out), moments, limit)
        found = content_of(out)
        same += found == expected
        both = found.keys() | expected.keys()
        if different := sorted(one for one in both if found.get(one) != expected.get(one)):
            print(f"{name}, work {works}: {', '.join(different)} differ", flush=True)
        works += 1
    return {
        "kills": counted.total(),
        **{f"of_a_{whom}": number for whom, number in sorted(counted.items())},
        "works": works,
        "identical": same,
        "files": len(expected),
        "seconds_undisturbed": round(seconds, 1),
        "seconds": round(time.monotonic() - begin),
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--kills", type=int, default=100, help="of these works together (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--works", nargs="+", choices=SHARES, default=list(SHARES))
    asked = parser.parse_args()
    whole = sum(SHARES[name] for name in asked.works)
    for name in asked.works:
        with TemporaryDirectory() as scratch:
            kills = round(asked.kills * SHARES[name] / whole)
            found = disturbed(name, Path(scratch), kills, asked.seed)
        print(name, found, flush=True)
        print(write(RESULT, asked, _with(asked, name, found)))


def _with(asked: argparse.Namespace, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of this work with those of others from the same seed, and their sums."""
    path, by_work = asked.out / f"{RESULT}.json", dict[str, Any]()
    if path.exists() and (before := json.loads(path.read_text()))["seed"] == asked.seed:
        by_work = before["by_work"]
    by_work = {**by_work, name: found}
    return {
        "seed": asked.seed,
        **{key: sum(one[key] for one in by_work.values()) for key in SUMS},
        "may_differ": [
            *DIFFERS,
            "the line of a page with the time of its runs",
            "files that a killed process left half written, outside of runs",
        ],
        "by_work": by_work,
    }


if __name__ == "__main__":
    main()
