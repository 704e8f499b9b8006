"""DomainBed's output: its ``results.jsonl``, read as run results."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..catalogue import DATASETS, DOMAINBED_DATASETS, DOMAINBED_METHODS
from ..documents import parse_json
from ..escapes import brief
from ..files import LIST_BYTES, read_bytes
from .records import HELD_OUT, KEPT, Record, RunResult, folders_with, is_plain

RESULTS = "results.jsonl"
SPLITS = {"in": KEPT, "out": HELD_OUT}


# A data set, a method, test domains, a trial and a draw.
Identity = tuple[str, str, tuple[str, ...], int, int]


def read_domainbed(folder: Path) -> list[RunResult]:
    """Return the runs in this folder and below it, finished or not.

    DomainBed's own selection, and so its published numbers, do not need ``done``. A file can hold
    several runs. If a run was written twice, the later record of a step counts, unless it has fewer
    accuracies. Three kinds of record are ignored: a half-written last line of a killed run, one
    without the test environments, and one that lacks a training environment which other records of
    the run have. Domains of data sets that shoal does not know are ``env0``, ``env1`` and so on.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    return [run for at in folders_with((RESULTS,), folder) for run in _read(at / RESULTS)]


def _read(path: Path) -> Iterator[RunResult]:
    """Yield the runs of a file; none if it has no records."""
    runs: dict[Identity, dict[int, Record]] = {}
    last: dict[Identity, Mapping[str, Any]] = {}
    for number, values in _lines(path):
        try:
            identity, found = _identity(values["args"]), _record(values)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _no_record(path, number, error) from error
        records, last[identity] = runs.setdefault(identity, {}), values
        whole = all(len(found.accuracy.get(test, ())) == len(SPLITS) for test in identity[2])
        if whole and _size(found) >= _size(records.get(found.step)):
            records[found.step] = found
    for identity, records in runs.items():
        if not records:
            raise _nothing_tested(path, last[identity])
        dataset, algorithm, test_domains, trial, draw = identity
        yield RunResult(
            dataset=dataset,
            algorithm=algorithm,
            test_domains=test_domains,
            trial=trial,
            draw=draw,
            hparams=last[identity]["hparams"],
            records=tuple(_alike([records[step] for step in sorted(records)])),
            path=path.parent,
        )


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the lines as JSON, with their numbers."""
    lines = read_bytes(path, LIST_BYTES).decode("utf-8-sig", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, parse_json(line, "the line", "write it again")
        except ValueError as error:
            if number == len(lines):  # half written: its newline is missing, too
                return
            raise _no_record(path, number, error.__cause__ or error) from error


def _identity(args: Mapping[str, Any]) -> Identity:
    dataset, method = args["dataset"], args["algorithm"]
    for name, value in (("dataset", dataset), ("algorithm", method)):
        if not isinstance(value, str):
            raise TypeError(f"the {name} must be a name, got {brief(value)}")
    return (
        DOMAINBED_DATASETS.get(dataset, dataset.lower()),
        DOMAINBED_METHODS.get(method, method.lower()),
        tuple(_domain(dataset, index) for index in args["test_envs"]),
        _whole(args["trial_seed"]),
        _whole(args["hparams_seed"]),
    )


def _record(values: Mapping[str, Any]) -> Record:
    if not isinstance(values["hparams"], dict):
        raise TypeError(f"hparams must be an object, got {brief(values['hparams'])}")
    if wrong := [name for name, value in values["hparams"].items() if not is_plain(value)]:
        raise TypeError(f"the hyperparameter {brief(wrong[0])} is not a plain value")
    return Record(
        step=_whole(values["step"]),
        accuracy=_accuracies(values, values["args"]["dataset"]),
    )


def _whole(value: Any) -> int:
    number = float(value)
    if not number.is_integer():
        raise ValueError(f"expected a whole number, got {value}")
    return int(number)


def _alike(records: Sequence[Record]) -> list[Record]:
    """Return the records with the most held-out environments: means over fewer do not compare."""
    counts = [sum(HELD_OUT in splits for splits in one.accuracy.values()) for one in records]
    most = max(counts)
    return [one for one, count in zip(records, counts, strict=True) if count == most]


def _no_record(path: Path, number: int, error: BaseException) -> ValueError:
    return ValueError(
        f"{path}, line {number} is not a record of DomainBed: {error}; delete the line, or move "
        "the file away"
    )


def _nothing_tested(path: Path, last: Mapping[str, Any]) -> ValueError:
    tests = last["args"]["test_envs"]
    wanted = ", ".join(f"env{test}_{split}_acc" for test in tests for split in SPLITS)
    came = ", ".join(key for key in last if key.endswith("_acc")) or "none"
    return ValueError(
        f"no record in {path} has the accuracies of its test environments: expected {wanted}, got "
        f"{came} in the last record; write them under these names, or move the file away"
    )


def _size(measured: Record | None) -> int:
    """Return the number of accuracies of a record."""
    return 0 if measured is None else sum(map(len, measured.accuracy.values()))


def _domain(dataset: str, index: int) -> str:
    """Return the name of an environment, which DomainBed counts instead of naming it."""
    if dataset not in DOMAINBED_DATASETS:
        return f"env{index}"
    name = DOMAINBED_DATASETS[dataset]
    domains = DATASETS[name].domains
    if not 0 <= index < len(domains):
        raise ValueError(f"{name} has {len(domains)} domains, got environment {index}")
    return domains[index]


def _accuracies(values: Mapping[str, Any], dataset: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        name = re.fullmatch(r"env(\d+)_(in|out)_acc", key)
        if name:
            if not isinstance(value, int | float) or value < 0 or value > 1:
                raise ValueError(f"{key} must be a share between 0 and 1, got {brief(value)}")
            found.setdefault(_domain(dataset, int(name[1])), {})[SPLITS[name[2]]] = float(value)
    return found
