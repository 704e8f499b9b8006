"""The moving average at different batch sizes: does it help if batches are small?

The paper supposes so. Fishr is trained on Colored MNIST with −90 % in test and the hyperparameters
of its best published draw. γ and the batch size are varied, once with λ fixed, so that the pull
λ/(1 − γ) grows with γ, and once with λ chosen so that the pull stays that of the draw.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..algorithms import find
from ..algorithms.hparams import draw
from ..report.figures import canvas, look_of
from ..report.views import Sheet
from ..results.aggregation import TrialMean
from ..results.records import RunResult
from ..runs.run import Protocol
from ..sweeps.plan import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DATASET, TEST_DOMAIN, ROW = "colored-mnist", "-90%", "fishr"
# The best draw of trial 0 in the authors' log, and the hyperparameters of it that stay fixed.
BEST_DRAW = draw(find(ROW).Hparams, "small", 0, 5)
KEPT_HPARAMS = ("lr", "warmup_steps")
DECAYS, BATCHES = (0.0, 0.5, 0.9, 0.99), (8, 32, 128, 512)
PULLS = ("λ as drawn", "λ/(1 − γ) as drawn")


def strength(decay: float, pull: str) -> float:
    """Return λ for this γ: as drawn, or such that the pull λ/(1 − γ) is as drawn."""
    best: Any = BEST_DRAW
    if pull == PULLS[0]:
        return float(best.penalty_weight)
    return float(best.penalty_weight * (1 - decay) / (1 - best.ema_decay))


def sweeps(trials: int, protocol: Protocol) -> list[Sweep]:
    """Return a sweep of one configuration for each λ, γ and batch size."""
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
                    Sweep(
                        algorithms=(ROW,),
                        datasets=(DATASET,),
                        trials=trials,
                        draws=1,
                        settings=settings,
                        protocol=protocol,
                    )
                )
    return found


def cells(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return accuracy on the test domain after the last update, in %, of every configuration."""
    found = []
    for pull in PULLS:
        for decay in DECAYS:
            for size in BATCHES:
                wanted = (strength(decay, pull), decay, size)
                values = [run.last_accuracy for run in runs if _varied(run) == wanted]
                cell = TrialMean.of(values) if values else None
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


def _varied(run: RunResult) -> tuple[float, float, int]:
    hparams = run.hparams
    return hparams["penalty_weight"], hparams["ema_decay"], hparams["batch_size"]


# The table

NOT_RUN = "not run"


def batch_sheet(cells: Sequence[Mapping[str, Any]], precision: str) -> Sheet:
    """Return accuracies by γ and batch size, for either choice of λ."""
    sizes = list(dict.fromkeys(cell["batch_size"] for cell in cells))
    lines = []
    for key in dict.fromkeys((cell["pull"], cell["ema_decay"]) for cell in cells):
        mine = [cell for cell in cells if (cell["pull"], cell["ema_decay"]) == key]
        shown = [
            NOT_RUN if cell["mean"] is None else f"{cell['mean']:.1f} ± {cell['error']:.1f}"
            for cell in mine
        ]
        lines.append((f"{key[0]}, γ = {key[1]:g}", f"{mine[0]['penalty_weight']:,.0f}", *shown))
    return Sheet(
        "γ against batch size: accuracy in % on -90% of Colored MNIST after the last update",
        ("", "λ", *[f"batch {size}" for size in sizes]),
        lines,
        f"Mean ± standard error over trials; no model is selected. Trained in {precision}.",
    )


# The figure


def batch_figure(cells: Sequence[Mapping[str, Any]]) -> "Figure":
    """Return test accuracy by batch size, a line for each γ; one panel fixes λ, one the pull."""
    pulls = list(dict.fromkeys(cell["pull"] for cell in cells))
    with canvas(1, len(pulls), width=3.6, height=2.9, sharey=True) as (figure, axes):
        for axis, pull in zip(axes[0], pulls, strict=True):
            done = [cell for cell in cells if cell["pull"] == pull and cell["mean"] is not None]
            for number, decay in enumerate(dict.fromkeys(cell["ema_decay"] for cell in cells)):
                mine = [cell for cell in done if cell["ema_decay"] == decay]
                look = look_of(number)
                axis.errorbar(
                    [cell["batch_size"] for cell in mine],
                    [cell["mean"] for cell in mine],
                    [cell["error"] for cell in mine],
                    label=f"γ = {decay:g}",
                    marker=look.marker,
                    capsize=2,
                    **look.line,
                )
            sizes = sorted({cell["batch_size"] for cell in cells})
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
            axis.set(title=pull, xlabel="examples of each domain in a batch")
        axes[0][0].set_ylabel("accuracy in % on −90 %")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure
