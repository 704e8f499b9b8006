"""Fuzzing, the long way: damaged files of every kind, from a seed, as many as one likes.

Cases come in slices, each with a seed of its own, so that a failure is repeated by its slice alone.
The result says how many cases of each kind were accepted and refused, by which errors. The exit
status is 1 if anything else came out, was left behind, or took too long or too much memory.
"""

import faulthandler
import resource
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.targets import BYTES, Target, all_targets

from .recording import options, write

# Cases of a slice, and the share of all cases where it is not the usual one.
SLICE = 500
FEWER = {"cards": 0.25, "weights": 0.5, "plan": 0.5, "answers of a server": 0.5}
# Seconds without a finished slice after which all stacks are printed and the process ends.
HANGING = 600


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="part of the name of a target; no result is written")
    asked = parser.parse_args()
    begin, failures = time.monotonic(), list[str]()
    with TemporaryDirectory() as scratch, all_targets(Path(scratch)) as targets:
        chosen = [one for one in targets if not asked.only or asked.only in one.name]
        before, whole = peak(), sum(FEWER.get(one.name, 1.0) for one in chosen)
        for target in chosen:
            share = FEWER.get(target.name, 1.0) / whole
            failures += run(target, round(asked.cases * share), asked.seed)
            line = f"{target.name}: {target.cases:,} cases, slowest {target.slowest:.2f} s"
            print(f"{line}, {target.outcomes}", flush=True)
    grown = peak() - before
    if grown > BYTES:
        failures.append(f"memory has grown by {grown:,} bytes")
    numbers = {
        "seed": asked.seed,
        "cases": sum(one.cases for one in chosen),
        "seconds": round(time.monotonic() - begin),
        "memory_grown_bytes": grown,
        "targets": {
            one.name: {
                "cases": one.cases,
                "slowest_seconds": round(one.slowest, 3),
                "outcomes": dict(sorted(one.outcomes.items())),
            }
            for one in chosen
        },
        "failures": failures,
    }
    if asked.only is None:
        print(write("fuzz", asked, numbers))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def run(target: Target, cases: int, first: int) -> list[str]:
    """Try so many cases of a target until one fails; return that failure as text."""
    wanted, number = target.cases + cases, 0
    while target.cases < wanted:
        faulthandler.dump_traceback_later(HANGING, exit=True)
        quiet = settings(
            max_examples=min(SLICE, wanted - target.cases),
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        slice_seed = first * 1_000_003 + number
        try:
            seed(slice_seed)(quiet(given(target.contents)(target.check)))()
        except Exception as error:
            traceback.print_exc()
            return [f"{target.name}, slice {number}, seed {slice_seed}: {error!r}"]
        finally:
            faulthandler.cancel_dump_traceback_later()
        number += 1
    return []


def peak() -> int:
    """Return the most bytes that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
