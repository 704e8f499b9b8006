"""Matrix: the core's tests on several versions of torch and Python, each in a new environment.

    python tools/matrix.py --out benchmarks/results/matrix.json

The package is built once and installed from its wheel, with the torch that pip finds; on Linux that
is often a CUDA build, some 6 GB on disk, deleted after its tests. A version that cannot be had here
stands in the table as such. The exit status is 1 if a test failed.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

REPOSITORY = Path(__file__).resolve().parent.parent
NEWEST = "newest"
TORCH = ("2.8", "2.10", "2.13", NEWEST)
PYTHON = ("3.11", "3.13")
# Formulas against oracles, private functions of torch, what every method promises, compiled code.
CORE = (
    "tests/paper",
    "tests/statistics",
    "tests/gradients",
    "tests/test_internals.py",
    "tests/test_penalties.py",
    "tests/test_regularizers.py",
    "tests/test_micro_batches.py",
    "tests/test_weight_average.py",
    "tests/test_randomness.py",
    "tests/test_scalars.py",
    "tests/test_storage.py",
    "tests/test_distributed.py",
    "tests/test_compile.py",
    "tests/test_rooms.py",
    "tests/test_vision.py",
    "tests/algorithms/test_contract.py",
    "tests/algorithms/test_fishr.py",
    "tests/algorithms/test_optimiser.py",
    "tests/networks/test_networks.py",
    "tests/networks/test_resnet.py",
    "tests/networks/test_mobilenet.py",
)
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
# An oracle of some tests; with its dependencies it would bring torchvision and another torch.
ORACLE = ("backpack-for-pytorch", "einops", "unfoldNd")


@dataclass(kw_only=True)
class Cell:
    """One version of Python with one of torch, and what became of the tests there."""

    python: str
    torch: str  # as asked for
    versions: dict[str, str] = field(default_factory=dict)  # of what was installed
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    missing: str | None = None  # why nothing could be run

    @property
    def verdict(self) -> str:
        if self.missing:
            return f"not here: {self.missing}"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.passed} passed{failed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", nargs="+", default=TORCH, metavar="VERSION")
    parser.add_argument("--python", nargs="+", default=PYTHON, metavar="VERSION")
    parser.add_argument("--tests", nargs="+", default=CORE, metavar="PATH")
    parser.add_argument("--out", type=Path, help="also write the result here")
    options = parser.parse_args()
    cells = []
    with TemporaryDirectory(prefix="matrix-") as folder:
        wheel = build(Path(folder))
        for torch in options.torch:
            for python in options.python:
                cell = try_out(python, torch, wheel, options.tests, Path(folder))
                cells.append(cell)
                print(f"Python {python}, torch {torch}: {cell.verdict}", file=sys.stderr)
                for name in cell.failed:
                    print(f"  failed: {name}", file=sys.stderr)
    result = describe(cells, options.tests)
    print("\n".join(table(result)))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return int(any(cell.failed for cell in cells))


def build(folder: Path) -> Path:
    """Return the wheel of the package, built in ``folder``."""
    pip(Path(sys.executable), "wheel", "--no-deps", "-w", str(folder), str(REPOSITORY))
    return next(folder.glob("*.whl"))


def try_out(python: str, torch: str, wheel: Path, tests: Sequence[str], folder: Path) -> Cell:
    """Return the cell of these versions, tried in an environment that is deleted afterwards."""
    cell = Cell(python=python, torch=torch)
    interpreter = next(interpreters(python), None)
    if interpreter is None:
        cell.missing = f"no Python {python}"
        return cell
    environment = folder / "environment"
    try:
        subprocess.run([str(interpreter), "-m", "venv", str(environment)], check=True)
        own = environment / "bin" / "python"
        wanted = "torch" if torch == NEWEST else f"torch=={torch}.*"
        pip(own, "install", "--no-compile", wanted, f"{wheel}[cli]", *TOOLS)
        pip(own, "install", "--no-compile", "--no-deps", *ORACLE)
        cell.versions = installed(own)
        run_tests(cell, own, tests, folder / "results.xml")
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines() or [str(error)]
        cell.missing = lines[-1]
    finally:
        shutil.rmtree(environment, ignore_errors=True)
    return cell


def interpreters(version: str) -> Iterator[Path]:
    """Yield interpreters of this version: on the path, or one of pyenv's or uv's."""
    roots = [
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions",
        Path.home() / ".local" / "share" / "uv" / "python",
    ]
    found = [path for root in roots for path in sorted(root.glob(f"*{version}.*/bin/python3"))]
    on_path = shutil.which(f"python{version}")
    for path in ([Path(on_path)] if on_path else []) + found:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([str(path), "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            yield path


def installed(python: Path) -> dict[str, str]:
    code = (
        "import json, platform, importlib.metadata as m; "
        "print(json.dumps({'python': platform.python_version()} | "
        "{name: m.version(name) for name in ('torch', 'numpy')}))"
    )
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def run_tests(cell: Cell, python: Path, tests: Sequence[str], report: Path) -> None:
    """Run the tests in an environment and fill in their results."""
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *tests]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment | threads,
        capture_output=True,
        text=True,
        check=False,
    )
    cell.seconds = round(time.perf_counter() - start, 1)
    if not report.exists():
        cell.failed = [f"pytest: {(done.stderr or done.stdout).strip().splitlines()[-1]}"]
        return
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            cell.failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in kinds:
            cell.skipped += 1
        else:
            cell.passed += 1
    # A skip that nobody expects ends with a status of its own.
    if done.returncode and not cell.failed:
        cell.failed = [f"pytest ended with status {done.returncode}: {done.stdout[-300:]}"]


def describe(cells: list[Cell], tests: Sequence[str]) -> dict[str, object]:
    git = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    return {
        "benchmark": "matrix",
        "command": "python tools/matrix.py",
        "commit": commit,
        "machine": {
            "python": ", ".join(sorted({c.versions["python"] for c in cells if c.versions})),
            "torch": ", ".join(sorted({c.versions["torch"] for c in cells if c.versions})),
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "tests": list(tests),
        "cells": [asdict(cell) for cell in cells],
    }


def processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def table(result: dict[str, object]) -> list[str]:
    """Return the table in Markdown: a row for each torch, a column for each Python."""
    cells = [Cell(**cell) for cell in result["cells"]]  # type: ignore[attr-defined]
    pythons = list(dict.fromkeys(cell.python for cell in cells))
    lines = ["| torch | " + " | ".join(f"Python {python}" for python in pythons) + " |"]
    lines.append("| --- |" + " --- |" * len(pythons))
    for torch in dict.fromkeys(cell.torch for cell in cells):
        mine = {cell.python: cell for cell in cells if cell.torch == torch}
        versions = sorted({c.versions["torch"] for c in mine.values() if c.versions})
        verdicts = [mine[python].verdict if python in mine else "–" for python in pythons]
        name = ", ".join(versions) or torch
        name += ", the newest" if torch == NEWEST else ""
        lines.append(f"| {name} | " + " | ".join(verdicts) + " |")
    return lines


def pip(python: Path, *arguments: str) -> None:
    quiet = ["-qq", "--disable-pip-version-check"]
    command = [str(python), "-m", "pip", *arguments, *quiet]
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
