"""Start of a run: the weights that training begins with, computed once and kept in its folder."""

import math
from pathlib import Path
from typing import Any

import torch

from ..algorithms.base import Algorithm
from ..catalogue import STARTS
from ..distributed import copy_from_first_rank, rank
from ..documents import damage_named
from ..results.records import HELD_OUT, again
from ..storage import explain_write_errors, write_json
from ..tensor_files import read_safetensors, write_safetensors
from ..training.evaluation import head_passes
from ..training.linear_probe import LinearProbe, check_probed, fit_probe, plain_head
from ..training.placement import RunData
from ..training.step import Update
from ..training.watcher import SILENT, Watcher
from .prepare import evaluation_of_run
from .run import Run

# The head of a linear probe, and how it was fitted. The card comes last, so a card means that both
# are whole.
START_WEIGHTS, START_CARD = "start.safetensors", "start.json"


def check_start(start: str, method: type[Algorithm]) -> None:
    """Raise before any work if the method cannot start like this."""
    if start != STARTS[0]:
        check_probed(method)


def begin(
    run: Run, update: Update, placed: RunData, folder: Path, watcher: Watcher = SILENT
) -> None:
    """Give the method the weights that the run starts with, before its first update.

    The head of a linear probe is read from the folder of the run, or fitted and kept there: a run
    that resumes does not fit it again. In several processes all must call it.
    """
    if run.protocol.start == STARTS[0]:
        return
    head = plain_head(update.algorithm)
    kept = torch.tensor(int((folder / START_CARD).exists()), device=head.weight.device)
    copy_from_first_rank([kept])
    if not int(kept):
        probe = _fit(run, update, placed)
        if rank() == 0:
            with explain_write_errors(folder):
                _keep(folder, probe)
            watcher.note(_in_words(probe))
    if rank() == 0:
        load_start(update.algorithm, folder)
    copy_from_first_rank([head.weight, head.bias])


def load_start(algorithm: Algorithm, folder: Path) -> None:
    """Give the method the head that the run in this folder started with."""
    head, tensors = plain_head(algorithm), read_safetensors(folder / START_WEIGHTS)
    with damage_named(folder / START_WEIGHTS, again(folder)):
        head.load_state_dict(tensors)


def _fit(run: Run, update: Update, placed: RunData) -> LinearProbe:
    """Return the probe of the run's network on the kept images of its training domains."""
    held_out = {
        (domain, split): part
        for (domain, split), part in placed.parts.items()
        if split == HELD_OUT and domain not in run.test_domains
    }
    trained, validation = (
        list(head_passes(evaluation_of_run(update, parts)).values())
        for parts in (placed.trained, held_out)
    )
    classes = plain_head(update.algorithm).out_features
    return fit_probe(trained, validation, classes, run.protocol.balanced)


def _keep(folder: Path, probe: LinearProbe) -> None:
    tensors = {"weight": probe.weight.cpu(), "bias": probe.bias.cpu()}
    write_safetensors(folder / START_WEIGHTS, tensors)
    card: dict[str, Any] = {"start": STARTS[1], "ridge": probe.ridge}
    if math.isfinite(probe.loss):
        card |= {"held_out_loss": probe.loss, "held_out_accuracy": probe.accuracy}
    write_json(folder / START_CARD, card)


def _in_words(probe: LinearProbe) -> str:
    right = f", right on {probe.accuracy:.1%} of what is held out" * math.isfinite(probe.accuracy)
    return f"the head starts from a linear probe (ridge {probe.ridge:g}{right})"
