"""Made-up sweeps: runs with draws, curves and terms, in memory or written to folders."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shoal.results.records import Record, RunResult

DOMAINS = {
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
    "colored-mnist": ("+90%", "+80%", "-90%"),
}


def make_run(
    dataset: str, algorithm: str, test: tuple[str, ...], trial: int, draw: int, records: int = 11
) -> RunResult:
    """Return a run whose accuracies rise to a level of its own; test domains are harder."""
    random_ = random.Random(f"{dataset} {algorithm} {test} {trial} {draw}")
    hparams = {
        "lr": 10 ** random_.uniform(-5, -3),
        "dropout": random_.choice([0.0, 0.1, 0.5]),
        "batch_size": random_.randrange(8, 40),
        "augment": random_.random() < 0.5,
    }
    if algorithm == "fishr":
        hparams |= {"penalty_weight": 10 ** random_.uniform(1, 4), "warmup_steps": 100 * draw}
    level = random_.uniform(0.6, 0.9) + 0.01 * (len(algorithm) % 5)
    measured = []
    for k in range(records):
        rise = level * (1 - 0.6 / (k + 1))
        values = {
            domain: {
                split: min(1.0, (0.8 if domain in test else 1.0) * rise + random_.gauss(0, 0.01))
                for split in ("kept", "held_out")
            }
            for domain in DOMAINS[dataset]
        }
        errors = {d: {s: 0.2 * (1 - v) for s, v in splits.items()} for d, splits in values.items()}
        terms = {"loss": 2.0 / (k + 1), "penalty": 10.0 ** (-k % 5), "risk": 1.5 / (k + 1)}
        gaps = {"risk": 0.1 / (k + 1), "variance": 10.0**-k} if dataset == "colored-mnist" else {}
        measured.append(
            Record(
                step=100 * k,
                accuracy=values,
                calibration_error=errors,
                terms=terms,
                extra={"gaps": gaps} if gaps else {},
            )
        )
    return RunResult(
        dataset=dataset,
        algorithm=algorithm,
        test_domains=test,
        trial=trial,
        draw=draw,
        hparams=hparams,
        records=tuple(measured),
    )


def make_sweep(
    algorithms: Sequence[str] = ("erm", "fishr", "coral", "groupdro"),
    datasets: Sequence[str] = ("pacs", "colored-mnist"),
    trials: int = 3,
    draws: int = 5,
    records: int = 11,
    pairs: bool = False,
) -> list[RunResult]:
    found = []
    for dataset, algorithm in itertools.product(datasets, algorithms):
        tests = [(domain,) for domain in DOMAINS[dataset]]
        tests += [*itertools.combinations(DOMAINS[dataset], 2)] if pairs else []
        for test, trial, draw in itertools.product(tests, range(trials), range(draws)):
            found.append(make_run(dataset, algorithm, test, trial, draw, records))
    return found


def write_run(root: Path, run: RunResult) -> RunResult:
    """Write the run's folder, with its timing; return the run as it is read from there."""
    name = f"{run.dataset}-{run.algorithm}-{'-'.join(run.test_domains)}-{run.trial}-{run.draw}"
    folder = root / name
    folder.mkdir(parents=True)
    keys = ("dataset", "algorithm", "test_domains", "trial", "draw", "hparams")
    about = {key: getattr(run, key) for key in keys}
    about["protocol"] = protocol = {"steps": 1001, "precision": "float32", **run.protocol}
    (folder / "run.json").write_text(json.dumps(about))
    lines = (json.dumps(one.to_json()) + "\n" for one in run.records)
    (folder / "records.jsonl").write_text("".join(lines))
    seconds = {"preparing": 1.0, "updating": 80.0 + run.draw, "evaluating": 9.0, "updates": 1000}
    machine = {"device": "cpu", "threads": 1}
    (folder / "timing.json").write_text(json.dumps({**seconds, "machine": machine}))
    (folder / "done").touch()
    return replace(run, path=folder, protocol=protocol)


def write_failure(root: Path, run: RunResult, reason: str) -> None:
    """Write the folder of a run that failed."""
    path = write_run(root, run).path
    if path is None:
        raise ValueError("a written run has a folder")
    for name in ("done", "timing.json", "records.jsonl"):
        (path / name).unlink()
    (path / "failed.json").write_text(json.dumps({"kind": "FloatingPointError", "reason": reason}))
