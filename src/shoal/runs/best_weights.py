"""The weights of records that a selection rule may yet choose, kept while a run goes on.

What a rule chooses is known when all runs are done: later records and other draws may do better. So
a record's weights are kept when it is made and the rule may choose it, and let go when the run has
ended without its choice.
"""

import hashlib
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

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
from ..storage import read_json, remove_asides, write_aside, write_json
from ..training.watcher import Watcher
from .run import Run

KEPT_MODELS = "kept"


def reachable(run: RunResult, rule: str) -> list[int]:
    """Return the steps, so far, that the rule may choose, whatever follows in this or other runs.

    By test domain it is the last update, whose weights a run leaves in any case. By training
    domains it is the best so far. By calibration it is every record within reach of the best
    accuracy than which no other is both as accurate and better calibrated. Leaving out, it is any
    record: other runs decide.
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
    """Return where a run in ``folder`` keeps the weights of a record."""
    return folder / KEPT_MODELS / f"step-{step:07d}"


class WeightKeeper:
    """Keeps weights of a run for some rules: call it with all records whenever there are new ones.

    Args:
        folder: of the run.
        save: writes the weights of now into a folder, as those of a record.
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
        """Keep the weights of the newest record where a rule may choose it.

        The first call tells of the records that a checkpoint holds, whose weights are kept already.
        """
        if self._known is not None and len(records) > self._known:
            step = records[-1].step
            if step in self._wanted(records):
                self.save(kept_model(self.folder, step), records[-1])
        self._known = len(records)

    def finish(self, records: Sequence[Record]) -> None:
        """Delete what no rule can choose any more.

        Not before the end: a run that goes on from a checkpoint may need what was best there.
        """
        wanted = {kept_model(self.folder, step) for step in self._wanted(records)}
        for path in (self.folder / KEPT_MODELS).glob("step-*"):
            if path in wanted:
                remove_asides(path)
            else:
                shutil.rmtree(path)

    def report_missing(self, records: Sequence[Record], watcher: Watcher) -> None:
        """Report the weights that a rule may choose and that were not kept."""
        wanted = self._wanted(records)
        if missing := [step for step in wanted if not kept_model(self.folder, step).is_dir()]:
            watcher.note(
                f"weights of {self.folder} that a rule may choose were not kept (step "
                f"{', '.join(map(str, missing))}): the run was begun without keeping them"
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
    """The weights of a choice are gone."""


def model_of(choice: Choice) -> Path:
    """Return the folder with the model of a choice: the run's last one, or one that was kept."""
    run = choice.run.path
    if run is None:
        raise NotKept("the runs have no folders")
    for folder in (run, kept_model(run, choice.step)):
        if (folder / CARD).is_file() and read_json(folder / CARD).get("step") == choice.step:
            return folder
    raise NotKept(
        f"{run} kept no weights of step {choice.step}; move it away and make it again with "
        "--keep-best"
    )


def save_chosen(choice: Choice, rule: str, out: Path) -> Path:
    """Copy the model of a choice into a folder below ``out``, and return it."""
    source, folder = model_of(choice), out / _name(choice)
    card = read_json(source / CARD)
    if not (source / MODEL).is_file():
        raise NotKept(f"{source} has a card and no {MODEL}: records were copied without it")
    content = (source / MODEL).read_bytes()
    if hashlib.sha256(content).hexdigest() != card["sha256"]:
        raise ValueError(
            f"{source / MODEL} is damaged, or another than {CARD} tells of; delete the run "
            f"{choice.run.path} and make it again"
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


def _name(choice: Choice) -> str:
    """Return a name that no other choice of the rule has, and any file system takes."""
    parts = (choice.dataset, choice.algorithm, choice.test_domain, f"t{choice.trial}")
    safe = ("".join(c if c.isalnum() or c in "+-_.%" else f"~{ord(c):x}" for c in p) for p in parts)
    return "-".join(safe)
