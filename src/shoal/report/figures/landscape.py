"""Two domains' risks around trained weights, and what their inconsistency is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .style import DOMAINS, INK, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["landscape_figure"]

TERMS = {"R": ("#E69F00", ""), "H": ("#56B4E9", "///")}
WIDEST = 0.2
"""Gaps of risks beyond this have the shade of this."""
EVEN = 0.6
"""The width of the line on which both risks are equal."""


def landscape_figure(result: Mapping[str, Any]) -> Figure:
    """Return the level sets around each method's weights, and the terms R and H beside them.

    Args:
        result: `epsilon`, and `methods`, each with `axes`, `risks`, `domains` and `pairs`.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    methods, epsilon = result["methods"], result["epsilon"]
    with canvas(1, len(methods) + 1, width=3.2, height=3.3) as (figure, axes):
        maps, bars = list(axes[0][:-1]), axes[0][-1]
        for axis, (name, found) in zip(maps, methods.items(), strict=True):
            shown = _sets(axis, name, found, epsilon)
        maps[0].set_ylabel("second most curved direction")
        bar = figure.colorbar(shown, ax=maps, location="right", aspect=25, pad=0.02)
        bar.set_ticks([-WIDEST, 0, WIDEST], labels=[f"−{WIDEST:g}", "0", f"{WIDEST:g}"])
        bar.set_label("risk on 80% less risk on 90%", size=8, labelpad=-4)
        _terms(bars, methods)
        handles: list[Any] = [
            Line2D([], [], label=f"|risk on {d} − its value at ★| = {epsilon:g}", **DOMAINS[d].line)
            for d in next(iter(methods.values()))["domains"]
        ]
        texts = {"R": "R: gap of the risks at ★", "H": "H: term of the curvatures"}
        for term, text in texts.items():
            colour, hatch = TERMS[term]
            handles.append(Patch(facecolor=colour, edgecolor=INK, hatch=hatch, label=text))
        handles.append(Line2D([], [], marker="D", color=INK, ls="", label="found on the grid"))
        # Not on the line itself: where that leaves the panel, its name would be cut.
        handles.append(Line2D([], [], color=INK, linewidth=EVEN, label="equal risks"))
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _sets(axis: Any, name: str, found: Mapping[str, Any], epsilon: float) -> Any:
    """Draw a method's level sets over the gap of the risks; return the coloured map."""
    import numpy as np

    x, y = found["axes"]
    risks = np.array(found["risks"])
    centre = risks[:, risks.shape[1] // 2, risks.shape[2] // 2]
    gap = (risks[1] - risks[0]).T
    # Greys: a map of two colours has no sign when it is printed without them.
    levels = np.linspace(-WIDEST, WIDEST, 17)
    greys = [str(shade) for shade in np.linspace(1.0, 0.55, len(levels) + 1)]
    shown = axis.contourf(x, y, gap, levels, colors=greys, extend="both")
    if gap.min() < 0 < gap.max():
        axis.contour(x, y, gap, [0.0], colors=INK, linewidths=EVEN)
    for e, domain in enumerate(found["domains"]):
        look = DOMAINS[domain]
        edges = [centre[e] - epsilon, centre[e] + epsilon]
        axis.contour(x, y, risks[e].T, edges, colors=look.colour, linestyles=look.dashes)
    axis.plot(0, 0, "*", color=INK, markersize=7)
    values = ", ".join(f"{v:.3f} ({d})" for d, v in zip(found["domains"], centre, strict=True))
    axis.set(title=f"{name}: risk at ★ {values}", xlabel="most curved direction of ω")
    axis.grid(False)
    return shown


def _terms(axis: Any, methods: Mapping[str, Any]) -> None:
    """Draw R and H of both ordered pairs, and what was found on the grid."""
    ticks: list[tuple[float, str]] = []
    for name, found in methods.items():
        for pair, terms in found["pairs"].items():
            place = 1.2 * len(ticks)
            for shift, term in ((-0.2, "R"), (0.2, "H")):
                colour, hatch = TERMS[term]
                look = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.5}
                axis.bar(place + shift, terms[term], 0.38, **look)
            axis.plot(place, terms["measured"], "D", color=INK)
            ticks.append((place, f"{name}\n{pair.replace(', ', ' → ')}"))
    axis.axhline(0, color=INK, linewidth=0.7)
    axis.set_xticks([place for place, _ in ticks], [text for _, text in ticks], fontsize=7)
    axis.set(title="Inconsistency and its two terms")
    axis.grid(False, axis="x")
