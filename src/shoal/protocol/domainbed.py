"""Runs that DomainBed made: its ``results.jsonl`` read as if the runs were ours."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .records import HELD_OUT, KEPT, Finished, Measured

RESULTS = "results.jsonl"
# Names there and here; environments go by index there.
DATASETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ColoredMNIST": ("colored-mnist", ("+90%", "+80%", "-90%")),
    "RotatedMNIST": ("rotated-mnist", ("0", "15", "30", "45", "60", "75")),
    "VLCS": ("vlcs", ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
    "PACS": ("pacs", ("art_painting", "cartoon", "photo", "sketch")),
    "OfficeHome": ("office-home", ("Art", "Clipart", "Product", "Real World")),
    "TerraIncognita": (
        "terra-incognita",
        ("location_100", "location_38", "location_43", "location_46"),
    ),
    "DomainNet": (
        "domainnet",
        ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    ),
}
ALGORITHMS = {"ANDMask": "and-mask", "SANDMask": "sand-mask"}
SPLITS = {"in": KEPT, "out": HELD_OUT}


def read_domainbed(folder: Path) -> list[Finished]:
    """Return the runs in this folder and below it, also those that were not finished.

    DomainBed's own selection asks for no ``done``, and its published numbers do not either. Where a
    run was made twice into one folder, the later record of a step counts, unless it has fewer
    accuracies; a last line that a killed run left half written does not, nor does a record without
    accuracies of the test environments. Of data sets that shoal does not have, the domains are
    ``env0``, ``env1`` and so on.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found = (_read(path) for path in sorted(folder.rglob(RESULTS)))
    return [run for run in found if run is not None]


def _read(path: Path) -> Finished | None:
    """Return the run; None where it recorded nothing."""
    values: Mapping[str, Any] = {}
    records: dict[int, Measured] = {}
    args: Mapping[str, Any] = {}
    hparams: Mapping[str, Any] = {}
    lines = path.read_text("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            args, hparams, step = values["args"], values["hparams"], int(values["step"])
            found = Measured(step, _accuracies(values, args["dataset"]), {})
            tests = tuple(_domain(args["dataset"], index) for index in args["test_envs"])
            trial, draw = int(args["trial_seed"]), int(args["hparams_seed"])
        except json.JSONDecodeError as error:
            if number == len(lines):  # the newline is missing, too
                break
            raise _no_record(path, number, error) from error
        except (KeyError, TypeError, ValueError) as error:
            raise _no_record(path, number, error) from error
        whole = all(len(found.accuracy.get(test, ())) == len(SPLITS) for test in tests)
        if whole and (step not in records or _size(found) >= _size(records[step])):
            records[step] = found
    if not args:
        return None
    if not records:
        raise _nothing_tested(path, args["test_envs"], values)
    return Finished(
        DATASETS.get(args["dataset"], (args["dataset"].lower(),))[0],
        ALGORITHMS.get(args["algorithm"], args["algorithm"].lower()),
        tests,
        trial,
        draw,
        hparams,
        tuple(records[step] for step in sorted(records)),
        path.parent,
    )


def _no_record(path: Path, number: int, error: Exception) -> ValueError:
    return ValueError(
        f"{path}, line {number} is no record of DomainBed's: {error}; delete the line, or move the "
        "file away"
    )


def _nothing_tested(path: Path, tests: Sequence[int], last: Mapping[str, Any]) -> ValueError:
    wanted = ", ".join(f"env{test}_{split}_acc" for test in tests for split in SPLITS)
    came = ", ".join(key for key in last if key.endswith("_acc")) or "none"
    return ValueError(
        f"no record in {path} has the accuracies of its test environments: expected {wanted}, got "
        f"{came} in the last one; write them under these names, or move the file away"
    )


def _size(measured: Measured) -> int:
    """Return how many accuracies a record has."""
    return sum(map(len, measured.accuracy.values()))


def _domain(dataset: str, index: int) -> str:
    """Return the name of an environment."""
    if dataset not in DATASETS:
        return f"env{index}"
    name, domains = DATASETS[dataset]
    if not 0 <= index < len(domains):
        raise ValueError(f"{name} has {len(domains)} domains, got environment {index}")
    return domains[index]


def _accuracies(values: Mapping[str, Any], dataset: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        name = re.fullmatch(r"env(\d+)_(in|out)_acc", key)
        if name:
            found.setdefault(_domain(dataset, int(name[1])), {})[SPLITS[name[2]]] = float(value)
    return found
