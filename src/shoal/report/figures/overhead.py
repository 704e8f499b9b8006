"""What Fishr adds to an update of ERM, in percent, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .style import INK, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["overhead_figure"]

BARS = {"ours": ("#0072B2", ""), "paper": ("#FFFFFF", "///")}


def overhead_figure(result: Mapping[str, Any]) -> Figure:
    """Return bars of time and memory over ERM, for each head.

    Args:
        result: `heads`, each with `name`, `time`, `memory` and `paper`, and `device`.
    """
    from matplotlib.patches import Patch

    heads = result["heads"].values()
    with canvas(1, 2, width=3.4, height=2.6) as (figure, axes):
        for axis, key in zip(axes[0], ("time", "memory"), strict=True):
            for place, head in enumerate(heads):
                for shift, (whose, value) in enumerate(
                    (("ours", head[key]), ("paper", head["paper"][key]))
                ):
                    _bar(axis, place + 0.36 * shift - 0.18, whose, value)
            axis.set_xticks(range(len(heads)), [head["name"] for head in heads])
            axis.set(title=f"{key} over ERM in %")
            axis.axhline(0, color=INK, linewidth=0.7)
            axis.margins(y=0.18)
            axis.grid(False, axis="x")
            axis.set_xlim(-0.6, len(heads) - 0.4)
        names = {"ours": result["device"], "paper": "paper, Tesla V100"}
        patches = [
            Patch(facecolor=BARS[whose][0], edgecolor=INK, hatch=BARS[whose][1], label=name)
            for whose, name in names.items()
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=2)
    return figure


def _bar(axis: Any, place: float, whose: str, value: float | None) -> None:
    colour, hatch = BARS[whose]
    if value is not None:
        axis.bar(place, value, 0.34, color=colour, edgecolor=INK, linewidth=0.6, hatch=hatch)
    text = "not\nmeasured" if value is None else f"{value:+z.1f}".replace("-", "−")
    axis.annotate(
        text,
        (place, max(value or 0.0, 0.0)),
        ha="center",
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
    )
