"""Setup: the choices and the data that all runs of a fit share, and the runs themselves."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from ..algorithms import VARIANTS, find
from ..algorithms.hparams import WARMUPS, draw, own_names, searches, values_for_run
from ..catalogue import BASELINES
from ..choices import choose
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache
from ..datasets.folders import folder_name
from ..documents import AGAIN, damage_named, read_object
from ..escapes import brief
from ..networks.registry import backbone_name
from ..results.index import RUNS
from ..results.records import FIT_SETUP as SETUP
from ..runs.machine import Machine
from ..runs.run import Protocol, Run
from ..storage import write_json
from ..sweeps.plan import LoadedData, MethodChoice
from .baselines import CLASSES, Baseline
from .inspection import FitData

TRAINED = ("all", "head", "both")
# Default number of updates: of a whole network, of a head on frozen features.
STEPS = {"all": 1000, "head": 600}
# The number of updates that the methods' default hyperparameters are meant for.
USUAL = 5001
# How often an MLP sees the rows of a table, within these numbers of updates: an MLP memorises a
# small table after a few hundred.
EPOCHS, FEWEST, MOST = 50, 200, 1000
# Rows of each domain in an update, by default.
BATCH = 64
# The default weight decay of an MLP, times the rows of the table: a prior weighs the same however
# many rows there are. And the number of records from which its weights are chosen.
DECAY, RECORDS = 3.0, 20
# How λ of Fishr comes in when whole networks are trained, in updates: docs/results/averages.md has
# what it gains over a jump.
RISING = {"warmup_steps": "300", "ramp_steps": "600", "reset": "none"}
# How a fit is made. A fit that an earlier version began goes on as it began.
# 1: ERM and Fishr are compared; an MLP has no weight decay and ends with its last update.
# 2: on a table the baselines and more methods are compared as well; an MLP has a weight decay and
#    ends with the weights that are best on held-out rows of the training domains. A whole network
#    ends with the mean of its weights over the second half of the run; Fishr's λ rises. It starts
#    with a random head: a fitted one costs points (docs/results/averages.md).
FIRST_VERSION, VERSION = 1, 2
# What a later command reads of the setup in a folder.
SAVED = {
    "steps": (int,),
    "examples": (int, type(None)),
    "version": (int,),
    "precision": (str,),
    "trained": (str,),
}


@dataclass(frozen=True, kw_only=True)
class FitSetup:
    """The choices that all runs of a fit share.

    Args:
        dataset, fingerprint: of the user's data.
        kind: "images" or "table".
        trained: "all" weights of the network, only the "head" on frozen features, or "both": heads
            first, then whole networks.
        backbone: the network for images; None for tables.
        steps: updates of every run.
        precision: as in ``Protocol``.
        settings: hyperparameters as text, by name.
        examples: number of images or rows, for messages; None if unknown.
        version: the version of how a fit is made.
        balanced: whether all classes of a domain weigh the same.
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
    version: int = VERSION
    balanced: bool = False

    def __post_init__(self) -> None:
        choose("part of the network to train", self.trained, TRAINED)

    @property
    def parts(self) -> tuple["FitSetup", ...]:
        """The setups of the runs: of heads and of whole networks, if both are trained."""
        if self.trained != "both":
            return (self,)
        steps = min(self.steps, STEPS["head"])
        head = replace(self, trained="head", steps=steps, precision="float32")
        return head, replace(self, trained="all")

    @property
    def average(self) -> str:
        """The average of the weights that a run ends with, "" for its last weights.

        A whole network does better on a new domain with the mean of the second half of its run.
        """
        return "half" if self.whole and self.version > FIRST_VERSION else ""

    @property
    def whole(self) -> bool:
        """Whether runs train all weights of a network for images."""
        return self.kind == "images" and not self.frozen

    @property
    def frozen(self) -> bool:
        """Whether runs train on features of the images instead of the images."""
        return self.kind == "images" and self.trained == "head"

    @property
    def protocol(self) -> Protocol:
        """The protocol of every run with updates."""
        every = max(1, self.steps // 4)
        if self.kind == "table" and self.version > FIRST_VERSION:
            return Protocol(
                steps=self.steps,
                record_every=max(1, self.steps // RECORDS),
                network="standardised-mlp",
                stop="held-out",
                balanced=self.balanced,
            )
        if self.kind == "table":
            return Protocol(steps=self.steps, record_every=every, network="standardised-mlp")
        if self.frozen:
            return Protocol(
                steps=self.steps, record_every=every, network="linear", balanced=self.balanced
            )
        return Protocol(
            steps=self.steps,
            record_every=every,
            network=self.backbone,
            weights="imagenet",
            precision=self.precision,
            balanced=self.balanced,
        )

    @property
    def searches(self) -> bool:
        """Whether other settings than the defaults are tried: where runs take seconds."""
        quick = self.kind == "table" or self.frozen
        return quick and self.version > FIRST_VERSION

    def hparams(
        self, method: MethodChoice, settings: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the hyperparameters of a method with updates.

        Args:
            settings: what differs from the defaults; what the user has set wins over all.
        """
        scale = "large" if self.whole else "small"
        given = {**(settings or {}), **settings_of(method, self.settings)}
        return hparams_for(method, scale, self.steps, given, self._usual(method))

    def hparams_of(
        self, method: MethodChoice, draw: int = 0, settings: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the hyperparameters of any method.

        Args:
            draw: the place in a baseline's grid.
            settings: as in ``hparams``.
        """
        kind = method[0]
        if not issubclass(kind, Baseline):
            return self.hparams(method, settings)
        found = dict(kind.grid[draw])
        if self.frozen:  # what is put onto a network must be linear in its features
            found.pop("ranks", None)
        return found | ({"class_weight": "balanced"} if self.balanced else {})

    def run(
        self,
        dataset: DomainDataset,
        name: str,
        method: MethodChoice,
        tests: tuple[str, ...],
        trial: int,
        draw: int = 0,
        settings: Mapping[str, str] | None = None,
        split: bool = False,
    ) -> Run:
        """Return the run of a method.

        Args:
            dataset: the runs' inputs: images, or vectors.
            tests: the held-out domains.
            draw: the place in a baseline's grid.
            settings: as in ``hparams``.
            split: whether a baseline is measured on held-out rows of its training domains. It
                makes no other use of them, so otherwise it is fitted to all rows.
        """
        kind, protocol = method[0], self.protocol
        hparams = self.hparams_of(method, draw, settings)
        if issubclass(kind, Baseline):
            holdout = protocol.holdout if split else 0.0
            rows = sum(map(len, dataset.without(tests).domains))
            hparams |= kind.sampling(rows, *dataset.input_shape)
            network = kind.network_name(hparams)
            protocol = Protocol(steps=1, record_every=1, holdout=holdout, network=network)
        return Run(
            dataset=dataset.name,
            fingerprint=dataset.fingerprint,
            algorithm=name,
            test_domains=tests,
            trial=trial,
            draw=draw,
            hparams=hparams,
            protocol=protocol,
        )

    def _usual(self, method: MethodChoice) -> dict[str, str]:
        """Return the hyperparameters of a method that have other defaults in a fit."""
        if self.version == FIRST_VERSION:
            return {}
        if self.kind == "table" and self.examples:
            return {"weight_decay": f"{DECAY / self.examples:.2g}"}
        rises = not self.frozen and "ramp_steps" in {f.name for f in fields(method[0].Hparams)}
        return RISING if rises else {}

    def save(self, out: Path) -> None:
        """Write the setup to ``out``; raise if there are runs of another one."""
        path, mine = out / SETUP, asdict(self) | {"settings": dict(self.settings)}
        found = _checked(read_object(path), path) if path.exists() else {}
        if found:
            found = {"version": FIRST_VERSION, "balanced": False} | found
        if not found or not any((out / RUNS).glob("*")):
            write_json(path, mine)
            return
        other = [key for key in mine if key != "examples" and found.get(key) != mine[key]]
        if other:
            raise ValueError(
                f"{out} holds another fit ({self._differences(found, other)}); choose another "
                f"--out, such as {_free_folder(out)}"
            )

    def _differences(self, found: Mapping[str, Any], keys: Sequence[str]) -> str:
        """Return how these fields of a saved setup differ from this one's, as text."""
        if keys != ["fingerprint"]:
            mine = asdict(self)
            return "; ".join(
                f"{key} {_as_text(found.get(key))}, not {_as_text(mine[key])}" for key in keys[:3]
            )
        then, now, kind = found.get("examples"), self.examples, self.kind
        counts = f": {then:,} then, {now:,} now" if then and now else ""
        read = " or are read in another way" if then == now else ""
        return f"the {'rows' if kind == 'table' else kind} have changed since{read}{counts}"


@dataclass(frozen=True)
class FitWorkspace:
    """Methods, data and machine of a fit's runs; a ``Workspace`` of a sweep.

    Args:
        others: further data sets by name, such as the table without some of its columns.
        features: of the images, if heads are trained as well as whole networks.
        averages: of the weights, which every run records.
    """

    methods: Mapping[str, MethodChoice]
    dataset: DomainDataset
    cache: ImageCache | None
    on: Machine
    others: Mapping[str, DomainDataset] = field(default_factory=dict)
    features: DomainDataset | None = None
    averages: tuple[str, ...] = ()

    def method(self, name: str) -> MethodChoice:
        return self.methods[name]

    def inputs(self, frozen: bool) -> DomainDataset:
        """Return the data set of a run: features for a head, if both are trained."""
        return self.features if frozen and self.features is not None else self.dataset

    def data(self, name: str, trial: int) -> LoadedData:
        if self.features is not None and name == self.features.name:
            return self.features, None
        return self.others.get(name, self.dataset), self.cache

    def machine(self) -> Machine:
        # The report page shows the errors, so every run writes its predictions.
        return replace(self.on, predictions=True, averages=self.averages)


def saved_setup(out: Path) -> dict[str, Any] | None:
    """Return the setup of the runs in ``out``, as plain values; None if there are no runs."""
    path = out / SETUP
    begun = path.exists() and any((out / RUNS).glob("*"))
    return _checked(read_object(path), path) if begun else None


def _checked(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a saved setup; raise if something in it has another type than in a setup."""
    for name, kinds in SAVED.items():
        value = found.get(name)
        wrong = type(value) not in kinds or (isinstance(value, int) and value < 1)
        if name in found and wrong:
            raise ValueError(f"{path} has a {name} that is {brief(value)}; it is damaged: {AGAIN}")
    return found


def version_of(out: Path) -> int:
    """Return the version of the runs in ``out``; the newest if there are none."""
    saved = saved_setup(out)
    with damage_named(out / SETUP):
        return VERSION if saved is None else int(saved.get("version", FIRST_VERSION))


def choose_setup(
    data: FitData,
    out: Path,
    device: torch.device,
    train: str,
    backbone: str,
    steps: int | None,
    settings: Mapping[str, str],
    balanced: bool = False,
) -> FitSetup:
    """Return the setup for this data; choices of an earlier command on ``out`` are kept.

    Args:
        train: one of ``TRAINED``, or "auto": both on a GPU, the head on a CPU.
        steps: None for the default number of updates.
    """
    before = saved_setup(out) or {}
    gpu = device.type == "cuda"
    trained = trained_part(train, data.kind, out, device)
    default_steps = STEPS["head" if trained == "head" else "all"]
    if data.kind == "table":
        default_steps = table_length([len(domain) for domain in data.dataset.domains])
    return FitSetup(
        dataset=data.dataset.name,
        fingerprint=data.dataset.fingerprint,
        kind=data.kind,
        trained=trained,
        backbone=backbone_name(backbone) if data.kind == "images" else None,
        steps=steps or before.get("steps", default_steps),
        precision=before.get("precision", "bf16" if gpu and trained != "head" else "float32"),
        settings=settings,
        examples=sum(map(len, data.dataset.domains)),
        version=version_of(out),
        balanced=balanced,
    )


def trained_part(train: str, kind: str, out: Path, device: torch.device) -> str:
    """Return what is trained, one of ``TRAINED``; an earlier command on ``out`` may have chosen."""
    if train != "auto":
        return train
    usual = "all" if kind == "table" else "both" if device.type == "cuda" else "head"
    found: str = (saved_setup(out) or {}).get("trained", usual)
    return found


def table_length(rows: Sequence[int]) -> int:
    """Return the number of updates for an MLP, given the number of rows in each domain."""
    steps = EPOCHS * sum(rows) / (len(rows) * BATCH)
    return round(min(max(steps, FEWEST), MOST))


def find_method(name: str) -> MethodChoice:
    """Return a method or variant of the registry, and the hyperparameters that its name sets."""
    if name in VARIANTS:
        variant = VARIANTS[name]
        return find(variant.algorithm), dict(variant.settings)
    return find(name), {}


def find_candidate(name: str) -> MethodChoice:
    """Return a baseline, or a method or variant as ``find_method`` does."""
    return (CLASSES[name], {}) if name in BASELINES else find_method(name)


def check_settings(settings: Mapping[str, str], methods: Mapping[str, MethodChoice]) -> None:
    """Raise if no method has a hyperparameter of this name, or its value is wrong."""
    updated = [method for method in methods.values() if not issubclass(method[0], Baseline)]
    declared = {f.name for kind, _ in updated for f in fields(kind.Hparams)}
    known = {name for method in updated for name in _names(method)}
    for name in settings.keys() - known:
        choose("hyperparameter", name, declared)
    for method in updated:
        hparams_for(method, "small", USUAL, settings_of(method, settings))


def settings_of(method: MethodChoice, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a method has, by our names; the others are for other methods."""
    known = _names(method)
    mine = {key: text for key, text in settings.items() if key in known}
    return own_names(method[0].Hparams, mine)


def _names(method: MethodChoice) -> set[str]:
    """Return the names of a method's hyperparameters, here and in DomainBed."""
    declared = fields(method[0].Hparams)
    return {f.name for f in declared} | {f.metadata["key"] for f in declared}


# Options that a run has at their default only in a fit, because the first version wrote them.
ALWAYS_WRITTEN = ("average",)


def hparams_for(
    method: MethodChoice,
    scale: str,
    steps: int,
    given: Mapping[str, str],
    usual: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the default hyperparameters of a method for a run of ``steps`` updates.

    Every warm-up is the same share of the run as in a run of the usual length.

    Args:
        given: what the user has set; it wins over all.
        usual: other defaults than the method's.
    """
    kind, settings = method
    shorter = {
        name: str(round(search.default * steps / USUAL))
        for name, search in searches(kind.Hparams, scale).items()
        if name in WARMUPS and search.default
    }
    mine = own_names(kind.Hparams, given)
    found = draw(kind.Hparams, scale, 0, 0, {**shorter, **(usual or {}), **settings, **mine})
    always = {name: getattr(found, name) for name in ALWAYS_WRITTEN if hasattr(found, name)}
    return values_for_run(found) | always


# The one file that a command leaves behind if it fails before its first run.
INSPECTION = "inspection.json"


def default_folder(data: Path) -> Path:
    """Return the folder that a fit to ``data`` is written to by default."""
    return Path("out") / f"{folder_name(data) if data.is_dir() else data.stem}-fit"


def check_folder(out: Path, data: Path) -> None:
    """Raise if ``out`` is inside the data, holds something else, or cannot be written."""
    if data.is_dir() and out.resolve().is_relative_to(data.resolve()):
        raise ValueError(
            f"{out} is inside the data, {data}, and would be read as a domain; choose another --out"
        )
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, expected a folder; choose another --out")
    if out.is_dir() and not (out / SETUP).exists():
        there = sorted(p.name for p in out.iterdir() if not p.name.startswith("."))
        strange = [name for name in there if name != INSPECTION]
        if strange:
            raise ValueError(
                f"{out} holds {', '.join(strange[:5])} and is not the folder of a fit; choose "
                "another --out"
            )
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OSError(f"{parent} is not writable; make it writable, or choose another --out")


def _as_text(value: Any) -> str:
    """Return a field as a user would type it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return str(value)


def _free_folder(out: Path) -> Path:
    """Return a path next to ``out`` that does not exist."""
    names = (out.with_name(f"{out.name}-{number}") for number in count(2))
    return next(path for path in names if not path.exists())
