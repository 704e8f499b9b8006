"""What happens between the training domains on Colored MNIST, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .style import INK, Look, canvas, look_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gap_dynamics", "hessian_dynamics"]

Curves = Mapping[str, Sequence[float]]


def gap_dynamics(curves: Curves, method: str, jump_step: int | None) -> Figure:
    """Return accuracies, and the gaps between domains' risks, variances and Hessians, by step.

    Args:
        curves: `step`, `train`, `test`, `risk_gap`, `variance_gap` and `hessian_gap`.
        jump_step: at which λ jumps; None where it does not.
    """
    with canvas(1, 2, width=3.7, height=3.2) as (figure, axes):
        accuracy, gaps = axes[0]
        for number, (key, name) in enumerate(
            (("train", "train"), ("test", "test, colours turned"))
        ):
            percent = [100 * value for value in curves[key]]
            _line(accuracy, curves["step"], percent, name, look_of(number))
        accuracy.set(title=f"{method}: accuracy in %", xlabel="step", ylim=(0, 100))
        names = {
            "variance_gap": "‖Var(G₉₀) − Var(G₈₀)‖²",
            "hessian_gap": "‖Diag(H₉₀ − H₈₀)‖²",
            "risk_gap": "|R₉₀ − R₈₀|²",
        }
        for number, (key, name) in enumerate(names.items()):
            _line(gaps, curves["step"], curves[key], name, look_of(number))
        gaps.set(title="Gaps between the training domains", xlabel="step", yscale="log")
        for axis in (accuracy, gaps):
            _jump(axis, jump_step)
            _legend(axis)
    return figure


def hessian_dynamics(curves: Curves, method: str, jump_step: int | None) -> Figure:
    """Return distance, norms and cosine of the two domains' Hessian diagonals, by step.

    Args:
        curves: `step`, `hessian_gap`, `hessian_norm_gap`, `hessian_norm` and `hessian_cosine`.
    """
    with canvas(1, 2, width=3.7, height=3.2) as (figure, axes):
        sizes, directions = axes[0]
        names = {
            "hessian_norm": "mean of ‖h₉₀‖² and ‖h₈₀‖²",
            "hessian_gap": "‖h₉₀ − h₈₀‖²",
            "hessian_norm_gap": "(‖h₉₀‖² − ‖h₈₀‖²)²",
        }
        for number, (key, name) in enumerate(names.items()):
            _line(sizes, curves["step"], curves[key], name, look_of(number))
        sizes.set(title=f"{method}: Hessian diagonals h", xlabel="step", yscale="log")
        _line(directions, curves["step"], curves["hessian_cosine"], "cosine", look_of(0))
        directions.set(title="Their direction: cos(h₉₀, h₈₀)", xlabel="step")
        directions.ticklabel_format(axis="y", useOffset=False)
        directions.set_ylim(top=1.0 + 0.03 * (1 - min(curves["hessian_cosine"])))
        for axis in (sizes, directions):
            _jump(axis, jump_step)
            _legend(axis)
    return figure


def _line(
    axis: Any, steps: Sequence[float], values: Sequence[float], name: str, look: Look
) -> None:
    # Few points are shown as what they are.
    marks = {"marker": look.marker, "markersize": 2.5} if len(steps) <= 80 else {}
    axis.plot(steps, values, label=name, **look.line, **marks)


def _legend(axis: Any) -> None:
    """Name the lines under the axis, where no line is."""
    axis.legend(loc="upper left", bbox_to_anchor=(-0.12, -0.2), ncols=2, columnspacing=1.2)


def _jump(axis: Any, jump_step: int | None) -> None:
    if jump_step is not None:
        # Its name is in the legend: wherever it stood in here, a line might pass.
        axis.axvline(jump_step, color=INK, linewidth=0.8, linestyle=":", label="λ jumps")
