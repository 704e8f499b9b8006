"""The plan of a sweep: methods × data sets × trials × test domains × draws of hyperparameters.

Reading a plan loads no torch.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue import DATASETS, SEARCHES, TEST_DOMAINS, record_every, scale_of, search_name
from ..choices import choose
from ..documents import damage_named, read_json
from ..files import LIST_BYTES
from ..results.index import PLAN, RUNS
from ..results.records import SEARCH, SET_HPARAMS, RunResult
from ..runs.run import Protocol, Run
from ..storage import hold_lock, write_json

if TYPE_CHECKING:
    from ..algorithms.base import Algorithm
    from ..datasets import DomainDataset
    from ..datasets.cache import ImageCache

LOCK = "plan.lock"
# The network on vectors: a linear head on features.
HEAD = "linear"

# A method, and the hyperparameters that its name sets.
MethodChoice = tuple["type[Algorithm]", Mapping[str, str]]
# The data set of a trial, and the cache of its decoded images.
LoadedData = tuple["DomainDataset", "ImageCache | None"]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The names and numbers that a sweep combines.

    Args:
        algorithms, datasets: names.
        trials, draws: how many, counted from 0; draw 0 has the default hyperparameters.
        test_domains: "singles", each domain in turn; "pairs", also every two together, which
            leave-one-domain-out selection needs.
        search: of the hyperparameters: "domainbed", or "mild" as in ``search_settings``.
        settings: hyperparameters as text, by our name or DomainBed's, as in ``draw``; they win
            over the search.
        protocol: of all runs; its network and weights apply to large images. Small ones have
            their own, and features get a linear head.
        record_every: updates between records; None for DomainBed's of each data set.
    """

    algorithms: tuple[str, ...]
    datasets: tuple[str, ...]
    trials: int = 3
    draws: int = 20
    test_domains: str = "singles"
    search: str = "domainbed"
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
    """One of ``count`` parts of a plan, by its index from 0: every count-th run."""

    index: int = 0
    count: int = 1

    def of(self, runs: Sequence[Run]) -> list[Run]:
        return list(runs[self.index :: self.count])


def runs_of(
    sweep: Sweep,
    method_of: Callable[[str], MethodChoice],
    data_of: Callable[[str, int], "DomainDataset"],
) -> list[Run]:
    """Return all runs, those of one data set, trial and method together."""
    from ..algorithms.hparams import draw, own_names, search_settings, values_for_run
    from ..runs.start import check_start

    runs = []
    for name in sweep.datasets:
        searched = search_name(name)
        for trial in range(sweep.trials):
            dataset = data_of(name, trial)
            check_classes(dataset)
            protocol = _protocol_for(dataset, sweep, sweep.record_every or record_every(name))
            for algorithm in sweep.algorithms:
                method, settings = method_of(algorithm)
                check_start(protocol.start, method)
                search = search_settings(method.Hparams, searched, sweep.search)
                given = {**search, **settings, **own_names(method.Hparams, sweep.settings)}
                for number in range(sweep.draws):
                    hparams = values_for_run(draw(method.Hparams, searched, trial, number, given))
                    runs += [
                        Run(
                            dataset=dataset.name,
                            fingerprint=dataset.fingerprint,
                            algorithm=algorithm,
                            test_domains=test_domains,
                            trial=trial,
                            draw=number,
                            hparams=hparams,
                            protocol=protocol,
                        )
                        for test_domains in domain_sets(dataset.names, sweep.test_domains)
                    ]
    return runs


def _protocol_for(dataset: "DomainDataset", sweep: Sweep, every: int) -> Protocol:
    protocol = replace(sweep.protocol, record_every=every)
    if dataset.kind == "vectors":
        return replace(protocol, network=HEAD, weights=None)
    return replace(protocol, network=None, weights=None) if dataset.in_memory else protocol


def check_classes(dataset: "DomainDataset") -> None:
    """Raise if the data set has fewer than two classes."""
    if len(dataset.classes) < 2:
        raise ValueError(
            f"only one class ({', '.join(dataset.classes)}) was found in {dataset.name}; expected "
            "<domain>/<class>/<file>, or a table with a column class, with two classes or more"
        )


def domain_sets(domains: Sequence[str], which: str) -> list[tuple[str, ...]]:
    """Return every domain, and for "pairs" also every two if there are three or more."""
    singles: list[tuple[str, ...]] = [(domain,) for domain in domains]
    pairs = list(combinations(domains, 2)) if which == "pairs" and len(domains) > 2 else []
    return [*singles, *pairs]


def folder_of(out: Path, run: Run) -> Path:
    """Return the folder of a run of the sweep in ``out``."""
    return folders_of(out, (run,))[0]


def folders_of(out: Path, runs: Iterable[Run]) -> list[Path]:
    """Return the folders of several runs of the sweep in ``out``."""
    place = out / RUNS
    return [place / run.identity[:20] for run in runs]


def write_plan(out: Path, runs: Iterable[Run]) -> None:
    """Write the plan, or extend the plan that exists, so that no run is forgotten."""
    asked = {run.identity: run for run in runs}
    with hold_lock(out / LOCK):
        known = {run.identity: run for run in read_plan(out)} if (out / PLAN).exists() else {}
        wanted = known | asked
        for run in superseded(list(wanted.values())):
            if run.identity in asked:  # the data were changed back
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
    given = {folder_of(out, run).name: (run, set_hparams(run)) for run in runs}
    found = {name: set_ for name, (run, set_) in given.items() if set_ or run.dataset in DATASETS}
    if found:
        write_json(out / SET_HPARAMS, found)


def superseded(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that a later run repeats on changed data."""
    data = {(run.dataset, run.trial): run.fingerprint for run in runs}
    if all(data[run.dataset, run.trial] == run.fingerprint for run in runs):
        return []  # no data have changed
    # Hashes would take most of the time that a plan of thousands of runs takes.
    keys = [_without_data(run) for run in runs]
    last = {key: run.fingerprint for key, run in zip(keys, runs, strict=True)}
    return [run for key, run in zip(keys, runs, strict=True) if last[key] != run.fingerprint]


def _without_data(run: Run) -> Hashable:
    """Return everything of a run but the fingerprint of its data."""
    hparams = repr(sorted(run.hparams.items()))
    return run.dataset, run.algorithm, run.test_domains, run.trial, run.draw, hparams, run.protocol


def read_plan(out: Path) -> list[Run]:
    """Return the runs of the sweep in ``out``."""
    path = out / PLAN
    if not path.exists():
        wrong = f"it has no {PLAN}" if out.is_dir() else "there is no such folder"
        raise ValueError(f"{out} is not the folder of a sweep or a fit: {wrong}")
    advice = "move it away and run the command that wrote it again, which keeps all runs"
    with damage_named(path, advice):
        return [Run.from_json(values) for values in read_json(path, LIST_BYTES, advice)]


def with_search(runs: Iterable[RunResult]) -> list[RunResult]:
    """Return the runs with their ``set_hparams``, computed if the sweep did not write them."""
    return [
        run if run.set_hparams is not None else replace(run, set_hparams=set_hparams(run))
        for run in runs
    ]


def set_hparams(run: Run | RunResult) -> dict[str, Any]:
    """Return the hyperparameters of the run that are not as the random search draws them.

    If another search drew all of them, its name alone, as "search". Empty if the method is not in
    the registry, and for runs without a protocol, such as DomainBed's. For a user's own data, for
    which ``shoal fit`` has other defaults, only another search counts.
    """
    if not run.protocol:
        return {}
    searched = search_name(run.dataset)
    drawn = _drawn(run.algorithm, searched, run.trial, run.draw)
    if drawn is None:
        return {}
    found = {
        name: value
        for name, value in run.hparams.items()
        if name not in drawn or drawn[name] != value
    }
    if found and scale_of(run.dataset) != "small":
        for search in SEARCHES[1:]:
            if run.hparams == _drawn(run.algorithm, searched, run.trial, run.draw, search):
                return {SEARCH: search}
    return found if run.dataset in DATASETS else {}


@cache
def _drawn(
    algorithm: str, searched: str, trial: int, number: int, search: str = "domainbed"
) -> Mapping[str, Any] | None:
    from ..algorithms import ALGORITHMS, VARIANTS
    from ..algorithms.hparams import draw, search_settings, values_for_run

    variant = VARIANTS.get(algorithm)
    method = ALGORITHMS.get(variant.algorithm if variant else algorithm)
    if method is None:
        return None
    given = search_settings(method.Hparams, searched, search) | dict(
        variant.settings if variant else {}
    )
    return values_for_run(draw(method.Hparams, searched, trial, number, given))
