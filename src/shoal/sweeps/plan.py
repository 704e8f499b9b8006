"""The runs of a sweep: methods × data sets × trials × test domains × draws of hyperparameters."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from ..algorithms import ALGORITHMS, VARIANTS
from ..algorithms.base import Algorithm
from ..algorithms.hparams import draw, values_for_run
from ..catalogue import DATASETS, TEST_DOMAINS, record_every, scale_of
from ..choices import choose
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache
from ..results.records import SET_HPARAMS, RunResult
from ..runs.run import Protocol, Run
from ..storage import hold_lock, read_json, write_json

PLAN, LOCK, RUNS = "plan.json", "plan.lock", "runs"

# A method and the hyperparameters that its name sets; a data set of a trial, and its cache.
MethodChoice = tuple[type[Algorithm], Mapping[str, str]]
LoadedData = tuple[DomainDataset, ImageCache | None]


@dataclass(frozen=True)
class Sweep:
    """What is swept over.

    Args:
        algorithms, datasets: names.
        trials, draws: how many, counted from 0; draw 0 is the defaults.
        test_domains: "singles", each domain in turn; "pairs", also every two together, which
            leave-one-domain-out selection needs.
        settings: hyperparameters as text, by name, as in ``draw``.
        protocol: of all runs; its network and weights are those of large images, and small ones
            have their own. ``record_every`` None is DomainBed's for each data set.
    """

    algorithms: tuple[str, ...]
    datasets: tuple[str, ...]
    trials: int = 3
    draws: int = 20
    test_domains: str = "singles"
    settings: Mapping[str, str] = field(default_factory=dict)
    protocol: Protocol = field(default_factory=Protocol)
    record_every: int | None = None

    def __post_init__(self) -> None:
        choose("choice of test domains", self.test_domains, TEST_DOMAINS)
        for name in ("trials", "draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")


@dataclass(frozen=True)
class Shard:
    """Every count-th of some runs from ``index`` on; 0 of 1 is all of them."""

    index: int = 0
    count: int = 1

    def of(self, runs: Sequence[Run]) -> list[Run]:
        return list(runs[self.index :: self.count])


def runs_of(
    sweep: Sweep,
    method_of: Callable[[str], MethodChoice],
    data_of: Callable[[str, int], DomainDataset],
) -> list[Run]:
    """Return all runs, those of one data set, trial and method together."""
    found = []
    for dataset in sweep.datasets:
        scale = scale_of(dataset)
        every = sweep.record_every or record_every(dataset)
        for trial in range(sweep.trials):
            data = data_of(dataset, trial)
            check_classes(data)
            protocol = replace(sweep.protocol, record_every=every)
            if data.in_memory:
                protocol = replace(protocol, network=None, weights=None)
            for algorithm in sweep.algorithms:
                method, settings = method_of(algorithm)
                given = {**settings, **sweep.settings}
                for number in range(sweep.draws):
                    hparams = values_for_run(draw(method.Hparams, scale, trial, number, given))
                    found += [
                        Run(
                            data.name,
                            data.fingerprint,
                            algorithm,
                            tests,
                            trial,
                            number,
                            hparams,
                            protocol,
                        )
                        for tests in sets_left_out(data.names, sweep.test_domains)
                    ]
    return found


def check_classes(dataset: DomainDataset) -> None:
    """Raise where there is nothing to tell apart."""
    if len(dataset.classes) < 2:
        raise ValueError(
            f"only one class ({', '.join(dataset.classes)}) was found in {dataset.name}; expected "
            "<domain>/<class>/<file>, or a table with a column class, with two classes or more"
        )


def sets_left_out(domains: Sequence[str], which: str) -> list[tuple[str, ...]]:
    """Return what is left out in turn: every domain, and for pairs also every two of three."""
    singles: list[tuple[str, ...]] = [(domain,) for domain in domains]
    pairs = list(combinations(domains, 2)) if which == "pairs" and len(domains) > 2 else []
    return [*singles, *pairs]


def folder_of(out: Path, run: Run) -> Path:
    """Return where a run of the sweep in ``out`` lies."""
    return out / RUNS / run.identity[:20]


def write_plan(out: Path, runs: Iterable[Run]) -> None:
    """Write the plan; one that is there is extended, so that nothing done is forgotten."""
    asked = {run.identity: run for run in runs}
    with hold_lock(out / LOCK):
        known = {run.identity: run for run in read_plan(out)} if (out / PLAN).exists() else {}
        wanted = known | asked
        for run in replaced(list(wanted.values())):
            if run.identity in asked:  # its data are again what they were
                wanted[run.identity] = wanted.pop(run.identity)
        grown = list(wanted) != list(known)
        if grown:
            write_json(out / PLAN, [run.canonical() for run in wanted.values()])
        if grown or not (out / SET_HPARAMS).exists():
            _write_set_hparams(out, list(wanted.values()))


def _write_set_hparams(out: Path, runs: Sequence[Run]) -> None:
    """Write which hyperparameters of each run were set by hand.

    A report prints them and compares only drawn ones with published cells. Search distributions are
    declared next to the methods, which import torch: with this file a report needs neither.
    """
    found = {folder_of(out, run).name: set_hparams(run) for run in runs if run.dataset in DATASETS}
    if found:
        write_json(out / SET_HPARAMS, found)


def replaced(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that a later one stands in for: the same on data that are not the same."""
    last = {_but_for_data(run): run.fingerprint for run in runs}
    return [run for run in runs if last[_but_for_data(run)] != run.fingerprint]


def _but_for_data(run: Run) -> str:
    return replace(run, fingerprint="").identity


def read_plan(out: Path) -> list[Run]:
    """Return the runs of the sweep in ``out``."""
    path = out / PLAN
    if not path.is_file():
        wrong = f"it has no {PLAN}" if out.is_dir() else "there is no such folder"
        raise ValueError(f"{out} is no folder of a sweep or a fit: {wrong}")
    values: list[dict[str, Any]] = read_json(path)
    return [Run.from_json(one) for one in values]


def with_search(runs: Iterable[RunResult]) -> list[RunResult]:
    """Return the runs with their ``set_hparams``, computed if the sweep did not write them."""
    return [
        run if run.set_hparams is not None else replace(run, set_hparams=set_hparams(run))
        for run in runs
    ]


def set_hparams(run: Run | RunResult) -> dict[str, Any]:
    """Return the hyperparameters of the run that are not as the random search draws them.

    Empty if the method is not in the registry, for a user's own data, for which ``shoal fit`` has
    other defaults, and for runs without a protocol, such as DomainBed's.
    """
    if not run.protocol or run.dataset not in DATASETS:
        return {}
    drawn = _drawn(run.algorithm, scale_of(run.dataset), run.trial, run.draw)
    if drawn is None:
        return {}
    return {
        name: value
        for name, value in run.hparams.items()
        if name not in drawn or drawn[name] != value
    }


@cache
def _drawn(algorithm: str, scale: str, trial: int, number: int) -> Mapping[str, Any] | None:
    variant = VARIANTS.get(algorithm)
    method = ALGORITHMS.get(variant.algorithm if variant else algorithm)
    if method is None:
        return None
    return values_for_run(
        draw(method.Hparams, scale, trial, number, variant.settings if variant else None)
    )
