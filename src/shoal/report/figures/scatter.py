"""Gradients of single examples of two domains, in their two principal directions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .style import DOMAINS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gradient_scatter"]

MARKERS = {"90%": "o", "80%": "+"}


def gradient_scatter(result: Mapping[str, Any]) -> Figure:
    """Return the clouds of each method, with an ellipse of two standard deviations per domain.

    Args:
        result: `methods`, each with `domains` (their `points`, `mean`, `covariance` and `trace`),
            `shares` and `variance_gap`.
    """
    methods = result["methods"]
    with canvas(1, len(methods), width=3.6, height=3.4) as (figure, axes):
        for axis, (name, found) in zip(axes[0], methods.items(), strict=True):
            for domain, cloud in found["domains"].items():
                look = DOMAINS[domain]
                x, y = zip(*cloud["points"], strict=True)
                axis.scatter(
                    x,
                    y,
                    s=9,
                    marker=MARKERS[domain],
                    **_ink(domain),
                    linewidths=0.6,
                    alpha=0.6,
                    label=f"examples of {domain}",
                )
                axis.plot(*_ellipse(cloud), label="two deviations", linewidth=2, **look.line)
            first, second = (100 * share for share in found["shares"])
            traces = ", ".join(
                f"{cloud['trace']:.2g} ({domain})" for domain, cloud in found["domains"].items()
            )
            _frame(axis, found["domains"])
            axis.set(
                title=f"{name}: Tr C {traces}",
                xlabel=f"first direction, {first:.0f} % of the variance",
                ylabel=f"second, {second:.0f} %",
            )
        handles, names = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def _ink(domain: str) -> dict[str, str]:
    """Return the colours of open circles and of crosses, which have no face."""
    colour = DOMAINS[domain].colour
    return (
        {"facecolors": "none", "edgecolors": colour}
        if MARKERS[domain] == "o"
        else {"color": colour}
    )


def _frame(axis: Any, clouds: Mapping[str, Any]) -> None:
    """Frame what lies within 3.2 standard deviations: a few examples lie far out."""
    for k, setter in enumerate((axis.set_xlim, axis.set_ylim)):
        ends = []
        for cloud in clouds.values():
            deviation = math.sqrt(cloud["covariance"][k][k])
            ends += [cloud["mean"][k] + sign * 3.2 * deviation for sign in (-1, 1)]
        setter(min(ends), max(ends))


def _ellipse(cloud: Mapping[str, Any], points: int = 121) -> tuple[list[float], list[float]]:
    """Return the curve two standard deviations from the mean."""
    (a, b), (_, d) = cloud["covariance"]
    first = math.sqrt(a)
    low, across = b / first, math.sqrt(max(d - b * b / a, 0.0))
    mean: Sequence[float] = cloud["mean"]
    angles = [2 * math.pi * k / (points - 1) for k in range(points)]
    x = [mean[0] + 2 * first * math.cos(t) for t in angles]
    y = [mean[1] + 2 * (low * math.cos(t) + across * math.sin(t)) for t in angles]
    return x, y
