"""Committed records of sweeps: runs keep their folders, and the commands beside them find them."""

import json
import re
import shlex
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.catalogue import DATASETS as FACTS
from shoal.datasets import DATASETS, load_dataset
from shoal.runs.run import Run
from shoal.sweeps.plan import folder_of
from tests.docs.test_documents import ROOT, build_parser

ARCHIVES = sorted((ROOT / "docs" / "results").rglob("*.tar.gz"))


@dataclass(frozen=True)
class Archived:
    """A sweep in an archive: finished runs and planned ones, by the names of their folders."""

    runs: dict[str, Run] = field(default_factory=dict)
    plan: dict[str, Run] = field(default_factory=dict)


@cache
def read(path: Path) -> dict[str, Archived]:
    """Return the sweeps of an archive by their folders; fail where a file of a run is missing."""
    files: dict[Path, set[str]] = {}
    found: dict[str, Archived] = {}
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            place = Path(member.name)
            content = archive.extractfile(member)
            if content is None:  # a folder
                continue
            sweep = found.setdefault(place.parts[0], Archived())
            if place.name == "plan.json":
                planned = map(Run.from_json, json.load(content))
                sweep.plan.update({name_of(run): run for run in planned})
            elif place.name == "run.json":
                sweep.runs[place.parent.name] = Run.from_json(json.load(content))
            if place.parts[1] == "runs" and member.size + (place.name == "done"):
                files.setdefault(place.parent, set()).add(place.name)
    for folder, there in files.items():
        assert {"run.json", "records.jsonl", "done"} <= there, f"{path.name}: {folder}"
    return found


def name_of(run: Run) -> str:
    """Return the name of the run's folder in a sweep."""
    return folder_of(Path(), run).name


# Archives of the runs of a fit, which makes its plan anew each time and stores none.
FITS = {"gas-drift"}
EVERYTHING = [(path, folder) for path in ARCHIVES for folder in read(path)]
SWEEPS = [one for one in EVERYTHING if one[1] not in FITS]
every_sweep = pytest.mark.parametrize(("path", "folder"), SWEEPS, ids=[one for _, one in SWEEPS])


def test_there_are_archives() -> None:
    assert len(ARCHIVES) >= 7
    assert sum(len(read(path)[folder].runs) for path, folder in SWEEPS) > 1000
    assert {folder for _, folder in EVERYTHING} >= FITS


@pytest.mark.parametrize(("path", "folder"), EVERYTHING, ids=[one for _, one in EVERYTHING])
def test_every_run_keeps_the_name_of_its_folder(path: Path, folder: str) -> None:
    """It is a hash of all that the run depends on, so nothing that was added since enters it."""
    runs = read(path)[folder].runs
    assert runs
    for name, run in runs.items():
        assert name_of(run) == name


@every_sweep
def test_every_run_is_in_the_plan(path: Path, folder: str) -> None:
    sweep = read(path)[folder]
    assert sweep.runs.keys() <= sweep.plan.keys()


def commands_for(path: Path, folder: str) -> list[str]:
    """Return the commands of the page beside an archive that train in this folder."""
    text = (path.parent / "README.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith(f"| {path.name} |")]
    found = re.findall(r"`(shoal [^`]+)`", "\n".join(lines))
    return [command for command in found if command.endswith(f"--out out/{folder}")]


def domains_of(sweep: Archived) -> tuple[str, ...]:
    """Return the domains that a sweep leaves out, one after the other."""
    return tuple(dict.fromkeys(run.test_domains[0] for run in sweep.plan.values()))


def folder_at(path: str, dataset: Any) -> Any:
    """Return a data set in the place of the folder at ``path``, which must have its name."""
    assert Path(path).name == dataset.name
    return dataset


class Planned(Exception):
    """Raised instead of training."""


def plan(options: Any, runs: Sequence[Run], workspace: Any) -> int:
    raise Planned(runs)


@cache
def data_set(name: str, trial: int, fingerprint: str | None, domains: tuple[str, ...]) -> Any:
    """Return as much of a data set as a plan needs.

    Args:
        fingerprint: of data that are not here; that of embedded data is computed.
    """
    found = load_dataset(name, None, trial) if fingerprint is None else None
    return SimpleNamespace(
        name=name,
        fingerprint=fingerprint or found.fingerprint,
        names=domains,
        domains=[SimpleNamespace(name=domain) for domain in domains],
        classes=("one", "other"),
        kind="images" if found is not None else "files",
        in_memory=found is not None,
    )


@every_sweep
def test_the_commands_beside_an_archive_find_every_run_done(
    path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = read(path)[folder]
    runs = sweep.runs
    (name,) = {run.dataset for run in runs.values()}
    published = name in FACTS
    embedded = published and FACTS[name].scale == "small"
    (fingerprint,) = {None if embedded else run.fingerprint for run in runs.values()}
    domains = FACTS[name].domains if published else domains_of(sweep)
    light = {trial: data_set(name, trial, fingerprint, domains) for trial in range(3)}
    if published:
        monkeypatch.setitem(DATASETS, name, lambda root, trial: light[trial])
    else:
        monkeypatch.setattr(
            "shoal.datasets.load_dataset", lambda text, root, trial=0: folder_at(text, light[trial])
        )
        monkeypatch.setattr("shoal.datasets.folders.empty_folders", lambda path: [])
    for module in ("sweep", "ablations"):
        monkeypatch.setattr(f"shoal.cli.{module}.run_sweep", plan)
    asked = commands_for(path, folder)
    assert asked, f"no command beside {path.name} trains in out/{folder}"
    planned: set[str] = set()
    for command in asked:
        words = shlex.split(command)[1:]
        options = build_parser(words).parse_args(words)
        with pytest.raises(Planned) as found:
            options.run(options)
        mine = {name_of(run) for run in found.value.args[0]}
        assert mine & runs.keys(), f"{command} finds nothing done"
        planned |= mine
    lost = sorted(runs.keys() - planned)
    assert not lost, f"no command finds {len(lost)} runs, such as {runs[lost[0]]}"
