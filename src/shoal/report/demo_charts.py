"""The demo's charts: positions of lines, ticks and labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NBSP = "\N{NO-BREAK SPACE}"
_DECADES = 8  # values further below a chart's largest are drawn on its floor
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One curve: an SVG path, and a dot for every piece that is a single point."""

    name: str
    colour: str
    dashed: bool
    path: str
    dots: list[tuple[float, float]]


@dataclass(frozen=True)
class _Label:
    """A curve's name at its end."""

    text: str
    colour: str
    y: float


@dataclass
class Chart:
    """A chart's geometry in SVG units: the plot is between the edges, y grows downwards.

    ``references`` are horizontal lines: y, meaning, and the y of that text.
    """

    title: str
    alt: str
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    colour: str = ""
    lines: list[_Line] = field(default_factory=list)
    labels: list[_Label] = field(default_factory=list)
    x_ticks: list[tuple[float, str]] = field(default_factory=list)
    y_ticks: list[tuple[float, str]] = field(default_factory=list)
    references: list[tuple[float, str, float]] = field(default_factory=list)
    jump: float | None = None
    note: str = ""

    def x(self, share: float) -> float:
        return round(self.left + share * (self.right - self.left), 2)

    def y(self, share: float) -> float:
        return round(self.bottom - share * (self.bottom - self.top), 2)


def percent(value: float) -> str:
    """Return an accuracy in percent with one decimal."""
    return f"{100 * value:.1f}{NBSP}%" if math.isfinite(value) else "not finite"


def _curve(method: Mapping[str, Any], key: str) -> list[tuple[float, float]]:
    """Return a curve as (step, value); a value that is None or not finite is NaN."""
    steps, values = method["curve"]["step"], method["curve"][key]
    if len(steps) != len(values):
        raise ValueError(
            f"the curve of {method['name']!r} has {len(steps)} steps but {len(values)} values "
            f"of {key!r}; it needs one value per step"
        )
    return [
        (step, float(value) if value is not None and math.isfinite(value) else math.nan)
        for step, value in zip(steps, values, strict=True)
    ]


def _line(name: str, colour: str, dashed: bool, points: Sequence[tuple[float, float]]) -> _Line:
    """Return a line through the points that breaks at NaN."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isnan(point[1]):
            pieces.append([])
        else:
            pieces[-1].append(point)
    path = " ".join(
        "M" + " L".join(f"{x:g} {y:g}" for x, y in piece) for piece in pieces if len(piece) > 1
    )
    dots = [piece[0] for piece in pieces if len(piece) == 1]
    return _Line(name=name, colour=colour, dashed=dashed, path=path, dots=dots)


def _x_axis(chart: Chart, result: Mapping[str, Any]) -> float:
    """Draw the steps' ticks and the jump; return the last step of the axis."""
    seen = [step for method in result["methods"] for step in method["curve"]["step"]]
    last = float(max([result["steps"], *seen, 1]))
    unit = 10.0 ** math.floor(math.log10(last))
    stride = next(s for s in (unit / 5, unit / 2, unit, 2 * unit, 5 * unit) if last / s <= 4)
    stride = max(stride, 1.0)
    chart.x_ticks = [
        (chart.x(stride * k / last), f"{stride * k:g}") for k in range(int(last / stride) + 1)
    ]
    if 0 <= result["jump_step"] <= last:
        chart.jump = chart.x(result["jump_step"] / last)
    return last


def accuracy_chart(
    result: Mapping[str, Any], method: Mapping[str, Any], colours: Mapping[str, str]
) -> Chart:
    """Return the training and test accuracies of one method."""
    name = str(method["name"])
    alt = (
        f"Accuracy of {name} over {result['steps']} steps; λ jumps at step {result['jump_step']}. "
        f"At the end {percent(method['test'])} in test on reversed colours, "
        f"{percent(method['train'])} in training."
    )
    chart = Chart(name, alt, 340, 250, left=44, right=328, top=24, bottom=206)
    chart.colour = colours[name]
    last = _x_axis(chart, result)
    chart.y_ticks = [(chart.y(k / 4), f"{25 * k}") for k in range(5)]
    chart.references = [
        (chart.y(result["colour_only"]), "colour only", chart.y(result["colour_only"]) + 13),
        (chart.y(result["shape_only"]), "shape only", chart.y(result["shape_only"]) - 5),
    ]
    for key, dashed in (("train", True), ("test", False)):
        points = [(chart.x(s / last), chart.y(value)) for s, value in _curve(method, key)]
        chart.lines.append(_line(key, colours[name], dashed, points))
    return chart


def gap_chart(result: Mapping[str, Any], colours: Mapping[str, str], key: str, title: str) -> Chart:
    """Return the curves of all methods on a log scale, each named at its end."""
    curves = {str(method["name"]): _curve(method, key) for method in result["methods"]}
    chart = Chart(title, "", 440, 290, left=52, right=372, top=24, bottom=246)
    last = _x_axis(chart, result)
    positive = [value for curve in curves.values() for _, value in curve if value > 0]
    if not positive:
        chart.note = "no value above zero"
        chart.alt = f"{title}: no value above zero."
        return chart
    high = math.ceil(math.log10(max(positive)))
    low = max(math.floor(math.log10(min(positive))), high - _DECADES)
    low = min(low, high - 1)
    skip = 2 if high - low > 5 else 1
    chart.y_ticks = [
        (chart.y((k - low) / (high - low)), "10" + str(k).translate(_SUPERSCRIPT))
        for k in range(low, high + 1, skip)
    ]

    def place(value: float) -> float:
        if math.isnan(value):
            return value
        power = math.log10(value) if value > 0 else low
        return chart.y((max(power, low) - low) / (high - low))

    ends = []
    for name, curve in curves.items():
        points = [(chart.x(step / last), place(value)) for step, value in curve]
        chart.lines.append(_line(name, colours[name], False, points))
        drawn = [y for _, y in points if not math.isnan(y)]
        if drawn:
            ends.append((drawn[-1], name))
    chart.labels = [_Label(name, colours[name], y) for y, name in _apart(ends, chart)]
    said = []
    for name, curve in curves.items():
        values = [value for _, value in curve if not math.isnan(value)]
        if values:
            said.append(f"{name} {values[-1]:.2g}")
    chart.alt = (
        f"{title} over {result['steps']} steps, on a log scale; λ jumps at step "
        f"{result['jump_step']}. At the end: {', '.join(said)}."
    )
    return chart


def _apart(
    ends: Sequence[tuple[float, str]], chart: Chart, gap: float = 15.0
) -> list[tuple[float, str]]:
    """Move labels down until none covers another, then up again if they left the plot."""
    placed: list[tuple[float, str]] = []
    for y, name in sorted(ends):
        placed.append((max(y, placed[-1][0] + gap) if placed else y, name))
    limit = float(chart.bottom)
    for index in reversed(range(len(placed))):
        y, name = placed[index]
        placed[index] = (round(min(y, limit), 2), name)
        limit = placed[index][0] - gap
    return placed
