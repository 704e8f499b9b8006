"""Compare two commits: the same commands must write the same numbers and weights, bit for bit.

    python tools/compare_commits.py OLD NEW --out benchmarks/results/FILE.json

Both commits are unpacked into a temporary folder and run the same commands side by side, on a CPU
with one thread each: ten short trainings, a sweep of six runs, a fit on images and one on a table
with their predictions, and a report of every sweep that either commit holds as an archive. Only
``python -m shoal`` is run and only files are read, so the modules of the two can differ at will.
The exit status is 1 if anything differs; ``NOT_COMPARED`` lists what is not compared.
"""

import argparse
import io
import json
import os
import platform
import random
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from PIL import Image
from safetensors import safe_open

REPOSITORY = Path(__file__).resolve().parent.parent
SIDES = ("old", "new")
DOMAINS = ("hospital_a", "hospital_b", "hospital_c")
# Time stamp of all images: a fit uses it to tell whether its features are up to date.
WRITTEN = 1_600_000_000

# Files that are not compared, files that must only exist, and keys of JSON files.
TIMES = {
    "timing.json": "seconds and machine",
    "rates.json": "seconds of an update and of an evaluation",
}
ONLY_THERE = {"report.html": "a page: prose, layout and pictures"}
VERSIONS = {("model.json", "shoal"): "version of the package"}
# Sentences for people: they can differ, and the number of differences is reported.
PROSE = {
    ("estimate.json", "sentences"): "sentences; those that differ are counted",
    ("model.json", "estimate.sentences"): "sentences; those that differ are counted",
}
ONNX_NOTES = ("metadata_props", "doc_string")
NOT_COMPARED = {
    **TIMES,
    **{name: f"{why}; that it is there is compared" for name, why in ONLY_THERE.items()},
    **{f"{name}: {key}": why for (name, key), why in (VERSIONS | PROSE).items()},
    f"*.onnx: {', '.join(ONNX_NOTES)}": "source lines and paths of the exported code",
    "report --format json: strings": "prose and display names; those that differ are counted",
    "stdout and stderr": "but for the output of predict, which is compared byte for byte",
}

ABSENT = "(absent)"
# Characters of a value, and mismatches of an item, that are shown.
LONGEST, MOST = 200, 10


@dataclass(frozen=True)
class Item:
    """One command.

    Args:
        words: what follows ``shoal``.
        folder: what it writes and is compared; else its output.
        report: whether it writes a report, as the file ``folder``.
        runs: folders of runs that it must leave.
    """

    name: str
    words: tuple[str, ...]
    folder: str | None = None
    report: bool = False
    runs: int = 0

    @property
    def output(self) -> str:
        """The file with what the command prints."""
        return f"output/{self.name.replace(' ', '-')}"


@dataclass
class Comparison:
    """The number of things compared, and the differences."""

    counts: Counter[str] = field(default_factory=Counter)
    mismatches: list[dict[str, str]] = field(default_factory=list)
    strings: Counter[tuple[str, str]] = field(default_factory=Counter)

    def differ(self, file: str, key: str, old: Any, new: Any) -> None:
        before, after = excerpts(str(old), str(new))
        self.mismatches.append({"file": file, "key": key, "old": before, "new": after})

    def expect(self, file: str, key: str, old: Any, new: Any) -> bool:
        """Note a difference if two values are not the same; a number and its text are not."""
        same = repr(old) == repr(new)
        if not same:
            self.differ(file, key, repr(old), repr(new))
        return same


def excerpts(old: str, new: str) -> tuple[str, str]:
    """Return two texts; long ones are cut to where they begin to differ."""
    if max(len(old), len(new)) <= LONGEST:
        return old, new
    pairs = enumerate(zip(old, new, strict=False))
    same = next((k for k, (one, other) in pairs if one != other), min(len(old), len(new)))
    start = max(0, same - LONGEST // 4)
    shown = slice(start, start + LONGEST)
    return "…" * bool(start) + old[shown], "…" * bool(start) + new[shown]


# The commands


def training(algorithm: str, dataset: str, *more: str) -> Item:
    """Return a training of five updates with three records."""
    folder = f"train/{algorithm}"
    words = ("train", "--dataset", dataset, "--algorithm", algorithm, *more)
    lengths = ("--steps", "5", "--record-every", "2", "--predictions", "--device", "cpu")
    return Item(f"train {algorithm}", (*words, *lengths, "--out", folder), folder, runs=1)


def commands() -> list[Item]:
    """Return all commands but the reports, in the order in which they are run.

    Digits have no test domain and few images held out, because evaluations would take minutes.
    """
    few = ("--holdout", "0.003")
    photos = ("--network", "efficientnet-lite0", "--test-domain", "hospital_c")
    best = ("--keep-best", "training-domain", "calibrated")
    eight, two = ("--set", "batch_size=8"), ("--set", "batch_size=2")
    sweep = (
        "sweep --algorithms vrex fishr --datasets photos --network efficientnet-lite0 --trials 1"
    )
    sweep += " --draws 1 --steps 3 --record-every 2 --set batch_size=2 warmup_steps=1"
    sweep += " --workers 1 --device cpu --out sweep"
    # With --runs and without --time, the set of runs does not depend on time.
    images = "fit photos --algorithms vrex --steps 10 --trials 1 --runs 9 --device cpu"
    table = "fit patients.csv --algorithms coral --steps 30 --trials 2 --runs 18 --device cpu"
    return [
        training("fishr", "colored-mnist", *few, *best, *eight, "warmup_steps=2", "--log", "gaps"),
        training("irm", "colored-mnist", *few, *eight, "warmup_steps=2", "--draw", "1"),
        training("mldg", "colored-mnist", *few, *eight, "--trial", "1"),
        training("fish", "colored-mnist", *few, *eight, "--optimiser", "sgd"),
        training("dann", "colored-mnist", *few, *eight, "--draw", "2"),
        training("and-mask", "colored-mnist", *few, *eight, "--balanced"),
        training("sagnet", "rotated-mnist", *few, *eight),
        training("arm", "rotated-mnist", *few, *eight, *best),
        training("mixup", "photos", *photos, *two, *best),
        training("coral", "photos", *photos, *two, "--schedule", "cosine", "--clip", "1"),
        Item("sweep", tuple(sweep.split()), "sweep", runs=6),
        Item("fit images", (*images.split(), "--out", "fit/images"), "fit/images", runs=10),
        Item("predict images", ("predict", "fit/images", "photos", "--csv", "--device", "cpu")),
        Item("fit table", (*table.split(), "--out", "fit/table"), "fit/table", runs=19),
        Item("predict table", ("predict", "fit/table", "patients.csv", "--csv", "--device", "cpu")),
    ]


def reports(sweeps: dict[str, str]) -> Iterator[Item]:
    """Yield a report of every sweep, named by its folder."""
    for folder, path in sweeps.items():
        written = f"reports/{PurePosixPath(folder).name}.json"
        words = ("report", folder, "--format", "json", "--out", written)
        yield Item(f"report {PurePosixPath(path).name}", words, written, report=True)


def write_photos(root: Path) -> None:
    """Write 36 different images of 48 × 40, dark or bright by class, with one time stamp."""
    noise = np.random.RandomState(0)
    for number, domain in enumerate(DOMAINS):
        for kind, level in (("dark", 40), ("bright", 190)):
            folder = root / domain / kind
            folder.mkdir(parents=True)
            for k in range(6):
                pixels = noise.randint(0, 50, (40, 48, 3)) + level
                pixels[..., number] //= 2
                path = folder / f"{k}.png"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
                os.utime(path, (WRITTEN, WRITTEN))


def write_table(path: Path) -> None:
    """Write 120 rows whose class depends on a number, with gaps and a column of categories."""
    draw = random.Random(0)
    lines = ["domain,size,shade,colour,class"]
    for number, domain in enumerate(DOMAINS):
        for _ in range(40):
            size = draw.uniform(0, 10)
            shade = "" if draw.random() < 0.1 else f"{draw.gauss(number, 1):.2f}"
            colour = draw.choice(["red", "green"])
            kind = "big" if size + draw.gauss(0, 1) > 5 else "small"
            lines.append(f"{domain},{size:.2f},{shade},{colour},{kind}")
    path.write_text("\n".join(lines) + "\n")


# Running the commands


def git(*words: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(REPOSITORY), *words], capture_output=True, check=True
    ).stdout


def unpack(archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def committed_sweeps(commits: Sequence[str]) -> dict[str, tuple[str, bytes]]:
    """Return the archives of sweeps in the commits: path and content, by folder."""
    blobs: dict[str, str] = {}
    for commit in commits:
        for line in git("ls-tree", "-r", commit).decode().splitlines():
            about, path = line.split("\t")
            if path.endswith(".tar.gz"):
                blobs.setdefault(about.split()[2], path)
    found = {}
    for blob, path in blobs.items():
        content = git("cat-file", "blob", blob)
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            plans = [name for name in files.getnames() if fnmatch(name, "*/plan.json")]
        for plan in plans:
            found[f"sweeps/{blob[:8]}/{PurePosixPath(plan).parent}"] = path, content
    return found


def prepare(side: Path, commit: str, sweeps: dict[str, tuple[str, bytes]]) -> None:
    """Write the source of a commit, and the data of its commands."""
    unpack(git("archive", commit, "src"), side / "source")
    work = side / "work"
    for folder in ("output", "reports"):
        (work / folder).mkdir(parents=True)
    write_photos(work / "photos")
    write_table(work / "patients.csv")
    for folder, (_, content) in sweeps.items():
        unpack(content, (work / folder).parent)


def environment(side: Path) -> dict[str, str]:
    """Return the variables for a commit's commands: its source, one thread, no GPU."""
    # Without byte code every process would compile torch again, for seconds.
    ours = ("PYTHONDONTWRITEBYTECODE", "SHOAL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {
        "PYTHONPATH": str(side / "source" / "src"),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "SHOAL_CACHE": "cache",
        "SHOAL_DATA": "data",
    }


def check_source(side: Path) -> None:
    """Raise if ``python -m shoal`` would not run the commit's own source."""
    code = "import importlib.util as i; print(i.find_spec('shoal').origin)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=side / "work",
        env=environment(side),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(found).is_relative_to(side / "source"):
        raise RuntimeError(f"{found} would run instead of the commit's source")


def run_all(side: Path, items: Sequence[Item]) -> dict[str, str]:
    """Run all commands; return the last lines of failed ones, without this machine's paths."""
    failed = {}
    for item in items:
        ended = subprocess.run(
            [sys.executable, "-m", "shoal", *item.words],
            cwd=side / "work",
            env=environment(side),
            capture_output=True,
            check=False,
        )
        (side / "work" / item.output).write_bytes(ended.stdout)
        if ended.returncode:
            last_line = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
            text = f"exit status {ended.returncode}: {''.join(last_line)}"
            for path, name in ((side, "SIDE"), (Path(sys.prefix), "PYTHON"), (REPOSITORY, "MAIN")):
                text = text.replace(str(path), name)
            failed[item.name] = text
    return failed


# Comparing


def compare(item: Item, old: Path, new: Path, failed: Sequence[dict[str, str]]) -> Comparison:
    """Compare a command's files in two working folders; if it failed in both, it is not equal."""
    found = Comparison()
    if any(item.name in side for side in failed):
        found.differ("(command)", "exit status", *(side.get(item.name, "0") for side in failed))
    if item.folder is None:
        compare_bytes(found, item.output, old, new)
        if not (old / item.output).stat().st_size:
            found.differ(item.output, "(bytes)", "nothing was printed", "")
    elif item.report:
        compare_reports(found, item.folder, old, new)
    else:
        compare_folders(found, item, old, new)
    return found


def compare_reports(found: Comparison, file: str, old: Path, new: Path) -> None:
    if compare_presence(found, file, old, new):
        before, after = (json.loads((side / file).read_text("utf-8")) for side in (old, new))
        compare_json(found, file, "", before, after, any_string=True)


def compare_folders(found: Comparison, item: Item, old: Path, new: Path) -> None:
    """Compare the names and contents of all files of a folder."""
    assert item.folder is not None
    files = {file for side in (old, new) for file in files_of(side, item.folder)}
    for file in sorted(files):
        if not compare_presence(found, file, old, new):
            continue
        name, suffix = PurePosixPath(file).name, PurePosixPath(file).suffix
        if name in ONLY_THERE:
            continue
        found.counts["files"] += 1
        if suffix == ".safetensors":
            compare_tensors(found, file, *(read_safetensors(side / file) for side in (old, new)))
        elif suffix == ".pt":
            both = (torch.load(side / file, weights_only=True) for side in (old, new))
            compare_tensors(found, file, *(dict(flat(one, "")) for one in both))
        elif suffix == ".onnx":
            compare_onnx(found, file, old, new)
        elif suffix == ".jsonl":
            compare_lines(found, file, old, new)
        elif suffix == ".json":
            compare_json(
                found, file, "", *(json.loads((s / file).read_text("utf-8")) for s in (old, new))
            )
        else:
            compare_bytes(found, file, old, new)
    for name, side in zip(SIDES, (old, new), strict=True):
        runs = list((side / item.folder).rglob("records.jsonl"))
        if len(runs) != item.runs:
            found.differ(item.folder, f"(runs of {name})", f"{item.runs} expected", len(runs))
        for run in runs:
            if len(run.read_text().splitlines()) < 2:
                found.differ(str(run.relative_to(side)), f"({name})", "two records expected", "")
    found.counts["runs"] = item.runs


def files_of(side: Path, folder: str) -> Iterator[str]:
    """Yield all files of a folder except those with times."""
    for path in (side / folder).rglob("*"):
        if path.is_file() and path.name not in TIMES:
            yield path.relative_to(side).as_posix()


def compare_presence(found: Comparison, file: str, old: Path, new: Path) -> bool:
    there = [(side / file).is_file() for side in (old, new)]
    if not all(there):
        found.differ(file, "(file)", *("present" if one else ABSENT for one in there))
    return all(there)


def compare_bytes(found: Comparison, file: str, old: Path, new: Path) -> None:
    before, after = ((side / file).read_bytes() for side in (old, new))
    found.counts["bytes"] += len(before)
    if before == after:
        return
    lines = [content.decode(errors="replace").splitlines() for content in (before, after)]
    found.expect(file, "(lines)", *map(len, lines))
    several = [(k, *pair) for k, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]]
    for number, one, other in several:
        found.differ(file, f"line {number + 1}", one, other)
    if not several:
        found.differ(file, "(bytes)", f"{len(before)} bytes", f"{len(after)} bytes")


def compare_lines(found: Comparison, file: str, old: Path, new: Path) -> None:
    """Compare lines of JSON byte for byte; differences are named by their key."""
    before, after = ((side / file).read_bytes() for side in (old, new))
    found.counts["bytes"] += len(before)
    if PurePosixPath(file).name == "records.jsonl":
        found.counts["records"] += before.count(b"\n")
    if before == after:
        return
    mismatches = len(found.mismatches)
    lines = [content.decode().splitlines() for content in (before, after)]
    found.expect(file, "(lines)", *map(len, lines))
    for number, (one, other) in enumerate(zip(*lines, strict=False), 1):
        if one != other:
            compare_json(found, file, f"line {number}", json.loads(one), json.loads(other))
    if mismatches == len(found.mismatches):
        found.differ(file, "(bytes)", "same JSON", "written differently")


def compare_json(
    found: Comparison, file: str, key: str, old: Any, new: Any, any_string: bool = False
) -> None:
    """Compare two values recursively.

    Args:
        any_string: whether strings may differ, and are counted.
    """
    name = PurePosixPath(file).name
    if (name, key) in VERSIONS:
        return
    any_string = any_string or (name, key) in PROSE
    if isinstance(old, dict) and isinstance(new, dict):
        for part in [*old, *(part for part in new if part not in old)]:
            inner = f"{key}.{part}" if key else part
            if part in old and part in new:
                compare_json(found, file, inner, old[part], new[part], any_string)
            else:
                present = ["present" if part in one else ABSENT for one in (old, new)]
                found.differ(file, inner, *present)
    elif isinstance(old, list) and isinstance(new, list):
        found.expect(file, f"{key}.(length)", len(old), len(new))
        for k, (one, other) in enumerate(zip(old, new, strict=False)):
            compare_json(found, file, f"{key}[{k}]", one, other, any_string)
    elif isinstance(old, str) and isinstance(new, str):
        found.counts["strings"] += 1
        if any_string and old != new:
            found.strings[old, new] += 1
        elif old != new:
            found.differ(file, key, old, new)
    else:
        found.counts["numbers"] += 1
        found.expect(file, key, old, new)


def read_safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return {**tensors, "(metadata)": file.metadata()}


def flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts, lists and tuples, with their keys."""
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from flat(inner, f"{key}.{part}" if key else str(part))
    elif isinstance(value, list | tuple):
        for k, inner in enumerate(value):
            yield from flat(inner, f"{key}[{k}]")
    else:
        yield key, value


def compare_tensors(found: Comparison, file: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Compare tensors bit for bit, and other values among them."""
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in old or key not in new:
            present = ["present" if key in one else ABSENT for one in (old, new)]
            found.differ(file, key, *present)
        elif isinstance(old[key], torch.Tensor) and isinstance(new[key], torch.Tensor):
            compare_tensor(found, file, key, old[key], new[key])
        else:
            found.expect(file, key, old[key], new[key])


def compare_tensor(
    found: Comparison, file: str, key: str, old: torch.Tensor, new: torch.Tensor
) -> None:
    found.counts["tensors"] += 1
    kinds = (f"{one.dtype} {list(one.shape)}" for one in (old, new))
    if not found.expect(file, key, *kinds) or not old.numel():
        return
    bits = [
        one.contiguous().reshape(-1, 1).view(torch.uint8).reshape(one.numel(), -1)
        for one in (old, new)
    ]
    other = (bits[0] != bits[1]).any(dim=1)
    if other.any():
        first = int(other.nonzero()[0])
        where = f"{key} ({int(other.sum())} of {old.numel()} elements, first {first})"
        found.differ(file, where, *(one.reshape(-1)[first].item() for one in (old, new)))


def compare_onnx(found: Comparison, file: str, old: Path, new: Path) -> None:
    """Compare two networks: tensors bit for bit, and the rest without notes on the code."""
    networks = [onnx.load(side / file) for side in (old, new)]
    tensors = [
        {
            one.name: torch.from_numpy(onnx.numpy_helper.to_array(one).copy())
            for one in n.graph.initializer
        }
        for n in networks
    ]
    compare_tensors(found, file, *tensors)
    for network in networks:
        del network.graph.initializer[:]
        clear_notes(network)
    texts = [str(network).splitlines() for network in networks]
    if texts[0] != texts[1]:
        pairs = zip(*texts, strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), tuple(map(len, texts)))
        found.differ(file, "(graph, first line that differs)", *first)


def clear_notes(message: Any) -> None:
    """Clear the notes on source code in a message and all messages in it."""
    for about, value in message.ListFields():
        if about.name in ONNX_NOTES:
            message.ClearField(about.name)
        elif about.message_type is not None:
            for inner in value if isinstance(value, Sequence) else [value]:
                clear_notes(inner)


# The result


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cores": os.cpu_count(),
        "processor": next((one.split(":")[1].strip() for one in lines if "model name" in one), ""),
        "threads": "one for each commit, side by side",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def as_json(item: Item, found: Comparison) -> dict[str, Any]:
    return {
        "item": item.name,
        "command": " ".join(["shoal", *item.words]),
        "compared": dict(sorted(found.counts.items())),
        "equal": not found.mismatches,
        "strings_that_differ": found.strings.total(),
        "differing_strings": [
            {**dict(zip(SIDES, excerpts(*pair), strict=True)), "times": times}
            for pair, times in found.strings.items()
        ],
        "mismatches": found.mismatches,
    }


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a line for every item, and the differences below."""
    for one in results:
        counts = ", ".join(f"{number:,} {what}" for what, number in one["compared"].items())
        if one["strings_that_differ"]:
            counts += f"; {one['strings_that_differ']} strings differ"
        print(f"{one['item']:38} {'equal' if one['equal'] else 'DIFFERS':8} {counts}")
    for one in results:
        mismatches = one["mismatches"]
        for each in mismatches[:MOST]:
            print(f"{one['item']}: {each['file']}, {each['key']}: {each['old']} | {each['new']}")
        if len(mismatches) > MOST:
            print(f"{one['item']}: {len(mismatches) - MOST} more, which --out FILE writes")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the result as JSON")
    asked = parser.parse_args()
    begin = time.monotonic()
    names = (asked.old, asked.new)
    commits = [git("rev-parse", "--verify", f"{n}^{{commit}}").decode().strip() for n in names]
    sweeps = committed_sweeps(commits)
    items = [*commands(), *reports({folder: path for folder, (path, _) in sweeps.items()})]
    with TemporaryDirectory() as scratch:
        sides = [Path(scratch).resolve() / name for name in SIDES]
        for side, commit in zip(sides, commits, strict=True):
            prepare(side, commit, sweeps)
            check_source(side)
        with ThreadPoolExecutor(len(sides)) as pool:
            failed = list(pool.map(run_all, sides, [items] * len(sides)))
        old, new = (side / "work" for side in sides)
        results = [as_json(item, compare(item, old, new, failed)) for item in items]
    equal = all(one["equal"] for one in results)
    seconds = round(time.monotonic() - begin)
    show(results)
    print(
        f"{commits[0][:12]} and {commits[1][:12]}: {'equal' if equal else 'NOT equal'}, {seconds} s"
    )
    if asked.out is not None:
        result = {
            "benchmark": asked.out.stem,
            "command": f"python tools/compare_commits.py {commits[0][:12]} {commits[1][:12]}",
            "commit": commits[1],
            **dict(zip(SIDES, commits, strict=True)),
            "machine": machine(),
            "seconds": seconds,
            "equal": equal,
            "strings_that_differ": sum(one["strings_that_differ"] for one in results),
            "not_compared": NOT_COMPARED,
            "items": results,
        }
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
        print(asked.out)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
