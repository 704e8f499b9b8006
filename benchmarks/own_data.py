"""``shoal fit`` on folders of images: the whole command, from images to a model.

On all images, or with ``--images N`` on N, evenly from all domains and classes. The command can be
stopped and repeated with the same ``--work``: times add up. The times of files tell when all images
were decoded, and when every head had left out every domain: the first full table.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .recording import options, write


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="the data set itself, such as the folder PACS, with one folder per domain",
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for images, cache and model"
    )
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--name", default=None, help="of the result (default: number of images)")
    parser.add_argument("--time", default="10min")
    asked = parser.parse_args()
    data = asked.data if asked.images is None else subset(asked.data, asked.work, asked.images)
    out = asked.work / "model"
    command = [sys.executable, "-m", "shoal", "fit", str(data), "--out", str(out)]
    command += ["--time", asked.time, "--cache", str(asked.work / "cache")]
    started, begin = time.time(), time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - begin + _before(asked.work)
    (asked.work / "seconds.json").write_text(json.dumps(seconds))
    estimate = json.loads((out / "estimate.json").read_text())
    setup = json.loads((out / "fit.json").read_text())
    name = f"own_data_{asked.name or asked.images or 'all'}"
    numbers: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "decoded_after": last_change(asked.work / "cache", started),
        "first_table_after": first_table(out / "runs", setup["backbone"], started),
        "images": sum(1 for path in data.rglob("*") if path.is_file()),
        "runs": len(list((out / "runs").glob("*/done"))),
        "setup": {key: setup[key] for key in ("backbone", "trained", "steps", "precision")},
        "onnx": (out / "model.onnx").exists(),
        "estimate": estimate,
    }
    print(write(name, asked, numbers))


def _before(work: Path) -> float:
    """Return the total seconds of earlier commands."""
    path = work / "seconds.json"
    return float(json.loads(path.read_text())) if path.exists() else 0.0


def last_change(folder: Path, started: float) -> float:
    """Return after how many seconds the last file was written."""
    return round(max(path.stat().st_mtime for path in folder.rglob("*.*")) - started, 1)


def first_table(runs: Path, backbone: str, started: float) -> float | None:
    """Return after how many seconds every head had left out every domain; None without heads."""
    first: dict[tuple[str, ...], float] = {}
    for done in runs.glob("*/done"):
        run = json.loads((done.parent / "run.json").read_text())
        if run["protocol"].get("network") != backbone and len(run["test_domains"]) == 1:
            key, now = (run["algorithm"], *run["test_domains"]), done.stat().st_mtime
            first[key] = min(now, first.get(key, now))
    return round(max(first.values()) - started, 1) if first else None


def subset(data: Path, work: Path, number: int) -> Path:
    """Return a folder with ``number`` images, equally many of every domain."""
    target = work / f"PACS-{number}"
    domains = sorted(path for path in data.iterdir() if path.is_dir())
    for domain in domains:
        files = sorted(path for path in domain.rglob("*") if path.is_file())
        each = number // len(domains)
        for k in range(each):
            source = files[k * len(files) // each]
            copy = target / source.relative_to(data)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    return target


if __name__ == "__main__":
    main()
