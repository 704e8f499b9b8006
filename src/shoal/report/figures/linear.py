"""The linear example: for which λ and how many steps each method is invariant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .style import INK, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["linear_window"]

TITLES = {
    "fish": "Fish: gradient means",
    "fishr": "Fishr: centred variances",
    "fishr-uncentered": "Fishr: uncentred variances",
}
SHADES = {"invariant": "#0072B2", "shortcut": "#F3D9C6", "neither": "#FFFFFF"}


def linear_window(result: Mapping[str, Any]) -> Figure:
    """Return, for each method, what its models do by λ and steps; a dot is the table's model.

    Args:
        result: of the linear experiment: `window`, `table`, `steps` and `longest`.
    """
    from matplotlib.patches import Patch

    chosen = {row["method"]: row["lambda"] for row in result["table"]}
    with canvas(1, len(TITLES), width=3.0, height=2.9, sharex=True) as (figure, axes):
        for axis, (method, title) in zip(axes[0], TITLES.items(), strict=True):
            _spans(axis, result["window"][method], result["longest"])
            axis.axvline(result["steps"], color=INK, linewidth=0.8, linestyle=":")
            axis.plot(result["steps"], chosen[method], "o", color="white", markeredgecolor=INK)
            axis.set(title=title, xlabel="steps", yscale="log", xlim=(1, result["longest"]))
            axis.grid(False)
        axes[0][0].set_ylabel("λ")
        meanings = {
            "invariant": "93 % in train and test",
            "shortcut": "97 % in train, 57 % in test",
            "neither": "anything else",
        }
        patches = [
            Patch(facecolor=SHADES[state], edgecolor=INK, linewidth=0.5, label=text)
            for state, text in meanings.items()
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=3)
    return figure


def _spans(axis: Any, rows: list[dict[str, Any]], longest: int) -> None:
    # A row reaches to the middle between its λ and the next, on the log scale.
    ratio = (rows[-1]["lambda"] / rows[0]["lambda"]) ** (0.5 / (len(rows) - 1))
    for row in rows:
        low, high = row["lambda"] / ratio, row["lambda"] * ratio
        for state, first, last in row["spans"]:
            axis.fill_between([first, last + 1], low, high, color=SHADES[state], linewidth=0)
    axis.set_ylim(rows[0]["lambda"] / ratio, rows[-1]["lambda"] * ratio)
