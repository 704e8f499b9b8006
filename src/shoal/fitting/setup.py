"""How a model is fitted: chosen once, written down, and the same whenever a command goes on."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any

from ..algorithms.hparams import draw, searches
from ..choices import choose
from ..datasets import DomainDataset
from ..datasets.folders import name_of
from ..runs.run import Protocol, Run
from ..storage import read_json, write_json
from ..sweeps.plan import RUNS, MethodChoice

SETUP = "fit.json"
TRAINED = ("all", "head")
# Updates, where nobody says how many: of a whole network, of a head on frozen features.
STEPS = {"all": 1000, "head": 600}
# The updates that the defaults of the methods were made for.
USUAL = 5001


@dataclass(frozen=True)
class FitSetup:
    """What all runs of a fit share.

    Args:
        dataset, fingerprint: of the data as it came.
        kind: "images" or "table".
        trained: "all" weights of the network, or its "head" on features that stay as they are.
        backbone: the network for images; None for tables.
        steps: updates of every run.
        precision: as in ``Protocol``.
        settings: hyperparameters as text, by name.
        examples: images or rows of the data, to say how many there were; None where not known.
    """

    dataset: str
    fingerprint: str
    kind: str
    trained: str
    backbone: str | None
    steps: int
    precision: str
    settings: Mapping[str, str]
    examples: int | None = None

    def __post_init__(self) -> None:
        choose("part of the network to train", self.trained, TRAINED)

    @property
    def frozen(self) -> bool:
        """Whether runs see features of images, and not the images."""
        return self.kind == "images" and self.trained == "head"

    @property
    def protocol(self) -> Protocol:
        """How every run is made."""
        every = max(1, self.steps // 4)
        if self.kind == "table":
            return Protocol(self.steps, every, network="standardised-mlp")
        if self.frozen:
            return Protocol(self.steps, every, network="linear")
        return Protocol(
            self.steps,
            every,
            network=self.backbone,
            weights="imagenet",
            precision=self.precision,
        )

    def run(
        self,
        dataset: DomainDataset,
        name: str,
        method: MethodChoice,
        tests: tuple[str, ...],
        trial: int,
    ) -> Run:
        """Return the run of a method, by the defaults of its hyperparameters.

        Args:
            dataset: what the runs see: images, or vectors.
        """
        scale = "large" if self.kind == "images" and not self.frozen else "small"
        hparams = hparams_for(method, scale, self.steps, _known(method, self.settings))
        protocol = self.protocol
        return Run(dataset.name, dataset.fingerprint, name, tests, trial, 0, hparams, protocol)

    def keep(self, out: Path) -> None:
        """Write the setup to ``out``; raise where there are runs of another one."""
        path, mine = out / SETUP, asdict(self) | {"settings": dict(self.settings)}
        found = read_json(path) if path.exists() else {}
        if not found or not any((out / RUNS).glob("*")):
            write_json(path, mine)
            return
        other = [key for key in mine if key != "examples" and found.get(key) != mine[key]]
        if other:
            raise ValueError(
                f"{out} is of another fit ({self._differs(found, other)}); choose another --out, "
                f"such as {_free(out)}"
            )

    def _differs(self, found: Mapping[str, Any], keys: Sequence[str]) -> str:
        """Return how this differs from what was found, in these of its fields."""
        if keys != ["fingerprint"]:
            mine = asdict(self)
            return "; ".join(
                f"{key} {_told(found.get(key))}, not {_told(mine[key])}" for key in keys[:3]
            )
        then, now, kind = found.get("examples"), self.examples, self.kind
        counts = f": {then:,} then, {now:,} now" if then and now else ""
        read = " or are read in another way" if then == now else ""
        return f"the {'rows' if kind == 'table' else kind} have changed since{read}{counts}"


def _told(value: Any) -> str:
    """Return a field as a user would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return str(value)


def _free(out: Path) -> Path:
    """Return a folder beside ``out`` that is not there."""
    names = (out.with_name(f"{out.name}-{number}") for number in count(2))
    return next(path for path in names if not path.exists())


def kept_setup(out: Path) -> dict[str, Any] | None:
    """Return what an earlier command chose for ``out``; None where there was none."""
    path = out / SETUP
    begun = path.exists() and any((out / RUNS).glob("*"))
    found: dict[str, Any] | None = read_json(path) if begun else None
    return found


def check_settings(settings: Mapping[str, str], methods: Mapping[str, MethodChoice]) -> None:
    """Raise where no method has a hyperparameter of this name, or one cannot have this value."""
    declared = {f.name for kind, _ in methods.values() for f in fields(kind.Hparams)}
    for name in settings:
        choose("hyperparameter", name, declared)
    for method in methods.values():
        hparams_for(method, "small", USUAL, _known(method, settings))


def _known(method: MethodChoice, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a method has: what one has need not be known to the others."""
    declared = {f.name for f in fields(method[0].Hparams)}
    return {key: text for key, text in settings.items() if key in declared}


def hparams_for(
    method: MethodChoice, scale: str, steps: int, given: Mapping[str, str]
) -> dict[str, Any]:
    """Return the defaults of a method's hyperparameters in a run of so many updates.

    A warm-up is the same share of the run as in a usual one.
    """
    kind, settings = method
    warmup = searches(kind.Hparams, scale).get("warmup_steps")
    shorter = {}
    if warmup is not None and warmup.default:
        shorter = {"warmup_steps": str(round(warmup.default * steps / USUAL))}
    return asdict(draw(kind.Hparams, scale, 0, 0, {**shorter, **settings, **given}))


# What a command may have left behind that was refused before its first run.
INSPECTION = "inspection.json"


def folder_for(data: Path) -> Path:
    """Return where a fit to ``data`` is written if nobody says where."""
    return Path("out") / f"{name_of(data) if data.is_dir() else data.stem}-fit"


def check_place(out: Path, data: Path) -> None:
    """Raise where ``out`` lies in the data, holds something else, or cannot be written."""
    if data.is_dir() and out.resolve().is_relative_to(data.resolve()):
        raise ValueError(
            f"{out} lies in the data, {data}, and would be taken for a domain of it; choose "
            "another --out"
        )
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; choose another --out")
    if out.is_dir() and not (out / SETUP).exists():
        there = sorted(p.name for p in out.iterdir() if not p.name.startswith("."))
        strange = [name for name in there if name != INSPECTION]
        if strange:
            raise ValueError(
                f"{out} holds {', '.join(strange[:5])} and is no folder of a fit; choose another "
                "--out"
            )
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OSError(f"{parent} cannot be written; make it writable, or choose another --out")
