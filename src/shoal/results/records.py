"""Records of runs: their format on disk, finished runs, failures and timings; free of torch."""

import gc
import math
import os
import re
import time
import traceback
import warnings
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import dropwhile
from pathlib import Path
from statistics import fmean
from typing import Any

from ..documents import json_object, parse_json, read_object
from ..escapes import brief
from ..files import JSON_BYTES, LIST_BYTES, UnfitFile, read_bytes, walk
from .index import (
    Entry,
    Files,
    files_of,
    is_settled,
    may_have_index,
    most_bytes,
    read_index,
    write_index,
)
from .packed import Layout, Packed, pack

UNKNOWN = "no reason was recorded"
_TYPE_ALONE = re.compile(r"[\w.]+:\s*")


def reason_of(error: BaseException) -> str:
    """Return the error's type, message and notes, which can have many lines."""
    return "".join(traceback.format_exception_only(error)).rstrip()


def in_one_line(reason: str) -> str:
    """Return the type of the error and the first line of its message, also from a traceback.

    The other lines are mostly advice, as in all errors of CUDA.
    """
    lines = [line for line in reason.split("\n") if line.strip()]
    if not lines:
        return UNKNOWN
    if lines[0].startswith("Traceback"):
        heads = [k for k, line in enumerate(lines) if line.startswith("Traceback")]
        lines = lines[heads[-1] + 1 :] or lines
    first, *rest = [
        *dropwhile(_is_indented, lines)
    ] or lines  # frames are indented, the error is not
    if rest and _TYPE_ALONE.fullmatch(first):
        first = f"{first.rstrip()} {rest[0].lstrip()}"
    return first.strip(" \t\r")


def _is_indented(line: str) -> bool:
    return line[0] in " \t"


RUN, RECORDS, DONE = "run.json", "records.jsonl", "done"
TIMING, FAILED, BEGUN = "timing.json", "failed.json", "begun.json"
MODEL, CARD = "model.safetensors", "model.json"
# In the folder of a fit: its settings.
FIT_SETUP = "fit.json"
KEPT, HELD_OUT = "kept", "held_out"
# In a sweep's folder: the hyperparameters that were set by hand, by the folder of each run.
SET_HPARAMS = "set_hparams.json"
# The name under which they say that another search than DomainBed's drew the run.
SEARCH = "search"
# Next to the records of a run: the records of averages of its weights.
AVERAGES_FILE = "averages.jsonl"
# The files of a run that an index stands for.
INDEXED = (RUN, RECORDS, AVERAGES_FILE, DONE)
FIELDS = frozenset(("step", "accuracy", "calibration_error", "terms"))
IDENTIFYING = {
    "dataset": str,
    "algorithm": str,
    "test_domains": list,
    "trial": int,
    "draw": int,
    "hparams": dict,
}
# Not in the first runs.
ALSO = {"fingerprint": str, "protocol": dict}
# Parts of a record: shares by domain and split, and numbers by name.
SHARES = {"accuracy": "an accuracy", "calibration_error": "a calibration error"}
NUMBERS = ("terms", "gaps")
# Settings of a protocol of which something is computed; the others are only shown.
COUNTS, NAMES = ("steps", "record_every"), ("network", "weights", "precision", "start")
# The largest whole number that every float can tell from the next.
LARGEST = 2**53


@dataclass(frozen=True, kw_only=True)
class Record:
    """Accuracies and calibration errors after one update, by domain and split.

    ``terms`` are the means, since the record before, of what every update reports. ``extra`` are
    further metrics by name, such as the gaps between training domains.
    """

    step: int
    accuracy: Mapping[str, Mapping[str, float]]
    calibration_error: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Record":
        """Return the record that ``to_json`` described, or a line of ``records.jsonl``."""
        return Record(
            step=values["step"],
            accuracy=values["accuracy"],
            calibration_error=values.get("calibration_error", {}),
            terms=values.get("terms", {}),
            # In the order of the line; most records have nothing more, and there can be 100,000.
            extra={k: v for k, v in values.items() if k not in FIELDS}
            if values.keys() - FIELDS
            else {},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values, in the order of a line of ``records.jsonl``."""
        values = {
            "step": self.step,
            "terms": self.terms,
            "accuracy": self.accuracy,
            "calibration_error": self.calibration_error,
        }
        return values | dict(self.extra)

    @property
    def gaps(self) -> Mapping[str, float]:
        """The spreads of statistics between the training domains, if they were recorded."""
        gaps: Mapping[str, float] = self.extra.get("gaps", {})
        return gaps

    def of(self, domain: str, split: str) -> float:
        """Return an accuracy; NaN if it was not measured."""
        return self.accuracy.get(domain, {}).get(split, float("nan"))


class PackedRecords(Sequence[Record]):
    """The records of a file, each made when it is asked for; 100,000 of them need little memory."""

    __slots__ = ("rows",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, rows: Packed) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        found = self.rows[place]
        return PackedRecords(found) if isinstance(place, slice) else Record.from_json(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A run and its records.

    ``protocol`` is how it was made; empty where that was not written down, as by DomainBed.
    ``set_hparams`` are the hyperparameters that were set by hand instead of drawn, or the search
    that drew all of them if it is not DomainBed's; None if that is not known. ``averages`` are the
    records of averages of its weights, if they were read with it.
    """

    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    draw: int
    hparams: Mapping[str, Any]
    records: Sequence[Record]
    path: Path | None = None
    fingerprint: str = ""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    set_hparams: Mapping[str, Any] | None = None
    averages: PackedRecords | None = field(default=None, repr=False, compare=False)

    @cached_property
    def steps(self) -> Sequence[int]:
        """The step of each record."""
        if isinstance(self.records, PackedRecords):
            return [int(step) for step in self.records.rows.column("step")]
        return [one.step for one in self.records]

    @cached_property
    def inside(self) -> Sequence[float]:
        """Of each record, the mean accuracy on the held-out images of the training domains."""
        return self.means_inside("accuracy")

    def means_inside(self, part: str) -> Sequence[float]:
        """Return the same of another part of the records, such as the calibration errors."""
        if not isinstance(self.records, PackedRecords):
            every = (getattr(one, part) for one in self.records)
            return tuple(mean_inside(one, self.test_domains) for one in every)
        rows = self.records.rows
        wanted = rows.shape.numbers(part, HELD_OUT, self.test_domains)
        get = rows.numbers.__getitem__
        return array("d", (fmean(map(get, some)) if some else math.nan for some in wanted))

    def accuracies(self, domain: str, split: str) -> list[float]:
        """Return an accuracy of each record; NaN if it was not measured."""
        if isinstance(self.records, PackedRecords):
            return self.records.rows.column("accuracy", domain, split)
        return [one.of(domain, split) for one in self.records]

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields by which selection groups runs."""
        return self.dataset, self.algorithm, self.test_domains, self.trial, self.draw

    @property
    def last(self) -> Record:
        """The record of the last update."""
        return self.records[self._last]

    @property
    def last_inside(self) -> float:
        """The mean accuracy on the held-out images of the training domains after it."""
        return self.inside[self._last]

    @property
    def _last(self) -> int:
        return max(range(len(self.steps)), key=self.steps.__getitem__)

    @property
    def precision(self) -> str:
        """The precision of its protocol; empty if that is not known."""
        return str(self.protocol.get("precision", ""))

    @property
    def last_accuracy(self) -> float:
        """The accuracy on the first test domain after the last update."""
        parts = self.last.accuracy[self.test_domains[0]]
        return parts.get(KEPT, parts.get(HELD_OUT, math.nan))


def mean_inside(values: Mapping[str, Mapping[str, float]], test_domains: Sequence[str]) -> float:
    """Return the mean on held-out images over the training domains that have any."""
    found = [
        splits[HELD_OUT]
        for domain, splits in values.items()
        if domain not in test_domains and HELD_OUT in splits
    ]
    return fmean(found) if found else math.nan


@dataclass(frozen=True, kw_only=True)
class RunTiming:
    """The seconds of a run, and facts about its machine."""

    preparing: float
    updating: float
    evaluating: float
    updates: int
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the timing as plain values, as ``timing.json`` begins."""
        return {
            "preparing": self.preparing,
            "updating": self.updating,
            "evaluating": self.evaluating,
            "updates": self.updates,
            "machine": dict(self.about),
        }

    @property
    def seconds(self) -> float:
        """The total."""
        return self.preparing + self.updating + self.evaluating

    @property
    def machine(self) -> str:
        """The machine in words."""
        return ", ".join(f"{name} {value}" for name, value in self.about.items())


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed run and the reason."""

    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    draw: int
    reason: str
    path: Path


def read_runs(folders: Sequence[Path]) -> list[RunResult]:
    """Return the finished runs in these folders and below them, in the order of their paths.

    Runs that are not done are skipped: their best record may still come. A folder that is named
    twice, or is inside another, is read once. Warn of folders that cannot be opened.
    """
    places: dict[str, Path] = {}
    together: dict[Path, list[Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
        for path in folders_with((RUN, DONE), folder):
            if places.setdefault(os.path.realpath(path), path) is path:
                together.setdefault(path.parent, []).append(path)
    with _uncollected():
        found = {run.path: run for paths in together.values() for run in _read_together(paths)}
    return [found[path] for path in places.values()]


def _read_together(paths: Sequence[Path]) -> Iterator[RunResult]:
    """Yield the runs in these folders, which are side by side; of many, with the help of an index.

    A run is read anew if one of its files is not as it was when the index was written.
    """
    runs, sweep = paths[0].parent, paths[0].parent.parent
    set_hparams = _read_set_hparams(sweep)
    if not may_have_index(sweep, runs, len(paths)):
        for path in paths:
            yield _read(path, set_hparams)
        return
    now = time.time_ns()
    files = {path: files_of(path, INDEXED) for path in paths}
    known = read_index(sweep, most_bytes(files.values()))
    new: dict[str, Entry] = {}
    for path in paths:
        entry = known.get(path.name)
        run = _result(path, entry, set_hparams) if entry and entry.files == files[path] else None
        if run is None:
            run = _read(path, set_hparams)
            entry = _entry(path, run, files[path])
            if entry is not None and is_settled(entry.files, now):
                new[path.name], run = entry, _result(path, entry, set_hparams) or run
        yield run
    if new:
        left = {name: one for name, one in known.items() if (runs / name / DONE).exists()}
        write_index(sweep, left | new)


def _entry(folder: Path, run: RunResult, files: Files) -> Entry | None:
    """Return the entry of a run for the index; None if it cannot be packed, or changes now."""
    averages = None
    if (folder / AVERAGES_FILE).exists():
        try:
            averages = pack(read_bytes(folder / AVERAGES_FILE, LIST_BYTES))
        except (OSError, UnfitFile):
            averages = None
        if averages is None:
            return None
    if not isinstance(run.records, PackedRecords) or files_of(folder, INDEXED) != files:
        return None
    about = {name: getattr(run, name) for name in (*IDENTIFYING, *ALSO)}
    about["test_domains"] = list(run.test_domains)
    return Entry(files, about, run.records.rows, averages)


def _result(path: Path, entry: Entry, set_hparams: Mapping[str, Any]) -> RunResult | None:
    """Return the run of an entry; None if the entry is wrong."""
    averages = entry.averages
    try:
        run = _checked_run(path, entry.run)
        tests = tuple(run["test_domains"])
        if not _are_records(entry.records, tests):
            return None
        return RunResult(
            **{name: run[name] for name in IDENTIFYING if name != "test_domains"},
            test_domains=tests,
            records=PackedRecords(entry.records),
            path=path,
            fingerprint=run.get("fingerprint", ""),
            protocol=run.get("protocol", {}),
            set_hparams=set_hparams.get(path.name),
            averages=PackedRecords(averages) if averages and _are_averages(averages) else None,
        )
    except (LookupError, TypeError, AttributeError, ValueError):
        return None


def _are_records(rows: Packed, test_domains: tuple[str, ...]) -> bool:
    """Return whether rows are what ``_records`` accepts, so that it need not make all of them."""
    steps = rows.column("step")
    right = all(_is_record(layout, test_domains) for layout in set(rows.shape.layouts))
    distinct = len(set(steps)) == len(steps) and min(steps) >= 0
    return right and distinct and rows.are_whole() and rows.are_shares(*SHARES)


def _are_averages(rows: Packed) -> bool:
    layouts = set(rows.shape.layouts)
    right = all(_is_record(one, ()) and _names_average(one.template) for one in layouts)
    right = right and rows.are_whole() and rows.are_shares(*SHARES)
    return right and min(rows.column("step")) >= 0


def _names_average(values: Any) -> bool:
    return isinstance(values.get("average"), str)


@cache
def _is_record(layout: Layout, test_domains: tuple[str, ...]) -> bool:
    """Return whether a record of this layout is right, whatever its numbers are."""
    try:
        found = Record.from_json(layout.example())
    except (KeyError, TypeError, AttributeError):
        return False
    return type(found.step) is int and not _wrong_with(found, test_domains)


def folders_with(names: Sequence[str], folder: Path) -> list[Path]:
    """Return the folders at and below this one that have files of all these names, sorted.

    Links to folders are not followed. Warn of folders that cannot be opened.
    """
    found: list[Path] = []
    closed: list[OSError] = []
    for place, _, files in walk(folder, closed.append):
        if set(names) <= set(files):
            # A folder can be listed and still not be entered.
            if os.access(place, os.X_OK):
                found.append(Path(place))
            else:
                closed.append(PermissionError(13, "Permission denied", place))
    for error in closed:
        warnings.warn(
            f"left out {error.filename}, which cannot be opened ({error.strerror})", stacklevel=3
        )
    return sorted(found)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: it takes long over millions of numbers, and finds no cycles."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def failures(folders: Sequence[Path]) -> list[Failure]:
    """Return the failed runs in these folders and below them, in the order of their paths."""
    found = []
    for folder in folders:
        for path in folders_with((FAILED, RUN), folder):
            if not (path / DONE).exists():
                run, failure = _run(path), failure_of(path)
                if failure is None:  # it is tried again at this moment
                    continue
                found.append(
                    Failure(
                        dataset=run["dataset"],
                        algorithm=run["algorithm"],
                        test_domains=tuple(run["test_domains"]),
                        trial=run["trial"],
                        draw=run["draw"],
                        reason=failure["reason"],
                        path=path,
                    )
                )
    return found


def failure_of(folder: Path) -> dict[str, Any] | None:
    """Return the kind of a run's failure, its reason in one line, and whether memory ran out.

    None if it has not failed. A damaged file counts as a failure.
    """
    unknown = {"kind": "unknown", "reason": UNKNOWN, "memory": False}
    try:
        found = unknown | (json_object(read_bytes(folder / FAILED, JSON_BYTES)) or {})
    except FileNotFoundError:
        return None
    except (OSError, UnfitFile) as error:
        return unknown | {"reason": f"it cannot be opened ({_why(error)})"}
    reason = found["reason"]
    return found | {"reason": in_one_line(reason if isinstance(reason, str) else brief(reason))}


def _why(error: OSError | UnfitFile) -> str:
    return getattr(error, "strerror", None) or str(error)


def timing_of(run: RunResult) -> RunTiming | None:
    """Return the timing of a run; None if it was not written."""
    return None if run.path is None else read_timing(run.path)


def read_timing(folder: Path) -> RunTiming | None:
    """Return the timing of the run in a folder; None if it was not written, or is damaged."""
    try:
        values = json_object(read_bytes(folder / TIMING, JSON_BYTES)) or {}
        about = values.get("machine")
        return RunTiming(
            preparing=float(values["preparing"]),
            updating=float(values["updating"]),
            evaluating=float(values["evaluating"]),
            updates=int(values.get("updates", 0)),
            about=about if isinstance(about, dict) else {},
        )
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _read_set_hparams(sweep: Path) -> Mapping[str, Any]:
    """Return what ``sweeps.plan`` wrote; without what is damaged, and empty if it did not."""
    try:
        found = json_object(read_bytes(sweep / SET_HPARAMS, LIST_BYTES)) or {}
    except (OSError, UnfitFile):
        return {}
    right = (one for one in found.items() if isinstance(one[1], dict))
    return {run: given for run, given in right if all(map(is_plain, given.values()))}


def _read(folder: Path, set_hparams: Mapping[str, Any]) -> RunResult:
    """Return the run in a folder, from its files."""
    run = _run(folder)
    tests = tuple(run["test_domains"])
    return RunResult(
        dataset=run["dataset"],
        algorithm=run["algorithm"],
        test_domains=tests,
        trial=run["trial"],
        draw=run["draw"],
        hparams=run["hparams"],
        records=_packed(folder / RECORDS, tests) or tuple(_records(folder / RECORDS, tests)),
        path=folder,
        fingerprint=run.get("fingerprint", ""),
        protocol=run.get("protocol", {}),
        set_hparams=set_hparams.get(folder.name),
    )


def _packed(path: Path, test_domains: tuple[str, ...]) -> PackedRecords | None:
    """Return the records of a file; None if it is damaged, or they cannot be packed."""
    rows = pack(read_bytes(path, LIST_BYTES)) if path.exists() else None
    return PackedRecords(rows) if rows is not None and _are_records(rows, test_domains) else None


def _run(folder: Path) -> Mapping[str, Any]:
    return _checked_run(folder, read_object(folder / RUN, advice=again(folder)))


def _checked_run(folder: Path, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of a run; raise if something in it is missing or wrong."""
    path = folder / RUN
    for name, kind in {**IDENTIFYING, **ALSO}.items():
        if name in ALSO and name not in found:
            continue
        if name not in found:
            raise _damaged(path, f"has no {name}")
        if type(found[name]) is not kind:
            raise _damaged(path, f"has a {name} that is {brief(found[name])}")
    if not all(isinstance(name, str) for name in found["test_domains"]):
        raise _damaged(path, f"has test domains that are no names, {brief(found['test_domains'])}")
    protocol = found.get("protocol", {})
    for about, values in (("hyperparameter", found["hparams"]), ("setting", protocol)):
        for name, value in values.items():
            if not is_plain(value):
                raise _damaged(path, f"has a {about} {name!r} that is {brief(value)}")
    if protocol and "steps" not in protocol:
        raise _damaged(path, "has no number of steps")
    for name in COUNTS:
        if type(count := protocol.get(name, 1)) is not int or not 0 < count < LARGEST:
            raise _damaged(path, f"has a number of {name} that is {brief(count)}")
    for name in NAMES:
        if not isinstance(word := protocol.get(name), str | None):
            raise _damaged(path, f"has a {name} that is {brief(word)}")
    return found


def is_plain(value: Any) -> bool:
    """Return whether a value is a text, a number that a float can hold, true, false or null."""
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _records(path: Path, test_domains: Sequence[str]) -> Iterator[Record]:
    found = read_records(path, again(path.parent)) if path.exists() else []
    if not found:
        raise _damaged(path, "is empty or does not exist")
    steps: set[int] = set()
    for number, record in enumerate(found, 1):
        for domain in test_domains:
            if not record.accuracy.get(domain):
                wrong = f"no accuracy of the test domain {domain!r}"
                raise _damaged(path, f"has {wrong} in line {number}")
        if record.step in steps:
            raise _damaged(path, f"has the step {record.step} twice, again in line {number}")
        steps.add(record.step)
        yield record


def read_records(path: Path, advice: str) -> list[Record]:
    """Return the records of a file, one on each line; the error for a damaged one gives advice."""
    found = []
    # Not str.splitlines, which also splits within names.
    for number, line in enumerate(read_bytes(path, LIST_BYTES).rstrip(b"\n").split(b"\n"), 1):
        if not line and number == 1:
            break
        values = parse_json(line, path, advice, number)
        try:
            record = Record.from_json(values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} has no record in line {number} ({error!r}); {advice}"
            ) from error
        if type(record.step) is not int or not 0 <= record.step < LARGEST:
            raise ValueError(
                f"{path} has a step that is {brief(record.step)} in line {number}; {advice}"
            )
        if wrong := _wrong_with(record):
            raise ValueError(f"{path} has {wrong} in line {number}; {advice}")
        found.append(record)
    return found


def _wrong_with(record: Record, test_domains: Sequence[str] = ()) -> str:
    """Return what is wrong with a record besides its step; "" if nothing is."""
    for name, words in SHARES.items():
        part = getattr(record, name)
        if not isinstance(part, dict):
            return f"{words} that is no object but {brief(part)}"
        for domain, splits in part.items():
            if not isinstance(splits, dict):
                return f"{words} of {domain!r} that is no object of splits but {brief(splits)}"
            for value in splits.values():
                if not _is_number(value) or not (0 <= value <= 1 or math.isnan(value)):
                    return f"{words} of {domain!r} that is no number from 0 to 1: {brief(value)}"
    for name, part in zip(NUMBERS, (record.terms, record.gaps), strict=True):
        if not isinstance(part, dict):
            return f"{name} that are no object but {brief(part)}"
        for key, value in part.items():
            if not _is_number(value):
                return f"a value of {key!r} among its {name} that is no number but {brief(value)}"
    for domain in test_domains:
        if not record.accuracy.get(domain):
            return f"no accuracy of the test domain {domain!r}"
    return ""


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= LARGEST)


def _damaged(path: Path, wrong: str) -> ValueError:
    """Return the error for a damaged file of a run, with the advice to train it again."""
    return ValueError(f"{path} {wrong}; {again(path.parent)}")


def again(folder: Path) -> str:
    """Return the advice for a damaged run in a folder."""
    return (
        f"delete the folder {folder} and run the command that trained it again, which trains only "
        "this run"
    )
