"""Targets: what reads files of others, each with damaged ones, and what may come of it."""

import contextlib
import io
import json
import math
import os
import shutil
import socket
import tarfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

from shoal.cli import main
from shoal.datasets import Domain, DomainDataset
from shoal.datasets import download as downloads
from shoal.datasets.appearance import Appearance
from shoal.datasets.cache import build, open_cache
from shoal.datasets.features import load_features, write_features
from shoal.datasets.folders import image_folders
from shoal.datasets.images import decode, image_size, is_turned
from shoal.datasets.manifest import image_manifest, survey_manifest
from shoal.datasets.properties import properties_of
from shoal.datasets.tables import read_table, table_data
from shoal.datasets.unpack import unpack
from shoal.escapes import is_safe
from shoal.fitting import fit as fitting
from shoal.fitting.predictor import load
from shoal.results.records import failure_of, failures, read_runs, read_timing
from shoal.runs.folder import RunFolder
from tests.fuzz.mutations import NASTY, changed_bytes, json_files, line_files, tables
from tests.report.made_up import make_run, write_run

PATIENTS = Path(__file__).resolve().parent.parent / "fixtures" / "v0.1" / "patients.csv"
# What a case may take. Most take milliseconds; a server may be waited for.
SECONDS, BYTES = 20.0, 2**30
REFUSALS = (ValueError, OSError)


@dataclass
class Target:
    """Something that reads a file.

    Args:
        contents: a strategy for what is in the file.
        use: reads it; returns whether it was accepted without an exception.
        folder: all that exists afterwards must have existed before.
        named: what every refusal names, at least one of them.
    """

    name: str
    contents: st.SearchStrategy[Any]
    use: Callable[[Any], None]
    folder: Path
    named: tuple[str, ...] = ()
    cases: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0

    def check(self, content: Any) -> None:
        """Raise unless the content is accepted, or refused with a message; count it."""
        before = listing(self.folder)
        begin = time.perf_counter()
        try:
            self.use(content)
            outcome = "accepted"
        except REFUSALS as error:
            outcome = type(error).__name__
            if not str(error).strip():
                raise AssertionError(f"{outcome} says nothing") from error
            if self.named and not any(name in str(error) for name in self.named):
                raise AssertionError(f"the file is not named: {error}") from error
        seconds = time.perf_counter() - begin
        left = listing(self.folder) - before
        if left:
            raise AssertionError(f"left behind: {sorted(left)[:5]}")
        if seconds > SECONDS:
            raise AssertionError(f"it took {seconds:.1f} s")
        self.cases += 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.slowest = max(self.slowest, seconds)


def listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def command(*words: str) -> None:
    """Run a command, which may refuse; raise if it prints what a terminal acts upon."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    for text in (out.getvalue(), err.getvalue()):
        if wrong := [one for one in text if not is_safe(one) and one != "\n"]:
            raise AssertionError(f"{words[0]} prints {wrong[0]!r}")
    if status not in (0, 1):
        raise ValueError(err.getvalue())


# Cards, runs, plans and records, of a fit


def of_a_fit(root: Path) -> Iterator[Target]:
    out = root / "fit"
    before = fitting.onnx_missing
    fitting.onnx_missing = lambda: "onnx"  # its export takes longest, and is not read here
    try:
        fitting.fit(
            PATIENTS,
            out=out,
            only=["logistic-regression"],
            runs=3,
            trials=1,
            device="cpu",
            class_column="outcome",
            domain_column="site",
        )
    finally:
        fitting.onnx_missing = before
    yield cards(out, root / "card")
    yield weights(out, root / "weights")
    run = next((out / "runs").iterdir())
    yield runs(run, root / "run")
    yield plans(out, root / "plan")
    yield records(run, root / "records")
    yield small_files(run, root / "small")
    yield setups(out, root / "setup")
    yield references(out, root / "reference")
    yield measured_cards(out, root / "measured")


ROW = {"size": [1.0], "shade": [0.5], "colour": ["red"]}


def use_model(folder: Path) -> None:
    model = load(folder, "cpu")
    (found,) = model.predict(ROW)
    if found.error is None and not math.isfinite(found.probability or 0.0):
        raise AssertionError("a probability that is not finite")
    model.monitor({key: 40 * column for key, column in ROW.items()})
    if model.adaptation.offered is not None:
        model.predict(ROW, adapt=True)


def cards(out: Path, folder: Path) -> Target:
    folder.mkdir()
    for name in ("model.safetensors", "reference.safetensors"):
        shutil.copy(out / name, folder)
    card = json.loads((out / "model.json").read_text())
    # The estimate of all methods is most of the file, and only people read it.
    card["estimate"] = {}
    # What a card of images has besides.
    pixels = torch.arange(3 * 16 * 16).remainder(251).byte().reshape(1, 3, 16, 16)
    card["inputs"]["appearance"] = Appearance.of([pixels]).as_json()

    def use(content: bytes) -> None:
        (folder / "model.json").write_bytes(content)
        use_model(folder)

    (folder / "model.json").touch()
    return Target("cards", json_files(card), use, folder)


def weights(out: Path, folder: Path) -> Target:
    """Return the tensors of a model; its card has the sum of whatever they are."""
    folder.mkdir()
    card = json.loads((out / "model.json").read_text())
    whole = (out / "model.safetensors").read_bytes()

    def use(content: bytes) -> None:
        (folder / "model.safetensors").write_bytes(content)
        (folder / "model.json").write_text(
            json.dumps(card | {"sha256": sha256(content).hexdigest()})
        )
        use_model(folder)

    for name in ("model.json", "model.safetensors"):
        (folder / name).touch()
    return Target("weights", changed_bytes(whole), use, folder)


def runs(run: Path, folder: Path) -> Target:
    shutil.copytree(run, folder / "runs" / "a")
    (folder / "runs" / "a" / "lock").touch()

    def use(content: bytes) -> None:
        (folder / "runs" / "a" / "run.json").write_bytes(content)
        read_runs([folder])
        failures([folder])
        RunFolder(folder / "runs" / "a").run()

    base = json.loads((run / "run.json").read_text())
    return Target("run.json", json_files(base), use, folder, (str(folder / "runs" / "a"),))


def plans(out: Path, folder: Path) -> Target:
    folder.mkdir()
    (folder / "plan.json").touch()

    def use(content: bytes) -> None:
        (folder / "plan.json").write_bytes(content)
        command("status", str(folder), "--json")
        command("status", str(folder))

    plan = json.loads((out / "plan.json").read_text())[:2]
    return Target("plan", json_files(plan), use, folder, ("plan.json",))


def records(run: Path, folder: Path) -> Target:
    path = folder / "runs" / "a"
    shutil.copytree(run, path)
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    lines = [lines[0] | {"step": step} for step in range(3)]

    def use(content: bytes) -> None:
        (path / "records.jsonl").write_bytes(content)
        for found in read_runs([folder]):
            assert found.last is not None
            float(found.last_inside)
        RunFolder(path).records()

    return Target("records", line_files(lines), use, folder, (str(path),))


def small_files(run: Path, folder: Path) -> Target:
    """Return the files of a run that may be damaged without harm."""
    path = folder / "runs" / "a"
    shutil.copytree(run, path)
    for name in ("failed.json", "begun.json"):
        (path / name).touch()
    timing = json.loads((run / "timing.json").read_text())
    failed = {"kind": "ValueError", "reason": "Traceback:\n  x\nValueError: no", "memory": False}

    def use(content: bytes) -> None:
        for name in ("failed.json", "timing.json"):
            (path / name).write_bytes(content)
        read_timing(path)
        found = failure_of(path)
        assert found is not None and isinstance(found["reason"], str)
        assert len(read_runs([folder])) == 1

    return Target("small files of a run", json_files(timing) | json_files(failed), use, folder)


def setups(out: Path, folder: Path) -> Target:
    """Return the setup of a fit that a later command on the folder reads."""
    (folder / "runs" / "a").mkdir(parents=True)
    setup = json.loads((out / "fit.json").read_text())
    options = ("--class-column", "outcome", "--domain-column", "site", "--only", "random-forest")

    def use(content: bytes) -> None:
        (folder / "fit.json").write_bytes(content)
        command("fit", str(PATIENTS), *options, "--out", str(folder), "--plan-only", "-q")

    (folder / "fit.json").touch()
    return Target("setups of fits", json_files(setup), use, folder)


def references(out: Path, folder: Path) -> Target:
    folder.mkdir()
    for name in ("model.safetensors", "model.json", "reference.safetensors"):
        shutil.copy(out / name, folder)

    def use(content: bytes) -> None:
        (folder / "reference.safetensors").write_bytes(content)
        use_model(folder)

    whole = (out / "reference.safetensors").read_bytes()
    return Target("references", changed_bytes(whole), use, folder)


def measured_cards(out: Path, folder: Path) -> Target:
    """Return the cards of models that a command measures on a table."""
    folder.mkdir()
    shutil.copy(out / "model.safetensors", folder)
    card = json.loads((out / "model.json").read_text())
    card["estimate"] = {}

    def use(content: bytes) -> None:
        (folder / "model.json").write_bytes(content)
        command("eval", str(folder), "--dataset", str(PATIENTS), "--json", "-q")

    (folder / "model.json").touch()
    # A card without its class column is a model whose class column is "class".
    named = (str(folder), PATIENTS.name)
    return Target("cards of measured models", json_files(card), use, folder, named)


# Sweeps that are reported


REPORTS = (
    ("report", "--format", "terminal"),
    ("report", "--format", "markdown"),
    ("report", "--format", "latex"),
    ("report", "--format", "json"),
    ("report", "--format", "html", "--out", "page.html"),
    ("report", "--compare", "erm", "irm"),
    ("select", "--rule", "test-domain", "--out", "selected.json"),
    ("status", "--json"),
)


def sweeps(root: Path) -> Iterator[Target]:
    folder = root / "sweep"
    for name in ("erm", "irm"):
        for test in ("photo", "sketch"):
            run = write_run(folder / "runs", make_run("pacs", name, (test,), 0, 0, records=3))
    assert run.path is not None
    lines = [json.loads(line) for line in (run.path / "records.jsonl").read_text().splitlines()]
    averages = [line | {"average": "sma"} for line in lines]
    gaps = [line | {"gaps": {"risk": 0.1}} for line in lines]
    by_hand = {path.name: {"lr": 0.1} for path in (folder / "runs").iterdir()}
    about = json.loads((run.path / "run.json").read_text())
    damaged: dict[str, tuple[Path, st.SearchStrategy[bytes]]] = {
        "records": (run.path / "records.jsonl", line_files(gaps)),
        "averages": (run.path / "averages.jsonl", line_files(averages)),
        "descriptions of runs": (run.path / "run.json", json_files(about)),
        "settings by hand": (folder / "set_hparams.json", json_files(by_hand)),
    }
    for name, (path, contents) in damaged.items():
        yield Target(f"reports of {name}", *reported(folder, path, contents))
    foreign = root / "domainbed" / "a"
    foreign.mkdir(parents=True)
    path = foreign / "results.jsonl"
    yield Target("reports of DomainBed", *reported(foreign, path, line_files(of_domainbed())))


def of_domainbed() -> list[dict[str, Any]]:
    """Return lines as DomainBed writes them."""
    args = {"dataset": "PACS", "algorithm": "ERM", "test_envs": [0], "trial_seed": 0}
    shares = {f"env{k}_{split}_acc": 0.5 for k in range(4) for split in ("in", "out")}
    hparams = {"lr": 5e-5, "batch_size": 32}
    return [
        {"args": args | {"hparams_seed": 0}, "hparams": hparams, "step": step, "loss": 1.0} | shares
        for step in (0, 300)
    ]


def reported(
    folder: Path, path: Path, contents: st.SearchStrategy[bytes]
) -> tuple[st.SearchStrategy[Any], Callable[[Any], None], Path]:
    """Return what a target has that damages a file of a sweep and reports the sweep."""
    page = folder.parent / f"page of {path.name}"
    page.touch()
    before = path.read_bytes() if path.exists() else None
    path.touch()

    def use(case: tuple[bytes, tuple[str, ...]]) -> None:
        content, (name, *options) = case
        path.write_bytes(content)
        try:
            words = [
                str(page) if word in ("page.html", "selected.json") else word for word in options
            ]
            command(name, str(folder), *words)
        finally:
            path.write_bytes(before) if before is not None else path.unlink()
            path.touch()

    return st.tuples(contents, st.sampled_from(REPORTS)), use, folder


# Lists and tables


def lists(root: Path) -> Iterator[Target]:
    folder = root / "lists"
    rows = [(f"{place}/{kind}/1.png", kind, place) for place in "ab" for kind in ("cat", "dog")]
    for path, _, _ in rows:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / path)
    for suffix in (".csv", ".json"):
        (folder / f"list{suffix}").touch()

    def use_as(suffix: str) -> Callable[[bytes], None]:
        def use(content: bytes) -> None:
            path = folder / f"list{suffix}"
            path.write_bytes(content)
            with contextlib.suppress(ValueError):
                survey_manifest("mine", path)
            image_manifest("mine", path)

        return use

    text = "path,class,domain\n" + "".join(",".join(row) + "\n" for row in rows)
    entries = [dict(zip(("path", "class", "domain"), row, strict=True)) for row in rows]
    yield Target(
        "lists of images, CSV", tables(text.encode()), use_as(".csv"), folder, ("list.csv",)
    )
    yield Target(
        "lists of images, JSON", json_files(entries), use_as(".json"), folder, ("list.json",)
    )

    table = root / "table"
    table.mkdir()

    def use_table_as(suffix: str) -> Callable[[bytes], None]:
        path = table / f"table{suffix}"
        path.touch()

        def use(content: bytes) -> None:
            path.write_bytes(content)
            with contextlib.suppress(ValueError):
                read_table(path, {})
            table_data("mine", path, "outcome", "site")

        return use

    yield Target("tables", tables(PATIENTS.read_bytes()), use_table_as(".csv"), table)
    kinds = st.one_of(*(changed_bytes(one) for one in seeds_of_parquet()), parquet_files())
    yield Target("tables, Parquet", kinds, use_table_as(".parquet"), table, ("table.parquet",))

    dataset = image_folders("mine", folder, domains=["a", "b"])
    cache = root / "cache"
    build(dataset, cache)
    manifest = json.loads((cache / "manifest.json").read_text())

    def use_cache(content: bytes) -> None:
        (cache / "manifest.json").write_bytes(content)
        open_cache(dataset, cache)

    yield Target("manifests of caches", json_files(manifest), use_cache, cache, (str(cache),))


def features(root: Path) -> Iterator[Target]:
    folder = root / "features"
    folder.mkdir()
    path = folder / "features.safetensors"
    domains = tuple(Domain(name, torch.tensor([0, 1]), torch.eye(2)) for name in "ab")
    write_features(path, DomainDataset("mine", ("x", "y"), domains))
    whole = path.read_bytes()

    def use(content: bytes) -> None:
        path.write_bytes(content)
        load_features(path)

    yield Target("features", changed_bytes(whole), use, folder, ("features.safetensors",))


def in_parquet(table: Any, **options: Any) -> bytes:
    import pyarrow.parquet

    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content, **options)
    return content.getvalue()


def seeds_of_parquet() -> list[bytes]:
    import pyarrow.csv

    table = pyarrow.csv.read_csv(PATIENTS).slice(0, 60)
    return [in_parquet(table), in_parquet(table, compression="none", use_dictionary=False)]


@st.composite
def parquet_files(draw: st.DrawFn) -> bytes:
    """Draw a whole Parquet file with columns of any kind."""
    import pyarrow

    rows = draw(st.integers(0, 12))
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        pyarrow.string(): st.text(max_size=5),
        pyarrow.binary(): st.binary(max_size=5),
        pyarrow.float64(): st.floats(),
        pyarrow.float16(): st.floats(width=16).map(np.float16),
        pyarrow.bool_(): st.booleans(),
        pyarrow.uint64(): st.integers(0, 2**64 - 1),
        pyarrow.date32(): st.integers(-(2**31), 2**31 - 1),
        pyarrow.timestamp("s", "UTC"): st.integers(-(2**52), 2**52),
        pyarrow.timestamp("ns"): st.integers(-(2**63), 2**63 - 1),
        pyarrow.duration("us"): st.integers(-(2**63), 2**63 - 1),
        pyarrow.time32("s"): st.integers(0, 86_399),
        pyarrow.decimal128(38, 2): st.decimals(-(10**30), 10**30, places=2),
        pyarrow.null(): st.none(),
        pyarrow.list_(pyarrow.int8()): st.lists(st.integers(-9, 9), max_size=2),
        pyarrow.struct({"a": pyarrow.date32()}): st.fixed_dictionaries(
            {"a": st.integers(-(2**31), 2**31 - 1)}
        ),
    }
    names = draw(st.lists(st.sampled_from(("x", "y", "", "\x1b", "outcome")), max_size=4))
    names = [*(("outcome", "site") if draw(st.integers(0, 4)) else ()), *names]
    columns = []
    for _ in names:
        kind = draw(st.sampled_from(list(kinds)))
        values = st.none() | kinds[kind] if draw(st.booleans()) else kinds[kind]
        few = draw(st.lists(values, min_size=1, max_size=4))
        columns.append(pyarrow.array([few[k % len(few)] for k in range(rows)], kind))
    return in_parquet(pyarrow.Table.from_arrays(columns, names=names))


# Archives


def seeds_of_archives() -> list[bytes]:
    found = []
    for way in ("w", "w:gz", "w:bz2", "w:xz"):
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            content = io.BytesIO()
            with tarfile.open(fileobj=content, mode=way, format=form) as archive:  # type: ignore[call-overload]
                for name, body in (("a", b"x"), ("b" * 130 + "/ä", b"y" * 600), ("d/e/f", b"")):
                    info = tarfile.TarInfo(name)
                    info.size = len(body)
                    archive.addfile(info, io.BytesIO(body))
            found.append(content.getvalue())
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", compression) as zipped:
            zipped.writestr("a/b", b"x" * 500)
            zipped.writestr("c", b"")
        found.append(content.getvalue())
    return found


def summed(content: bytes) -> bytes:
    """Return a plain tar file whose first headers have right sums again, so that they are read."""
    blocks = bytearray(content)
    for start in range(0, min(len(blocks) - 511, 4096), 512):
        block = blocks[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            block[148:156] = f"{sum(block):06o}\0 ".encode()
            blocks[start : start + 512] = block
    return bytes(blocks)


def archives(root: Path) -> Iterator[Target]:
    folder = root / "archives"
    folder.mkdir()
    (folder / "archive").touch()

    def use(content: bytes) -> None:
        target = folder / "target"
        (folder / "archive").write_bytes(content)
        try:
            unpack(folder / "archive", target, limit=2**22)
        finally:
            if target.exists():
                outside = [one for one in target.rglob("*") if one.is_symlink()]
                shutil.rmtree(target)
                if outside:
                    raise AssertionError(f"a link was unpacked: {outside[0]}")

    changed = [changed_bytes(seed) for seed in seeds_of_archives()]
    headers = [changed_bytes(seed).map(summed) for seed in seeds_of_archives()[:3]]
    contents = st.one_of(*changed, *headers, *headers, st.sampled_from(NASTY))
    yield Target("archives", contents, use, folder, ("archive",))


# Images


def seeds_of_images() -> list[bytes]:
    found = []
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[274] = 6
    for form in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        content = io.BytesIO()
        image.save(content, form, **({"exif": exif} if form in ("JPEG", "PNG", "WEBP") else {}))
        found.append(content.getvalue())
    content = io.BytesIO()
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(content, "PNG")
    found.append(content.getvalue())
    content = io.BytesIO()
    image.save(content, "EPS")
    found.append(content.getvalue())
    return found


def images(root: Path) -> Iterator[Target]:
    folder = root / "images"
    folder.mkdir()
    path = folder / "image.png"
    path.touch()

    def use(content: bytes) -> None:
        path.write_bytes(content)
        is_turned(path)
        image_size(path)
        properties_of(path, 16)
        found = decode(path)
        assert found.shape[0] == 3

    contents = st.one_of(*map(changed_bytes, seeds_of_images()), st.sampled_from(NASTY))
    yield Target("images", contents, use, folder, ("image.png",))


# Answers of a server


ANSWERS = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "a"\r\n\r\nhello',
    b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\nETag: "a"\r\n\r\nhello',
    b'HTTP/1.1 206 Partial\r\nContent-Range: bytes 5-8/9\r\nETag: "a"\r\n\r\n1234',
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /other\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
    b"HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 \x1b[2J later\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.0 404 Not Found\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
)


class Answering:
    """A server on this machine that sends the next of some answers, whatever it is asked."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/file.zip"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            asking, _ = self.socket.accept()
            with asking, contextlib.suppress(OSError):
                asking.settimeout(2)
                asking.recv(4096)
                if self.answers:
                    asking.sendall(self.answers.pop(0))
                asking.shutdown(socket.SHUT_WR)


def servers(root: Path) -> Iterator[Target]:
    folder = root / "servers"
    folder.mkdir()
    path = folder / "file.zip"
    downloads.TIMEOUT = 2
    server = Answering()

    def use(answers: list[bytes]) -> None:
        server.answers = list(answers)
        try:
            downloads.download(server.url, path, size_limit=2**20, wait=0.0)
        finally:
            # The bytes so far are kept for the next attempt, under these names and no other.
            for name in ("file.zip", "file.zip.part", "file.zip.part.json"):
                (folder / name).unlink(missing_ok=True)

    one = st.sampled_from(ANSWERS).flatmap(changed_bytes) | st.sampled_from(ANSWERS)
    yield Target("answers of a server", st.lists(one, min_size=1, max_size=4), use, folder)


@contextlib.contextmanager
def all_targets(root: Path) -> Iterator[list[Target]]:
    """Yield every target, with its files below ``root``."""
    os.environ.setdefault("COLUMNS", "200")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = (of_a_fit, sweeps, lists, features, archives, images, servers)
        yield [target for kind in kinds for target in kind(root)]
