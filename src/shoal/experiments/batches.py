"""γ against the size of a batch: does the moving average help where batches are small?

The paper guesses so. Colored MNIST with −90 % in test and the hyperparameters of Fishr's best
published draw; γ and the batch size are varied, once with λ as it is, so that the pull λ/(1 − γ)
grows with γ, and once with λ such that the pull stays what it is in that draw.
"""

from collections.abc import Sequence
from typing import Any

from ..algorithms import find
from ..algorithms.hparams import draw
from ..results.aggregation import Cell
from ..results.records import Finished
from ..runs.run import Protocol
from ..sweeps.plan import Sweep

DATASET, TEST_DOMAIN, ROW = "colored-mnist", "-90%", "fishr"
# The draw of trial 0 that the authors' log has as its best, and what of it stays.
BEST_DRAW = draw(find(ROW).Hparams, "small", 0, 5)
KEPT_HPARAMS = ("lr", "warmup_steps")
DECAYS, BATCHES = (0.0, 0.5, 0.9, 0.99), (8, 32, 128, 512)
PULLS = ("λ as drawn", "λ/(1 − γ) as drawn")


def strength(decay: float, pull: str) -> float:
    """Return λ of this γ."""
    best: Any = BEST_DRAW
    if pull == PULLS[0]:
        return float(best.penalty_weight)
    return float(best.penalty_weight * (1 - decay) / (1 - best.ema_decay))


def sweeps(trials: int, protocol: Protocol) -> list[Sweep]:
    """Return a sweep of one configuration for each γ, size and λ."""
    found = []
    for pull in PULLS:
        for decay in DECAYS:
            for size in BATCHES:
                settings = {name: repr(getattr(BEST_DRAW, name)) for name in KEPT_HPARAMS}
                settings |= {
                    "penalty_weight": repr(strength(decay, pull)),
                    "ema_decay": repr(decay),
                    "batch_size": str(size),
                }
                found.append(
                    Sweep((ROW,), (DATASET,), trials, 1, settings=settings, protocol=protocol)
                )
    return found


def cells(runs: Sequence[Finished]) -> list[dict[str, Any]]:
    """Return accuracy on the test domain after the last update, in %, of every configuration."""
    found = []
    for pull in PULLS:
        for decay in DECAYS:
            for size in BATCHES:
                wanted = (strength(decay, pull), decay, size)
                values = [run.last_accuracy for run in runs if _varied(run) == wanted]
                cell = Cell.of(values) if values else None
                found.append(
                    {
                        "pull": pull,
                        "ema_decay": decay,
                        "batch_size": size,
                        "penalty_weight": strength(decay, pull),
                        "mean": 100 * cell.mean if cell else None,
                        "error": 100 * cell.error if cell else None,
                        "trials": len(values),
                    }
                )
    return found


def _varied(run: Finished) -> tuple[float, float, int]:
    hparams = run.hparams
    return hparams["penalty_weight"], hparams["ema_decay"], hparams["batch_size"]
