"""Members of a soup: the draws of one method, test domain and trial, and the weights of each."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..catalogue import in_order, title_of
from ..results.averages import average_folder
from ..results.records import CARD, RunResult
from ..results.selection import choose_runs
from ..results.soups import BEST_RECORD, LAST_WEIGHTS
from ..runs.best_weights import NotKept, folder_name, model_of
from ..runs.folder import RunFolder
from ..runs.model import read_card
from ..runs.run import Run

# What the members of a soup must have in common, by its name in messages.
SHARED = ("network", "weights", "start", "frozen_statistics", "holdout")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A run, the folder of its chosen weights, and the step and the hash of these."""

    run: Run
    folder: Path
    weights: Path
    step: int
    sha256: str

    @property
    def draw(self) -> int:
        return self.run.draw


@dataclass(frozen=True)
class Group:
    """The members of a soup, by draw, and which weights of theirs it takes."""

    members: tuple[Member, ...]
    of: str

    @property
    def first(self) -> Run:
        """The run of the first member; all have its data set, method, test domain and trial."""
        return self.members[0].run

    @property
    def test_domain(self) -> str:
        return self.first.test_domains[0]

    @property
    def name(self) -> str:
        """A folder name that no other group has and any file system accepts."""
        run = self.first
        place = (run.dataset, run.algorithm, self.test_domain, f"t{run.trial}")
        return folder_name(*place, self.of)

    @cached_property
    def key(self) -> str:
        """A hash of everything that the group's numbers depend on."""
        values = [self.of, *([one.run.identity, one.sha256] for one in self.members)]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def grouped(runs: Iterable[RunResult]) -> list[list[RunResult]]:
    """Return the runs with one test domain by data set, method, test domain and trial, in order."""
    singles = [run for run in runs if len(run.test_domains) == 1]
    found: dict[tuple[object, ...], list[RunResult]] = {}
    for run in in_order(sorted(singles, key=_place)):
        found.setdefault(run.identity[:-1], []).append(run)
    return list(found.values())


def _place(run: RunResult) -> tuple[int, int, int]:
    """Return the position of a run by its test domain in the data set, then by trial and draw."""
    return list(run.records[0].accuracy).index(run.test_domains[0]), run.trial, run.draw


def group_of(runs: Sequence[RunResult], of: str | None = None) -> Group:
    """Return the runs as members of a soup; raise if they do not share their start.

    Args:
        of: one of ``results.soups.WEIGHTS``; None for the best record if every run kept it, else
            the last weights.
    """
    if of is None:
        try:
            return group_of(runs, BEST_RECORD)
        except NotKept:
            return group_of(runs, LAST_WEIGHTS)
    members, missing = [], dict[int, str]()
    for result in runs:
        try:
            members.append(_member(result, of))
        except NotKept as error:
            missing[result.draw] = str(error)
    if missing:
        draws = f"draw{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        raise NotKept(
            f"{_where(runs[0])} lacks the weights {of!r} of {draws} (of {len(runs)} runs): "
            f"{next(iter(missing.values()))}"
        )
    if different := next(_differences([member.run for member in members]), None):
        raise ValueError(
            f"{_where(runs[0])} cannot be averaged, because its runs do not start from the same "
            f"weights and data: {different}; put them into sweeps of their own"
        )
    return Group(tuple(members), of)


def _where(run: RunResult) -> str:
    """Return the place of a run's group in words."""
    return f"{title_of(run.algorithm)} on {run.test_domains[0]}, trial {run.trial},"


def _member(result: RunResult, of: str) -> Member:
    if result.path is None:
        raise NotKept("the runs have no folders")
    weights = _weights_of(result, result.path, of)
    card = read_card(weights)
    return Member(
        run=RunFolder(result.path).run(),
        folder=result.path,
        weights=weights,
        step=card["step"],
        sha256=card["sha256"],
    )


def _weights_of(result: RunResult, folder: Path, of: str) -> Path:
    """Return the folder of a run's chosen weights."""
    if of == BEST_RECORD:
        choices = choose_runs([result], "training-domain")
        if not choices:
            raise NotKept(f"{folder} has no accuracy on what is held out, so no best record")
        return model_of(choices[0])
    found = average_folder(folder, "" if of == LAST_WEIGHTS else of)
    if not (found / CARD).is_file():
        what = "the last weights" if of == LAST_WEIGHTS else f"the average {of}"
        raise NotKept(f"{folder} has no {CARD} of {what}; train it again, or choose other weights")
    return found


def _differences(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what the runs do not have in common, in words."""
    if len({run.fingerprint for run in runs}) > 1:
        yield "their data have changed in between"
    for name in SHARED:
        values = dict.fromkeys(str(getattr(run.protocol, name)) for run in runs)
        if len(values) > 1:
            yield f"{name.replace('_', ' ')} {' and '.join(values)}"
