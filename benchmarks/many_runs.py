"""``shoal status`` and ``shoal report`` on the whole benchmark: 35,340 finished runs.

The runs are the paper's: 7 data sets, 19 methods, 20 draws, 3 trials and every test domain, with
the hyperparameters of the search and as many records as the protocol has. Accuracies are drawn.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shoal.algorithms import find
from shoal.algorithms.hparams import draw, values_for_run
from shoal.catalogue import DATASETS, METHODS, record_every
from shoal.results.index import INDEX
from shoal.results.records import DONE, HELD_OUT, KEPT, RECORDS, RUN, TIMING
from shoal.runs.run import Protocol, Run
from shoal.sweeps.plan import folder_of, write_plan

from .recording import options, write

DATASET_COUNT, METHOD_COUNT = 7, 19
STARTER = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(process, 0)
print(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""


def runs_of_the_benchmark(methods: int, draws: int, trials: int) -> Iterator[Run]:
    """Yield the runs, all test domains of a data set together."""
    for name, facts in [*DATASETS.items()][:DATASET_COUNT]:
        protocol = Protocol(
            record_every=record_every(name), network=facts.network, weights=facts.weights
        )
        for method in [*METHODS][:methods]:
            for trial in range(trials):
                for number in range(draws):
                    hparams = values_for_run(draw(find(method).Hparams, name, trial, number))
                    for domain in facts.domains:
                        yield Run(
                            dataset=name,
                            fingerprint=f"{name} as published",
                            algorithm=method,
                            test_domains=(domain,),
                            trial=trial,
                            draw=number,
                            hparams=hparams,
                            protocol=protocol,
                        )


def write_run(out: Path, run: Run, generator: np.random.Generator) -> None:
    """Write a finished run with the files and the numbers of digits that a real one has."""
    folder = folder_of(out, run)
    folder.mkdir(parents=True)
    last = run.protocol.steps - 1
    steps = [*range(0, last, run.protocol.record_every), last]
    splits = [
        (domain, split)
        for domain in DATASETS[run.dataset].domains
        for split in ((KEPT, HELD_OUT) if domain in run.test_domains else (HELD_OUT,))
    ]
    numbers = generator.random((len(steps), 2, len(splits))).tolist()
    lines = []
    for step, (accuracies, errors) in zip(steps, numbers, strict=True):
        parts: list[dict[str, dict[str, float]]] = [{}, {}]
        for part, values in zip(parts, (accuracies, errors), strict=True):
            for (domain, split), value in zip(splits, values, strict=True):
                part.setdefault(domain, {})[split] = value
        terms = {"loss": accuracies[0]} | ({} if run.algorithm == "erm" else {"penalty": errors[0]})
        record = {"step": step, "terms": terms, "accuracy": parts[0], "calibration_error": parts[1]}
        lines.append(json.dumps(record) + "\n")
    (folder / RUN).write_text(json.dumps(run.canonical(), indent=2) + "\n")
    (folder / RECORDS).write_text("".join(lines))
    timing = {"preparing": 3.5, "updating": 96.9 + numbers[0][0][0], "evaluating": 15.1}
    machine = {"device": "NVIDIA H200", "torch": "2.11.0+cu130", "python": "3.12.3", "threads": 2}
    (folder / TIMING).write_text(json.dumps(timing | {"updates": last + 1, "machine": machine}))
    (folder / DONE).touch()


def measure(*words: str) -> dict[str, Any]:
    """Return the seconds and the peak memory of a command of shoal."""
    command = [sys.executable, "-m", "shoal", *words]
    # A process of its own starts it: the peak of a child begins with the memory of its parent.
    script = (sys.executable, "-S", "-c", STARTER, *command)
    begin = time.perf_counter()
    found = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    seconds = time.perf_counter() - begin
    if found[0] != "0":
        raise SystemExit(f"{' '.join(command)} failed with status {found[0]}")
    return {
        "seconds": round(seconds, 2),
        "processor_seconds": round(float(found[1]), 2),
        "megabytes": round(int(found[2]) / 1024),
    }


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--methods", type=int, default=METHOD_COUNT, help="fewer than the paper's")
    parser.add_argument("--work", type=Path, help="keep the runs in this folder")
    asked = parser.parse_args()
    with TemporaryDirectory() as scratch:
        sweep = (asked.work or Path(scratch)) / "sweep"
        begin = time.perf_counter()
        runs = list(runs_of_the_benchmark(asked.methods, 20, 3))
        if not sweep.exists():
            generator = np.random.default_rng(0)
            write_plan(sweep, runs)
            for run in runs:
                write_run(sweep, run, generator)
            time.sleep(3)  # the index leaves out files that changed a moment ago
        print(f"{len(runs):,} runs written in {time.perf_counter() - begin:.0f} s", flush=True)
        (sweep / INDEX).unlink(missing_ok=True)
        page = str(sweep.parent / "report.html")
        numbers: dict[str, Any] = {"runs": len(runs), "load_average": round(os.getloadavg()[0], 1)}
        for name, words in {
            "status": ("status", str(sweep)),
            "report_without_index": ("report", str(sweep)),
            "report": ("report", str(sweep)),
            "report_json": ("report", str(sweep), "--format", "json"),
            "page": ("report", str(sweep), "--format", "html", "--out", page),
        }.items():
            numbers[name] = measure(*words)
            print(name, numbers[name], flush=True)
        numbers["index_megabytes"] = round((sweep / INDEX).stat().st_size / 1e6, 1)
        numbers["page_megabytes"] = round(os.stat(page).st_size / 1e6, 1)
    print(write("many_runs", asked, numbers))


if __name__ == "__main__":
    main()
