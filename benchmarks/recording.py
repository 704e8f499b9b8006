"""Records of measurements: commit, machine, command and numbers, as JSON."""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return the machine that the numbers were measured on."""
    about: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_threads": torch.get_num_threads(),
        "processor": _processor(),
    }
    if torch.cuda.is_available():
        about["gpu"] = torch.cuda.get_device_name()
    return about


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "")


def commit() -> str:
    """Return the short hash of the commit that is checked out; "unknown" without git."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result")
    parser.add_argument(
        "--commit",
        default=None,
        help="the measured commit, if there is no git (default: the one checked out)",
    )
    return parser


def _command() -> str:
    """Return the command without its output folder, DIR for other folders, files by name."""
    kept: list[str] = []
    option = ""  # whose values are read
    for word in sys.argv[1:]:
        option = word if word.startswith("--") else option
        if option in ("--out", "--commit", "--records", "--figure"):
            continue
        if (
            option in ("--data", "--cache", "--work", "--beside", "--model", "--extra-path")
            and word != option
        ):
            word = "DIR" if kept[-1] == option else "..."
            if kept[-1] == word:
                continue
        kept.append(_short(word))
    return " ".join([f"python -m benchmarks.{Path(sys.argv[0]).stem}", *kept])


def _short(word: str) -> str:
    """Return a word with the name of its file alone, unless the file is in the repository."""
    name, equals, path = word.rpartition("=")
    outside = "/" in path and not path.startswith(("docs/", "benchmarks/"))
    return f"{name}{equals}{Path(path).name}" if outside else word


def write(name: str, asked: argparse.Namespace, numbers: dict[str, Any]) -> Path:
    """Write a result and return its path."""
    result = {
        "benchmark": name,
        "command": _command(),
        "commit": asked.commit or commit(),
        "machine": machine(),
        **numbers,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    path: Path = asked.out / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path
