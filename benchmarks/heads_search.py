"""Heads on frozen features, searched as in DomainBed: what a sweep found, and how long it took.

shoal sweep --train head --algorithms erm fishr vrex irm sd --datasets path/to/PACS --draws 10 --trials 1 --average none --workers 2 --out out/heads
python -m benchmarks.heads_search --records out/heads
"""  # noqa: E501

from pathlib import Path
from statistics import fmean, median
from typing import Any

from shoal.catalogue import METHODS
from shoal.report.sweep import domains_of
from shoal.results.aggregation import compare_over_domains, rows_of
from shoal.results.best_of_n import best_of_n
from shoal.results.records import read_runs, timing_of
from shoal.results.selection import choose_runs

from .recording import options, write

RULES = ("training-domain", "test-domain")
BASELINE = "erm"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--records", type=Path, required=True, help="the folder of the sweep")
    asked = parser.parse_args()
    runs = read_runs([asked.records])
    timings = {run.path: timing_of(run) for run in runs}
    methods: dict[str, Any] = {}
    for method in METHODS:
        mine = [run for run in runs if run.algorithm == method]
        if not mine:
            continue
        took = [timings[run.path] for run in mine]
        seconds = [one.preparing + one.updating + one.evaluating for one in took if one]
        methods[method] = {
            "runs": len(mine),
            "seconds": {"mean": fmean(seconds), "median": median(seconds), "max": max(seconds)},
        }
    for rule in RULES:
        choices = choose_runs(runs, rule)
        for row in rows_of(choices, domains_of(runs)):
            gap = None
            if row.algorithm != BASELINE:
                found = compare_over_domains(choices, row.algorithm, BASELINE)
                gap = {"difference": found.difference, "error": found.error}
            methods[row.algorithm][rule] = {
                "average": row.average and row.average.mean,
                "domains": {name: cell.mean for name, cell in row.domains.items()},
                "minus_erm": gap,
            }
        for curve in best_of_n(choices):
            values = [cell.mean for cell in curve.accuracies]
            methods[curve.algorithm][rule]["best_of_n"] = values
    for name, one in methods.items():
        print(name, one)
    devices = {str(one.about.get("device")) for one in timings.values() if one}
    kind = "cpu" if devices == {"cpu"} else "cuda"
    about = {"devices": sorted(devices), "seconds": wall_time(asked.records)}
    print(write(f"heads_search_{kind}", asked, {**about, "methods": methods}))


def wall_time(sweep: Path) -> float:
    """Return the seconds from the beginning of the first run to the end of the last."""
    begun = min(path.stat().st_mtime for path in sweep.glob("runs/*/run.json"))
    ended = max(path.stat().st_mtime for path in sweep.glob("runs/*/done"))
    return round(ended - begun, 1)


if __name__ == "__main__":
    main()
