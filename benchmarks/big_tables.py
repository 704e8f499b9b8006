"""Big tables: reading, inspection, a fit with baselines, and prediction, in seconds and memory.

    python -m benchmarks.big_tables --work DIR

It makes a table of a million rows and 50 columns (312 MB as CSV) from a seed, and one of 200 rows
and up to 100,000 columns. Every measurement is a process of its own: wall clock, CPU seconds and
peak memory are those of the process. Other work on the machine prolongs the wall clock, so its load
is recorded as well.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .recording import options, write

ROWS, NUMBERS, CATEGORIES = 1_000_000, 44, (3, 12, 40, 7)
WIDTHS = (12_500, 25_000, 50_000, 100_000)
# Rows that are made at a time.
PART = 100_000

READ = """
import json, sys, time
from pathlib import Path
from shoal.fitting.inspection import inspect_data
begin = time.perf_counter()
found = inspect_data(Path(sys.argv[1]))
print(json.dumps({"import": begin - START, "rows": len(found.table.vectors),
    "numbers a row": found.table.vectors.shape[1], "fingerprint": found.dataset.fingerprint}))
"""


# The peak of one process: that of all children so far would be the largest of them.
WATCH = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def make_table(path: Path, rows: int = ROWS, seed: int = 0) -> None:
    """Write five sites with two classes; x8 is unstable, five columns have gaps."""
    import pyarrow
    import pyarrow.csv

    random, writer = np.random.default_rng(seed), None
    for start in range(0, rows, PART):
        n = min(PART, rows - start)
        sites = random.integers(0, 5, n)
        y = random.random(n) < 0.3 + 0.1 * sites
        names = pyarrow.array([f"site {name}" for name in "abcde"])
        columns = {
            "domain": names.take(pyarrow.array(sites)),
            "class": pyarrow.array(np.where(y, "yes", "no")),
        }
        for k in range(NUMBERS):
            x = random.normal(size=n) + 0.005 * k * sites
            if k < 8:
                x += 0.4 * y
            elif k == 8:
                x += np.where(sites % 2 == 0, 0.5, -0.5) * y
            gaps = random.random(n) < 0.03 if k % 10 == 9 else None
            columns[f"x{k}"] = pyarrow.array(np.round(x, 3), mask=gaps)
        for k, count in enumerate(CATEGORIES):
            kinds = pyarrow.array([f"k{number}" for number in range(count)])
            columns[f"kind{k}"] = kinds.take(pyarrow.array(random.integers(0, count, n)))
        table = pyarrow.table(columns)
        if writer is None:
            quoted = pyarrow.csv.WriteOptions(quoting_style="needed")
            writer = pyarrow.csv.CSVWriter(path, table.schema, write_options=quoted)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def make_wide(path: Path, columns: int, seed: int = 0) -> None:
    """Write 200 rows of four sites."""
    random = np.random.default_rng(seed)
    x, y = np.round(random.normal(size=(200, columns)), 3), random.integers(0, 2, 200)
    with path.open("w") as file:
        file.write(",".join(["domain", "class", *(f"x{k}" for k in range(columns))]) + "\n")
        for row in range(200):
            file.write(",".join([f"d{row % 4}", f"c{y[row]}", *map(str, x[row])]) + "\n")


def measure(command: Sequence[str], output: Path | None = None) -> tuple[dict[str, Any], str]:
    """Return what a process took, and its output, which may go to a file."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    load = os.getloadavg()[0]
    watched = [sys.executable, "-c", WATCH, *command]
    with (output or Path(os.devnull)).open("w") as file:
        done = subprocess.run(
            watched,
            stdout=file if output else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    *rest, peak = done.stderr.splitlines()
    if done.returncode:
        raise RuntimeError("\n".join(rest))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(cpu, 1),
        "peak_gb": round(int(peak) * 1024 / 1e9, 2),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }, done.stdout or ""


def read(path: Path) -> dict[str, Any]:
    script = "import time; START = time.perf_counter()\n" + READ
    found, output = measure([sys.executable, "-c", script, str(path)])
    return {**found, **json.loads(output)}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--work", type=Path, required=True, help="folder for tables and fits")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--minutes", type=int, default=10, help="for the fit")
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    table, out = asked.work / "big.csv", asked.work / "fit"
    make_table(table, asked.rows)
    numbers: dict[str, Any] = {"megabytes": round(table.stat().st_size / 1e6)}
    numbers["read and inspect"] = read(table)
    print(numbers, flush=True)
    shoal = [sys.executable, "-m", "shoal"]
    fit, _ = measure(
        [*shoal, "fit", str(table), "--out", str(out), "--time", f"{asked.minutes}min"]
    )
    verdict = json.loads((out / "estimate.json").read_text())
    numbers["fit"] = {**fit, "compared": sorted(verdict["methods"]), "deploy": verdict["deploy"]}
    print(numbers["fit"], flush=True)
    numbers["predict"], _ = measure(
        [*shoal, "predict", str(out), str(table), "--csv"], asked.work / "predicted.csv"
    )
    numbers["wide"] = {}
    for width in asked.widths:
        wide = asked.work / "wide.csv"
        make_wide(wide, width)
        numbers["wide"][width] = read(wide)
        print(width, numbers["wide"][width], flush=True)
    print(write("big_tables", asked, numbers))


if __name__ == "__main__":
    main()
