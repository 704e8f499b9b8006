"""Best weights: kept during a run while a selection rule can still choose them, and copied.

The choice of a rule is known only when all runs are done: later records and other draws can do
better. So the weights of a record are kept if the rule can choose it, and deleted at the end of the
run if it no longer can. The weights of each average along a run are kept by its own records.
"""

import hashlib
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..catalogue import AVERAGES, method_and_average
from ..documents import read_object
from ..files import TENSOR_BYTES, read_bytes
from ..results.averages import average_folder
from ..results.records import CARD, MODEL, Record, RunResult
from ..results.selection import (
    CALIBRATED,
    NEAR,
    RULES,
    WORDS,
    Choice,
    by_training_domains,
    comparable_score,
)
from ..results.selection import training_accuracy as accuracy_of
from ..results.selection import training_calibration as error_of
from ..storage import remove_asides, write_aside, write_json
from ..training.watcher import Watcher
from .run import Run

KEPT_MODELS = "kept"


def reachable(run: RunResult, rule: str) -> list[int]:
    """Return the steps so far that the rule can choose, whatever follows in this or other runs.

    - test-domain: none but the last update, whose weights are kept in any case.
    - training-domain: the best so far.
    - calibrated: every record near the best accuracy, unless another is as accurate and better
      calibrated.
    - leave-one-domain-out: every record, because other runs decide.
    """
    if rule == CALIBRATED:
        return _well_calibrated(run)
    if RULES[rule] is by_training_domains:
        best = by_training_domains(run, [run])
        return [] if best is None else [best[1].step]
    return [one.step for one in run.records] if rule == "leave-one-domain-out" else []


def _well_calibrated(run: RunResult) -> list[int]:
    found = [
        (comparable_score(accuracy_of(run, one)), -comparable_score(-error_of(run, one)), one.step)
        for one in run.records
    ]
    best = max((accuracy for accuracy, *_ in found), default=-math.inf)
    return [
        step
        for accuracy, error, step in found
        if math.isfinite(accuracy)
        and math.isfinite(error)
        and accuracy >= comparable_score(best - NEAR)
        and not any(a >= accuracy and (e, s) < (error, step) for a, e, s in found)
    ]


def kept_model(folder: Path, step: int) -> Path:
    """Return the folder of the weights of a record, of a run or an average in ``folder``."""
    return folder / KEPT_MODELS / f"step-{step:07d}"


class WeightKeeper:
    """Keeps weights for some rules: call it with all records after every new one.

    A run has one for its own records, and one for those of each average of its weights.

    Args:
        folder: the folder of the run or of the average.
        save: writes the weights of the newest record into a folder.
    """

    def __init__(
        self,
        run: Run,
        rules: Iterable[str],
        folder: Path,
        save: Callable[[Path, Record], object],
    ) -> None:
        self.run, self.rules, self.folder, self.save = run, tuple(rules), folder, save
        self._known: int | None = None

    def __call__(self, records: Sequence[Record]) -> None:
        """Keep the weights of the newest record if a rule can choose it.

        The first call has the records of a checkpoint, whose weights are kept already.
        """
        if self._known is not None and len(records) > self._known:
            step = records[-1].step
            if step in self._wanted(records):
                self.save(kept_model(self.folder, step), records[-1])
        self._known = len(records)

    def finish(self, records: Sequence[Record]) -> None:
        """Delete the weights that no rule can choose any more.

        Only at the end: a run that resumes from a checkpoint can need the best ones of that time.
        """
        wanted = {kept_model(self.folder, step) for step in self._wanted(records)}
        for path in (self.folder / KEPT_MODELS).glob("step-*"):
            if path in wanted:
                remove_asides(path)
            else:
                shutil.rmtree(path)

    def report_missing(self, records: Sequence[Record], watcher: Watcher) -> None:
        """Report the weights that a rule can choose and that were not kept."""
        wanted = self._wanted(records)
        if missing := [step for step in wanted if not kept_model(self.folder, step).is_dir()]:
            watcher.note(
                f"{self.folder} did not keep weights that a rule can choose (step "
                f"{', '.join(map(str, missing))}): the run was started without --keep-best"
            )

    def _wanted(self, records: Sequence[Record]) -> list[int]:
        so_far = self.run.result(records, self.folder)
        found = {step for rule in self.rules for step in reachable(so_far, rule)}
        # The last weights are the run's model.
        return sorted(found - {self.run.protocol.steps - 1})


LEFT_OUT = (
    " The model is that of the run that left out the test domain alone and was trained on all "
    "others; the runs that left out two only chose its draw and its record."
)


class NotKept(ValueError):
    """The weights of a choice were not kept."""


def model_of(choice: Choice) -> Path:
    """Return the folder with the model of a choice: the run's last one, or one that was kept."""
    run = choice.run.path
    if run is None:
        raise NotKept("the runs have no folders")
    average = method_and_average(choice.algorithm)[1]
    of_row = average_folder(run, average)
    for folder in (of_row, kept_model(of_row, choice.step)):
        if (folder / CARD).is_file() and read_object(folder / CARD).get("step") == choice.step:
            return folder
    weights = f"the weights of the average {AVERAGES[average]}" if average else "the weights"
    raise NotKept(
        f"{run} did not keep {weights} of step {choice.step}; move it away and train it again with "
        "--keep-best"
    )


def save_chosen(choice: Choice, rule: str, out: Path) -> Path:
    """Copy the model of a choice into a folder in ``out``, and return that folder."""
    place = (choice.dataset, choice.algorithm, choice.test_domain, f"t{choice.trial}")
    source, folder = model_of(choice), out / folder_name(*place)
    card = read_object(source / CARD, ("sha256",))
    if not (source / MODEL).is_file():
        raise NotKept(f"{source} has a card but no {MODEL}, which was not copied with it")
    content = read_bytes(source / MODEL, TENSOR_BYTES)
    if hashlib.sha256(content).hexdigest() != card["sha256"]:
        raise ValueError(
            f"{source / MODEL} is damaged, or not the model of {CARD}; delete the run "
            f"{choice.run.path} and train it again"
        )
    write_aside(folder / MODEL, lambda file: file.write(content))
    write_json(folder / CARD, {**card, "selection": _about(choice, rule)})
    return folder


def _about(choice: Choice, rule: str) -> dict[str, Any]:
    return {
        "rule": rule,
        "how": WORDS[rule] + (LEFT_OUT if rule == "leave-one-domain-out" else ""),
        "test_domain": choice.test_domain,
        "trial": choice.trial,
        "draw": choice.draw,
        "of_draws": choice.draws,
        "step": choice.step,
        "of_records": choice.records,
        "score": _number(choice.score),
        "accuracy": _number(choice.accuracy),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def folder_name(*parts: str) -> str:
    """Return a name of these parts that any file system accepts, and no other parts have."""
    return "-".join(
        "".join(c if c.isalnum() or c in "+-_.%" else f"~{ord(c):x}" for c in part)
        for part in parts
    )
