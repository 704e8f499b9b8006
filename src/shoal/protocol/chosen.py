"""The models that a selection rule chose, copied out of their runs with cards that say how."""

import hashlib
import math
from pathlib import Path
from typing import Any

from ..storage import read_json, write_aside, write_json
from .keeping import kept_model
from .model import CARD, MODEL
from .selection import WORDS, Choice

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
