"""Finished runs for tables and pages, from whatever folders a command was given."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def finished_runs(folders: Sequence[Path]) -> list[Any]:
    """Return the runs in these folders, ours and DomainBed's; say which cannot be told apart."""
    from ..protocol.domainbed import read_domainbed
    from ..protocol.records import failures, read_runs

    theirs = [run for folder in folders for run in read_domainbed(folder)]
    once = {run.path.resolve(): run for run in theirs if run.path is not None}
    runs = [*read_runs(folders), *once.values()]
    if not runs:
        failed = len(failures(folders))
        why = f"; {failed:,} failed, and 'shoal status {folders[0]}' says why" if failed else ""
        raise ValueError(f"no finished run in {', '.join(map(str, folders))}{why}")
    note_twins(runs)
    return runs


def note_twins(runs: list[Any]) -> None:
    """Say where two runs differ in nothing that the tables know, as in steps or in the network."""
    from ..protocol.selection import twins

    if found := twins(runs):
        first, second = found[0]
        print(
            f"shoal: {len(found)} runs are there more than once, and rules choose between them: "
            f"{first.path} and {second.path}; report sweeps of different protocols apart",
            file=sys.stderr,
        )
