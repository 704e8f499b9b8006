"""The chart of a fit: accuracies on each domain left out, a mark for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["chart"]

COLOURS = ("#6b7280", "#0b5cad", "#b7472a", "#2f7d4f", "#7a4fa3", "#a3760b")
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 170, 24, 34, 8


def chart(content: Mapping[str, Any]) -> str:
    """Return an SVG drawing with a line for every domain and one for their average."""
    methods = content["methods"]
    lines: list[tuple[str, list[Mapping[str, Any] | None]]] = [
        (domain, [method["cells"][k] for method in methods])
        for k, domain in enumerate(content["domains"])
    ]
    if len(lines) > 1:
        lines.append(("average", [method["average"] for method in methods]))
    low = _low([cell["mean"] for _, cells in lines for cell in cells if cell])
    height = TOP + ROW * len(lines) + 26
    parts = [*_grid(low, height), *_lines(lines, low)]
    drawing = "".join(parts)
    label = "Accuracy on each domain left out, by method"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{drawing}</svg>'
        f'<p class="legend">{_legend([method["name"] for method in methods])}</p>'
    )


def _lines(
    lines: Sequence[tuple[str, Sequence[Mapping[str, Any] | None]]], low: float
) -> list[str]:
    parts = []
    for number, (name, cells) in enumerate(lines):
        y = TOP + ROW * (number + 0.5)
        bold = ' class="strong"' if name == "average" else ""
        short = name if len(name) <= 22 else f"{name[:21]}…"
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end"{bold}>{escape(short)}</text>'
        )
        for k, cell in enumerate(cells):
            if cell is not None:
                step = 7 if len(cells) < 4 else 20 / len(cells)
                parts.append(_mark(cell, k, y + step * (k - (len(cells) - 1) / 2), low))
    return parts


def _mark(cell: Mapping[str, Any], k: int, y: float, low: float) -> str:
    colour, x = COLOURS[k % len(COLOURS)], _x(cell["mean"], low)
    bar = ""
    if cell["error"] is not None:
        ends = (
            _x(max(cell["mean"] - cell["error"], low), low),
            _x(min(cell["mean"] + cell["error"], 100), low),
        )
        bar = (
            f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
    return f'{bar}<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'


def _grid(low: float, height: int) -> list[str]:
    step = 5 if 100 - low <= 30 else 10 if 100 - low <= 60 else 20
    ticks = [tick for tick in range(0, 101, step) if tick >= low]
    parts = []
    for tick in ticks:
        x = f"{_x(tick, low):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - 22}"/>')
        place = f'x="{x}" y="{height - 6}" text-anchor="middle"'
        parts.append(f'<text class="tick" {place}>{tick} %</text>')
    return parts


def _legend(names: Sequence[str]) -> str:
    return "".join(
        f'<span><i style="background:{COLOURS[k % len(COLOURS)]}"></i>{escape(name)}</span>'
        for k, name in enumerate(names)
    )


def _low(values: Sequence[float]) -> float:
    """Return where the axis begins: a round number below all values."""
    return max(0.0, 10.0 * ((min(values, default=0.0) - 4) // 10))


def _x(value: float, low: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (100 - low)
