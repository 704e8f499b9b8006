"""Finished runs for tables and pages, from whatever folders a command was given."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def finished_runs(folders: Sequence[Path]) -> list[Any]:
    """Return the runs in these folders, ours and DomainBed's; say which cannot be told apart."""
    from ..results.domainbed import read_domainbed
    from ..results.records import failures, read_runs

    theirs = [run for folder in folders for run in read_domainbed(folder)]
    # A folder may be named twice, or lie in another.
    once = {(run.path and run.path.resolve(), *run.identity): run for run in theirs}
    runs = [*read_runs(folders), *once.values()]
    if not runs:
        failed = len(failures(folders))
        why = f"; {failed:,} failed, and 'shoal status {folders[0]}' says why" if failed else ""
        raise ValueError(f"no finished run in {', '.join(map(str, folders))}{why}")
    note_twins(runs)
    return runs


def failed_runs(folders: Sequence[Path]) -> list[Any]:
    """Return the failed runs, each once, but for those whose data have changed since."""
    from ..results.records import failures
    from ..sweeps.status import left_behind

    found = {one.path.resolve(): one for one in failures(folders)}
    gone = {path.resolve() for at in sweeps_of(found.values()) for path in left_behind(at)}
    return [one for path, one in found.items() if path not in gone]


def sweeps_of(failed: Iterable[Any]) -> list[Path]:
    """Return the folders of sweeps in which these runs lie."""
    from ..sweeps.plan import PLAN

    above = (next((at for at in one.path.parents if (at / PLAN).exists()), None) for one in failed)
    return [at for at in dict.fromkeys(above) if at is not None]


def note_twins(runs: list[Any]) -> None:
    """Say where two runs differ in nothing that the tables know, as in steps or in the network."""
    from ..report.notes import twins

    if found := twins(runs):
        first, second = found[0]
        print(
            f"shoal: runs are there more than once ({len(found):,}), and rules choose between "
            f"them: {first.path} and {second.path}; report sweeps of different protocols apart",
            file=sys.stderr,
        )
