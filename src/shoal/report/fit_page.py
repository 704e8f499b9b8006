"""The page of a fit: one HTML file that opens offline, without a script."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor
from typing import Any, NamedTuple

from .template import read_part, render

# The scores of all methods, by domain.
Lines = list[tuple[str, list[Mapping[str, Any] | None]]]

# Enough for all methods that are compared by default, and a few more; then the shape changes.
COLOURS = (
    *("#6b7280", "#0b5cad", "#b7472a", "#2f7d4f", "#7a4fa3", "#a3760b"),
    *("#d1679b", "#17a2a2", "#e08a2e", "#8bb33d", "#7fb2e5", "#1a1d21"),
)
SHAPES = ("circle", "square", "diamond")
RIGHT, TOP = 24, 8
# The height of a domain's line at least, and the distance of the marks of two methods in it.
ROW, BESIDE = 34, 7
# Distances between two marks of an axis, and the least number of pixels between them.
STEPS = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5))
APART = 50


class ChartFrame(NamedTuple):
    """The width of a drawing, the left end of its axis, and the longest name in letters.

    The axis goes from ``low`` to ``high``; ``unit`` is written after its numbers.
    """

    name: str
    width: int
    left: int
    letters: int
    low: float
    high: float
    unit: str

    def x(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.left + (self.width - self.left - RIGHT) * share


def chart(content: Mapping[str, Any]) -> str:
    """Return SVG drawings with a line for every domain and one for their average.

    One is for wide screens and one for narrow ones; the style sheet shows one of them. Without any
    score there is nothing to draw.
    """
    methods = [method for method in content["methods"] if method["drawn"]]
    lines: Lines = [
        (domain, [method["cells"][k] for method in methods])
        for k, domain in enumerate(content["domains"])
    ]
    if not lines or not methods:
        return ""
    if len(lines) > 1:
        lines.append(("average", [method["average"] for method in methods]))
    metric = content["metric"]
    axis = (
        *_axis([cell["mean"] for _, cells in lines for cell in cells if cell], metric["most"]),
        metric["unit"],
    )
    frames = ChartFrame("wide", 760, 170, 20, *axis), ChartFrame("narrow", 330, 96, 10, *axis)
    label = f"{metric['title']} on each held-out domain, by method"
    names = [method["name"] for method in methods]
    strong = names.index(content["deploy"]) if content["deploy"] in names else None
    drawings = "".join(_drawing(lines, frame, escape(label), strong) for frame in frames)
    return f'{drawings}<p class="legend">{_legend(names, strong)}</p>'


def effects_chart(column: Mapping[str, Any]) -> str:
    """Return SVG drawings of a column's effect in each domain, for wide and narrow screens."""
    rows = column["rows"]
    ends = [one["effect"] + side * 2 * one["error"] for one in rows for side in (-1, 1)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = 0.05 * (high - low) or 1.0
    axis = (low - room, high + room, "")
    frames = ChartFrame("wide", 760, 170, 20, *axis), ChartFrame("narrow", 330, 96, 10, *axis)
    lines: Lines = [
        (one["domain"], [{"mean": one["effect"], "error": 2 * one["error"]}]) for one in rows
    ]
    label = escape(f"effect of {column['name']} by domain")
    return "".join(_drawing(lines, frame, label, zero=True) for frame in frames)


def _row(methods: int) -> float:
    """Return the height of a domain's line."""
    return max(ROW, BESIDE * methods + 14)


def _drawing(
    lines: Lines, frame: ChartFrame, label: str, strong: int | None = None, zero: bool = False
) -> str:
    """Return a drawing; the marks of method ``strong`` are larger, and the others fainter."""
    height = TOP + _row(len(lines[0][1])) * len(lines) + 26
    bands, marks = _lines(lines, frame, strong)
    if zero:
        x = f"{frame.x(0):.1f}"
        marks.append(f'<line class="zero" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - 22}"/>')
    parts = "".join([*bands, *_grid(frame, height), *marks])
    return (
        f'<svg class="{frame.name}" viewBox="0 0 {frame.width} {height}" role="img" '
        f'aria-label="{label}">{parts}</svg>'
    )


def _lines(lines: Lines, frame: ChartFrame, strong: int | None) -> tuple[list[str], list[str]]:
    """Return bands behind every other line, to be drawn first, and the names and marks."""
    bands, parts = [], []
    for number, (name, cells) in enumerate(lines):
        row = _row(len(cells))
        y = TOP + row * (number + 0.5)
        if number % 2:
            band = f'x="0" y="{y - row / 2}" width="{frame.width}" height="{row}"'
            bands.append(f'<rect class="band" {band}/>')
        bold = ' class="strong"' if name == "average" else ""
        short = name if len(name) <= frame.letters else f"{name[: frame.letters - 1]}…"
        place = f'x="{frame.left - 12}" y="{y + 4}" text-anchor="end"'
        parts.append(f"<text {place}{bold}>{escape(short)}</text>")
        for k, cell in enumerate(cells):
            if cell is not None:
                mark = _mark(cell, k, y + BESIDE * (k - (len(cells) - 1) / 2), frame, k == strong)
                faint = strong is not None and k != strong
                parts.append(f'<g class="faint">{mark}</g>' if faint else mark)
    return bands, parts


def _mark(
    cell: Mapping[str, Any], k: int, y: float, frame: ChartFrame, strong: bool = False
) -> str:
    colour, x = COLOURS[k % len(COLOURS)], frame.x(cell["mean"])
    bar = ""
    if cell["error"] is not None:
        ends = (
            frame.x(max(cell["mean"] - cell["error"], frame.low)),
            frame.x(min(cell["mean"] + cell["error"], frame.high)),
        )
        bar = (
            f'<line x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
    size = 7 if strong else 5
    shape = _shape(k)
    if shape == "circle":
        return f'{bar}<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"/>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == "diamond" else ""
    corner, side = (
        f'x="{x - size:.1f}" y="{y - size:.1f}"',
        f'width="{2 * size}" height="{2 * size}"',
    )
    return f'{bar}<rect {corner} {side}{turned} fill="{colour}"/>'


def _shape(k: int) -> str:
    """Return the shape of a method's mark; together with its colour it is the only one."""
    return SHAPES[k // len(COLOURS) % len(SHAPES)]


def _grid(frame: ChartFrame, height: float) -> list[str]:
    room = (frame.width - frame.left - RIGHT) / (frame.high - frame.low)  # of 1
    step = next(step for step in STEPS if step * room >= APART)
    first, last = ceil(frame.low / step - 1e-9), floor(frame.high / step + 1e-9)
    ticks = [step * number for number in range(first, last + 1)]
    parts = []
    for tick in ticks:
        x = f"{frame.x(tick):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{height - 22}"/>')
        place = f'x="{x}" y="{height - 6}" text-anchor="middle"'
        parts.append(f'<text class="tick" {place}>{tick:g}{frame.unit}</text>')
    return parts


def _legend(names: Sequence[str], strong: int | None) -> str:
    return "".join(
        f"<span{' class=strong' if k == strong else ''}>"
        f'<i class="{_shape(k)}" style="background:{COLOURS[k % len(COLOURS)]}"></i>'
        f"{escape(name)}</span>"
        for k, name in enumerate(names)
    )


def _axis(values: Sequence[float], most: float | None) -> tuple[float, float]:
    """Return where the axis begins and ends: a round number below all values, and ``most``.

    Without a largest score, the axis goes from 0 to beyond all values.
    """
    if most is None:
        return 0.0, 1.1 * max(values, default=1.0)
    tenth = most / 10
    return max(0.0, tenth * ((min(values, default=0.0) - 0.4 * tenth) // tenth)), most


def check_drawing() -> None:
    """Raise if pages cannot be written, before hours of training."""
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the report page needs jinja2, which is not installed: pip install 'shoal[report]'",
            name="jinja2",
        ) from error


def fit_page(content: Mapping[str, Any]) -> str:
    """Return the page; ``content`` is plain values, and every text of it is escaped."""
    digits = content["metric"]["digits"]
    return render(
        "fit.html.jinja",
        {
            "number": lambda value: f"{value:,}",
            "score": lambda value: f"{value:.{digits}f}",
            "signed": lambda value: f"{value:+z.{digits}f}",
        },
        **content,
        style=read_part("fit.css"),
        chart=chart(content),
        effects=[effects_chart(column) for column in content["unstable"]],
    )
