"""Works: small jobs of every command that writes, to be killed, cut off from power and repeated."""

import io
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import torch

from shoal.datasets import DATASETS, DomainDataset
from shoal.runs.run import Run
from shoal.sweeps.plan import folder_of, write_plan
from tests.fitting.made import write_images, write_table
from tests.runs.killing import tiny_in
from tests.runs.small import carry_out, small_run, squares
from tests.sweeps import driving
from tests.sweeps.workspaces import planned

# What no two undisturbed works have in common: seconds that passed, and locks.
DIFFERS = ("timing.json", "rates.json", "lock", "*.lock")
# The line of a fit's page with the seconds that its runs took.
TOOK = re.compile(rb"(?<=<dt>Time for these runs</dt><dd>)[^<]*")
# A file that a killed process left half written. Nothing reads it. The folder of a run is tidied
# when it is opened next; elsewhere another process may be writing, so it stays.
ASIDE = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")


class Refused(ValueError):
    """A command ended with an error, which it explained."""


@dataclass(frozen=True)
class Work:
    """A job that can be stopped at any moment and repeated until it ends.

    Args:
        carry_out: does it, from a folder of inputs into the folder of its output; as a process of
            its own it may also take threads, other processes and the names of data sets.
        prepare: writes the inputs, once.
        workers: how the command line of a worker looks, if it has any that die alone.
    """

    carry_out: Callable[[Path, Path], None]
    prepare: Callable[[Path], object] = lambda given: None
    workers: bytes = b""


def content_of(out: Path) -> dict[str, bytes]:
    """Return every file of an output that must not differ, by its name."""

    def may_differ(path: Path) -> bool:
        of_run = any((above / "run.json").exists() for above in path.parents)
        aside = ASIDE.fullmatch(path.name) is not None and not of_run
        return aside or any(fnmatch(path.name, one) for one in DIFFERS)

    files = (path for path in out.rglob("*") if path.is_file() and not may_differ(path))
    return {
        str(path.relative_to(out)): TOOK.sub(b"", content) if path.suffix == ".html" else content
        for path in files
        for content in [path.read_bytes()]
    }


def _run(given: Path, out: Path) -> None:
    tiny_in(out / "run", "fishr", steps=12)


def _train(given: Path, out: Path) -> None:
    tiny_in(out / "fishr", "fishr")
    tiny_in(out / "dann", "dann")


def _sweep(engine: str, out: Path) -> None:
    out.mkdir(exist_ok=True)
    planned(out, ("erm",), steps=8)  # six runs
    sys.argv = ["", str(out), engine]
    # Its workers start anew and find the tests there.
    paths = [str(driving.ROOT), str(driving.ROOT / "src")]
    os.environ["PYTHONPATH"], os.environ["OMP_NUM_THREADS"] = os.pathsep.join(paths), "1"
    os.chdir(driving.ROOT)
    if driving.main():
        raise SystemExit(1)


def _sweep_locally(given: Path, out: Path) -> None:
    _sweep("local", out)


def _sweep_on_ray(given: Path, out: Path) -> None:
    _sweep("ray", out)


def _shoal(*words: object) -> None:
    """Carry out a command of the command line; raise ``Refused`` with what it said if it failed."""
    from shoal.cli import main

    torch.set_num_threads(1)
    sys.modules["onnx"] = None  # type: ignore[assignment]  # its export takes most of the time
    said = io.StringIO()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(said):
        status = main([*map(str, words), "--device", "cpu"])
    if status:
        raise Refused(said.getvalue())


def _made_table(given: Path) -> None:
    write_table(given / "table.csv", rows=20, domains=("a", "b", "c"))


def _fit_table(given: Path, out: Path) -> None:
    only = ("logistic-regression", "erm", "fishr")
    words = ("fit", given / "table.csv", "--steps", 8, "--trials", 1, "--runs", 9)
    _shoal(*words, "--only", *only, "--set", "warmup_steps=0", "--out", out / "fit")


def _made_images(given: Path) -> None:
    write_images(given / "images", each=4)


def _fit_heads(given: Path, out: Path) -> None:
    # The cache of decoded images is of the user, not of the fit, but it may be torn as well.
    os.environ["SHOAL_CACHE"] = str(out / "cache")
    words = ("fit", given / "images", "--train", "head", "--steps", 8, "--trials", 1, "--runs", 6)
    only = ("logistic-regression", "erm")
    _shoal(*words, "--only", *only, "--out", out / "fit")


def _made_model(given: Path) -> None:
    _made_table(given)
    words = ("fit", given / "table.csv", "--only", "logistic-regression", "--runs", 3)
    _shoal(*words, "--out", given / "model")


def _monitor(given: Path, out: Path) -> None:
    words = ("monitor", given / "model", given / "table.csv", "--class-column", "class")
    _shoal(*words, "--page", out / "page.html")


def _coloured(root: object = None, trial: int = 0) -> DomainDataset:
    return squares((40, 50, 30), "colored-mnist", side=8)


def _member(draw: int, test: str) -> Run:
    given = {"network": "mnist-cnn", "start": "linear-probe", "steps": 3, "lr": 1e-6 * (1 + draw)}
    return small_run("erm", _coloured(), draw=draw, test_domains=(test,), **given)


def _made_sweep(given: Path) -> None:
    runs = [_member(draw, test) for test in "bc" for draw in (0, 1)]
    write_plan(given / "sweep", runs)
    for run in runs:
        carry_out(folder_of(given / "sweep", run), run, dataset=_coloured())


def _soup(given: Path, out: Path) -> None:
    DATASETS["colored-mnist"] = _coloured  # type: ignore[index]
    _shoal("soup", given / "sweep", "--out", out / "soups")


WORKS = {
    "run": Work(_run),
    "train": Work(_train),
    "sweep": Work(_sweep_locally, workers=driving.WORKERS["local"]),
    "ray": Work(_sweep_on_ray, workers=driving.WORKERS["ray"]),
    "fit table": Work(_fit_table, _made_table),
    "fit heads": Work(_fit_heads, _made_images),
    "monitor": Work(_monitor, _made_model),
    "soup": Work(_soup, _made_sweep),
}


def emptied(out: Path) -> Path:
    """Return the folder, new and empty."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def prepare(name: str, given: Path) -> None:
    """Write the inputs of the work of this name; processes are given a name to start with."""
    WORKS[name].prepare(emptied(given))


def carry_out_work(name: str, given: Path, out: Path) -> None:
    """Carry out the work of this name."""
    WORKS[name].carry_out(given, out)
