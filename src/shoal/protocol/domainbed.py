"""Runs that DomainBed made: its ``results.jsonl`` read as if the runs were ours."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checks import choose
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
    run was made twice into one folder, the later record of a step counts.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    return [_read(path) for path in sorted(folder.rglob(RESULTS)) if path.stat().st_size]


def _read(path: Path) -> Finished:
    records: dict[int, Measured] = {}
    args: Mapping[str, Any] = {}
    hparams: Mapping[str, Any] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            values = json.loads(line)
            args, hparams, step = values["args"], values["hparams"], int(values["step"])
            _, domains = DATASETS[choose("data set of DomainBed", args["dataset"], DATASETS)]
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path}, line {number} is no record of DomainBed's: {error}"
            ) from error
        records[step] = Measured(step, _accuracies(values, domains), {})
    dataset, domains = DATASETS[args["dataset"]]
    return Finished(
        dataset,
        ALGORITHMS.get(args["algorithm"], args["algorithm"].lower()),
        tuple(domains[index] for index in args["test_envs"]),
        int(args["trial_seed"]),
        int(args["hparams_seed"]),
        hparams,
        tuple(records[step] for step in sorted(records)),
        path.parent,
    )


def _accuracies(values: Mapping[str, Any], domains: tuple[str, ...]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        name = re.fullmatch(r"env(\d+)_(in|out)_acc", key)
        if name:
            found.setdefault(domains[int(name[1])], {})[SPLITS[name[2]]] = float(value)
    return found
