"""γ against the size of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .style import canvas, look_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["batch_figure"]


def batch_figure(cells: Sequence[Mapping[str, Any]]) -> Figure:
    """Return accuracy in test by batch size, a line for each γ; one panel keeps λ, one the pull.

    Args:
        cells: each `pull`, `ema_decay`, `batch_size`, `mean` and `error`, in percent, or None
            where it was not run.
    """
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
