"""The training loop: updates, records and checkpoints; a killed run resumes exactly."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from ..catalogue import StepKind
from ..distributed import copy_from_first_rank
from ..results.records import Record, RunTiming
from .averages import Averaging
from .checkpoints import Checkpoints
from .evaluation import Evaluation, record_of
from .step import Step, Update
from .stopping import Stopping
from .watcher import SILENT, Progress, Watcher

# Seconds between two reports of progress, for each of which the device is waited for.
LOOK = 0.5
# The most records of a run that measure its averages too. They change slowly, and each of them
# takes an evaluation of its own.
AVERAGED = 20


@dataclass(frozen=True)
class Schedule:
    """The number of updates, and after which of them accuracies are recorded.

    Updates are counted from 0. As in DomainBed, a record follows every update that ``record_every``
    divides, and the last.
    """

    steps: int
    record_every: int

    def records_after(self, step: int) -> bool:
        return step % self.record_every == 0 or step == self.steps - 1

    def averages_after(self, step: int) -> bool:
        """Return whether the record after ``step`` measures averages; the last one does."""
        return step == self.steps - 1 or step // self.record_every % self._averaged == 0

    @cached_property
    def _averaged(self) -> int:
        """Every so many records measure averages."""
        return ceil(self.records_left(0) / AVERAGED)

    def records_left(self, done: int) -> int:
        """Return how many records follow after ``done`` updates."""
        return sum(map(self.records_after, range(done, self.steps)))

    def averages_left(self, done: int) -> int:
        """Return how many of these records measure averages."""
        steps = range(done, self.steps)
        return sum(self.records_after(step) and self.averages_after(step) for step in steps)

    def since_record(self, step: int) -> int:
        """Return the number of updates that the record after ``step`` averages."""
        if step == 0:
            return 1
        return step - ((step - 1) // self.record_every) * self.record_every


def train(
    update: Update,
    evaluate: Evaluation,
    schedule: Schedule,
    kind: StepKind,
    checkpoints: Checkpoints | None = None,
    watcher: Watcher = SILENT,
    extra_metrics: Callable[[], Mapping[str, Any]] = dict,
    averaging: Averaging | None = None,
    stopping: Stopping | None = None,
) -> tuple[list[Record], RunTiming]:
    """Train to the end, from the latest checkpoint if there is one.

    In several processes all must call it; each returns the same records.

    Args:
        extra_metrics: returns what a record holds besides accuracies and terms, by name; it must
            not change the method.
        averaging: follows the weights. A run that began without averages ends without them, and so
            does one whose averages do not fit into memory.
        stopping: decides which weights the training ends with; by default the last ones.

    Returns:
        The records, which depend on the run alone, and the time it took.
    """
    begin = time.perf_counter()
    saved = checkpoints.latest() if checkpoints else None
    done, records = 0, list[Record]()
    if saved is not None:
        done = saved["step"]
        records = [Record.from_json(values) for values in saved["records"]]
        _load(update, saved)
        if stopping is not None:
            stopping.load(saved["stopping"])
    if averaging is not None:
        if lost := averaging.begin(saved):
            watcher.note(lost)
        averaging = averaging if averaging.names else None
    watcher.records(records)
    run = Step(update, kind, watcher.note)
    evaluate.warm_up()
    started = time.perf_counter()
    first, looked, evaluating = done, started, 0.0
    # Seconds of the newest record without averages, and of its evaluation, as one average has it.
    alone = once = 0.0
    averages = 0 if averaging is None else len(averaging.names)

    def report_progress() -> None:
        made, left = done - first, schedule.steps - done
        updating = time.perf_counter() - started - evaluating
        rate = made * update.images / updating if made else 0.0
        seconds = None
        if made:  # the newest evaluation, because the first one has more to do
            seconds = left * updating / made + schedule.records_left(done) * alone
            seconds += schedule.averages_left(done) * averages * once
        watcher.progress(
            Progress(
                done=done,
                steps=schedule.steps,
                rate=rate,
                seconds_left=seconds,
                record=records[-1] if records else None,
            )
        )

    report_progress()
    try:
        while done < schedule.steps:
            run(done)
            if averaging is not None:
                averaging.after_update(done, run)
            done += 1
            if schedule.records_after(done - 1):
                run.wait()
                before = time.perf_counter()
                # What each process computes itself can differ in the last bit.
                copy_from_first_rank(update.state_dict().values())
                terms = update.means(schedule.since_record(done - 1))
                extra = extra_metrics()
                if stopping is not None:
                    extra = {**extra, **stopping.measure()}
                begun = time.perf_counter()
                records.append(record_of(done - 1, terms, evaluate(), extra))
                once = time.perf_counter() - begun
                if stopping is not None:
                    stopping.follow(records[-1])
                alone = time.perf_counter() - before
                if averaging is not None and schedule.averages_after(done - 1):
                    averaging.record(done - 1)
                watcher.records(records)
                run.follow()  # both can give the method other weights for a while
                evaluating += time.perf_counter() - before
                report_progress()
            elif time.perf_counter() - looked > LOOK:
                run.wait()
                looked = time.perf_counter()
                report_progress()
            if checkpoints and done < schedule.steps and checkpoints.due():
                run.wait()
                lines = [record.to_json() for record in records]
                state = {"update": update.state_dict(), "records": lines}
                if averaging is not None:
                    state["averages"] = averaging.state()
                if stopping is not None:
                    state["stopping"] = stopping.state()
                checkpoints.take(done, state)
    finally:
        if checkpoints:
            checkpoints.close()
    updating = time.perf_counter() - started - evaluating
    if stopping is not None:
        records = stopping.end(records)
        copy_from_first_rank(update.state_dict().values())
    timing = RunTiming(
        preparing=started - begin,
        updating=updating,
        evaluating=evaluating,
        updates=done - first,
    )
    return records, timing


def _load(update: Update, saved: dict[str, Any]) -> None:
    try:
        update.load_state_dict(saved["update"])
    except RuntimeError as error:
        raise ValueError(
            f"the checkpoint of step {saved['step']} does not fit the method: another version of "
            "the code wrote it; delete the checkpoints to start again"
        ) from error
