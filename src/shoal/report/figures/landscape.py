"""Two domains' risks around trained weights, and what their inconsistency is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .style import DOMAINS, INK, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["landscape_figure"]


def landscape_figure(result: Mapping[str, Any]) -> Figure:
    """Return the level sets around each method's weights, and the terms R and H beside them.

    Args:
        result: `epsilon`, and `methods`, each with `axes`, `risks`, `level_sets` and `pairs`.
    """
    methods = result["methods"]
    with canvas(1, len(methods) + 1, width=3.1, height=3.1) as (figure, axes):
        for axis, (name, found) in zip(axes[0], methods.items(), strict=False):
            _sets(axis, name, found, result["epsilon"])
        _terms(axes[0][-1], methods)
        for domain in ("90%", "80%"):
            look = DOMAINS[domain]
            text = f"weights within ε = {result['epsilon']:g} of the risk on {domain}"
            axes[0][0].plot([], [], label=text, **look.line)
        handles, names = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower left", ncols=2)
    return figure


def _sets(axis: Any, name: str, found: Mapping[str, Any], epsilon: float) -> None:
    import numpy as np

    x, y = found["axes"]
    risks = np.array(found["risks"])
    centre = risks[:, risks.shape[1] // 2, risks.shape[2] // 2]
    gap = (risks[1] - risks[0]).T
    shown = axis.contourf(x, y, gap, levels=np.linspace(-0.2, 0.2, 21), cmap="PuOr", extend="both")
    axis.figure.colorbar(shown, ax=axis, location="top", shrink=0.8, aspect=30, pad=0.02).set_label(
        "risk on 80 % less risk on 90 %", size=7.5
    )
    for e, domain in enumerate(found["domains"]):
        look = DOMAINS[domain]
        levels = [centre[e] - epsilon, centre[e] + epsilon]
        axis.contour(x, y, risks[e].T, levels=levels, colors=look.colour, linestyles=look.dashes)
    axis.plot(0, 0, "*", color=INK, markersize=7)
    risk = ", ".join(
        f"{value:.3f} on {domain}" for domain, value in zip(found["domains"], centre, strict=True)
    )
    axis.set(title=f"{name}\nrisk at ★: {risk}", xlabel="most curved direction of ω")
    axis.set_ylabel("second most curved")
    axis.grid(False)


def _terms(axis: Any, methods: Mapping[str, Any]) -> None:
    """Draw R and H of both ordered pairs, and what was found on the grid."""
    place, ticks = 0.0, []
    for name, found in methods.items():
        for pair, terms in found["pairs"].items():
            a, b = pair.split(", ")
            axis.bar(place - 0.2, terms["R"], 0.38, color="#E69F00", edgecolor=INK, linewidth=0.5)
            axis.bar(
                place + 0.2,
                terms["H"],
                0.38,
                color="#56B4E9",
                edgecolor=INK,
                linewidth=0.5,
                hatch="///",
            )
            axis.plot(place, terms["measured"], "D", color=INK, markersize=4)
            ticks.append((place, f"{name}\n{a}→{b}"))
            place += 1.2
    axis.axhline(0, color=INK, linewidth=0.7)
    axis.set_xticks([tick for tick, _ in ticks], [text for _, text in ticks], fontsize=7)
    axis.bar(0, 0, color="#E69F00", edgecolor=INK, label="R: gap of risks")
    axis.bar(0, 0, color="#56B4E9", edgecolor=INK, hatch="///", label="H: curvature term")
    axis.plot([], [], "D", color=INK, linestyle="", label="measured in the plane")
    axis.set(title="Inconsistency, and its two terms")
    axis.grid(False, axis="x")
    axis.legend(loc="best", fontsize=7)
