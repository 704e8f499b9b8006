"""The demo's result: one self-contained page, and a small table for the terminal.

Python computes where things stand; `demo.html` draws them, so that every name passes through the
template's escaping. The charts are inline SVG in the page's own colours: they follow a light or a
dark screen, which a picture from a plotting library would not.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["demo_page", "demo_table"]

NBSP = "\N{NO-BREAK SPACE}"
ANSWERS = ("5–9", "0–4")
"""What class 0 and class 1 say about the digit."""

_COLOURS = {"ERM": "erm", "V-REx": "vrex", "Fishr": "fishr"}
_SPARE_COLOURS = ("spare1", "spare2", "spare3")
_DECADES = 8  # what lies further under a chart's largest value is drawn on its floor
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class _Method:
    """A method as the page shows it; `colour` names a CSS variable."""

    name: str
    colour: str
    train: str
    test: str
    gray: str
    seconds: str
    width: float
    """Length of its bar in percent."""


@dataclass(frozen=True)
class _Line:
    """One curve: `path` in SVG's words, and a dot for every piece that is a single point."""

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
class _Chart:
    """A chart's geometry in SVG units: the plot lies between the edges, y grows downwards."""

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
    """Horizontal lines: y, what they mean, and the y of that text."""
    jump: float | None = None
    note: str = ""

    def x(self, share: float) -> float:
        return round(self.left + share * (self.right - self.left), 2)

    def y(self, share: float) -> float:
        return round(self.bottom - share * (self.bottom - self.top), 2)


@dataclass(frozen=True)
class _Answer:
    method: str
    colour: str
    text: str
    sure: str
    right: bool


@dataclass(frozen=True)
class _Digit:
    uri: str
    words: str
    truth: str
    answers: list[_Answer]


def demo_page(result: Mapping[str, Any]) -> str:
    """Return the demo's result as one HTML page that needs no other file, no network, no script.

    Args:
        result: `title`, `seconds`, `machine`, `examples` (per domain), `steps`, `jump_step` (at
            which λ jumps), `colour_only` and `shape_only` (accuracies of the two extreme models),
            `methods` (each `name`, `train`, `test`, `gray`, `seconds` and `curve` with `step`,
            `train`, `test`, `variance_gap`, `risk_gap`) and `digits` (each `pixels`
            [14, 14, 2] in 0 … 255, `digit` and `answers`, the probability of class 1 by
            method). Accuracies are fractions.
    """
    import jinja2

    methods = _methods(result)
    colours = {method.name: method.colour for method in methods}
    by_name = {method.name: method for method in methods}
    first = by_name.get("ERM", methods[0])
    last = by_name.get("Fishr", methods[-1])
    digits = [_digit(digit, colours) for digit in result["digits"]]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        resources.files("shoal.report").joinpath("demo.html").read_text("utf-8")
    )
    return template.render(
        title=result["title"],
        duration=_duration(result["seconds"]),
        machine=result["machine"],
        examples=f"{result['examples']:,}".replace(",", NBSP),
        steps=result["steps"],
        jump_step=result["jump_step"],
        colour_only=_share(result["colour_only"]),
        shape_only=_share(result["shape_only"]),
        wrong_labels=_share(1 - result["shape_only"]),
        colour_at=_percent_of_track(result["colour_only"]),
        shape_at=_percent_of_track(result["shape_only"]),
        headline=[first] if first is last else [first, last],
        methods=methods,
        accuracy=[_accuracy_chart(result, method, colours) for method in result["methods"]],
        gaps=[
            _gap_chart(
                result, colours, "variance_gap", "Gap between the domains’ gradient variances"
            ),
            _gap_chart(result, colours, "risk_gap", "Gap between the domains’ risks"),
        ],
        digits=digits,
        tally=_tally(digits, [method.name for method in methods]),
    )


def demo_table(result: Mapping[str, Any]) -> Table:
    """Return the demo's accuracies as a rich table, with a bar for the test on reversed colours.

    Args:
        result: as for `demo_page`; the curves and the digits are not needed.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    colour_only, shape_only = result["colour_only"], result["shape_only"]
    caption = (
        f"┊ on reversed colours, colour alone gives {_share(colour_only)}, "
        f"shape alone {_share(shape_only)}"
    )
    view = Table(
        title=Text(str(result["title"])),
        caption=Text(caption),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    view.add_column("Method")
    view.add_column("Train", justify="right", no_wrap=True)
    view.add_column("Test, reversed colours", justify="right", no_wrap=True)
    view.add_column("", no_wrap=True)
    view.add_column("Gray", justify="right", no_wrap=True)
    for method in result["methods"]:
        view.add_row(
            Text(str(method["name"])),
            Text(_percent(method["train"])),
            Text(_percent(method["test"]), style="bold"),
            Text(_bar(method["test"], (colour_only, shape_only)), style="cyan"),
            Text(_percent(method["gray"])),
        )
    return view


def _bar(value: float, references: Sequence[float], width: int = 20) -> str:
    filled = round(width * min(max(value, 0.0), 1.0)) if math.isfinite(value) else 0
    marks = {min(int(width * reference), width - 1) for reference in references}
    empty = ("┊" if place in marks else " " for place in range(filled, width))
    return "█" * filled + "".join(empty)


def _methods(result: Mapping[str, Any]) -> list[_Method]:
    methods = result["methods"]
    if not methods:
        raise ValueError("a demo page needs one method or more, got none")
    names = [str(method["name"]) for method in methods]
    if len(set(names)) < len(names):
        raise ValueError(f"methods need different names, got {', '.join(names)}")
    spare = 0
    views = []
    for method, name in zip(methods, names, strict=True):
        colour = _COLOURS.get(name)
        if colour is None:
            colour = _SPARE_COLOURS[spare % len(_SPARE_COLOURS)]
            spare += 1
        views.append(
            _Method(
                name,
                colour,
                _percent(method["train"]),
                _percent(method["test"]),
                _percent(method["gray"]),
                _duration(method["seconds"]),
                _percent_of_track(method["test"]),
            )
        )
    return views


def _percent(value: float) -> str:
    """Return an accuracy as it was measured, with one decimal."""
    return f"{100 * value:.1f}{NBSP}%" if math.isfinite(value) else "not finite"


def _share(value: float) -> str:
    """Return a round share, such as 10 %, with no more decimals than it has."""
    return f"{round(100 * value, 1):g}{NBSP}%"


def _percent_of_track(value: float) -> float:
    return round(100 * min(max(value, 0.0), 1.0), 2) if math.isfinite(value) else 0.0


def _duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}{NBSP}min {rest}{NBSP}s"


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
    """Join the points to a path that breaks where a value is NaN."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isnan(point[1]):
            pieces.append([])
        else:
            pieces[-1].append(point)
    path = " ".join(
        "M" + " L".join(f"{x:g} {y:g}" for x, y in piece) for piece in pieces if len(piece) > 1
    )
    return _Line(name, colour, dashed, path, [piece[0] for piece in pieces if len(piece) == 1])


def _x_axis(chart: _Chart, result: Mapping[str, Any]) -> float:
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


def _accuracy_chart(
    result: Mapping[str, Any], method: Mapping[str, Any], colours: Mapping[str, str]
) -> _Chart:
    name = str(method["name"])
    alt = (
        f"Accuracy of {name} over {result['steps']} steps; λ jumps at step {result['jump_step']}. "
        f"At the end {_percent(method['test'])} in test on reversed colours, "
        f"{_percent(method['train'])} in training."
    )
    chart = _Chart(name, alt, 340, 250, left=44, right=328, top=24, bottom=206)
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


def _gap_chart(
    result: Mapping[str, Any], colours: Mapping[str, str], key: str, title: str
) -> _Chart:
    """Return the curves of all methods on a log scale, each named at its end."""
    curves = {str(method["name"]): _curve(method, key) for method in result["methods"]}
    chart = _Chart(title, "", 440, 290, left=52, right=372, top=24, bottom=246)
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
    ends: Sequence[tuple[float, str]], chart: _Chart, gap: float = 15.0
) -> list[tuple[float, str]]:
    """Move labels down until none covers another, then back up where they left the plot."""
    placed: list[tuple[float, str]] = []
    for y, name in sorted(ends):
        placed.append((max(y, placed[-1][0] + gap) if placed else y, name))
    limit = float(chart.bottom)
    for index in reversed(range(len(placed))):
        y, name = placed[index]
        placed[index] = (round(min(y, limit), 2), name)
        limit = placed[index][0] - gap
    return placed


def _digit(digit: Mapping[str, Any], colours: Mapping[str, str]) -> _Digit:
    # Judged by shape: the label in the data may be one of those that were flipped.
    truth = int(digit["digit"] < 5)
    answers = []
    for name, colour in colours.items():
        if name not in digit["answers"]:
            continue
        chance = digit["answers"][name]
        if chance is None or not math.isfinite(chance):
            answers.append(_Answer(name, colour, "none", "", False))
            continue
        answer = int(chance > 0.5)
        sure = f"{100 * max(chance, 1 - chance):.0f}{NBSP}%"
        answers.append(_Answer(name, colour, ANSWERS[answer], sure, answer == truth))
    red, green = (sum(row[k] for line in digit["pixels"] for row in line) for k in (0, 1))
    tint = "gray" if red == green else "red" if red > green else "green"
    return _Digit(_png(digit["pixels"]), f"a {tint} {digit['digit']}", ANSWERS[truth], answers)


def _tally(digits: Sequence[_Digit], names: Sequence[str]) -> str:
    """Return in words how many of the digits each method answers rightly."""
    counts = {
        name: sum(a.right for digit in digits for a in digit.answers if a.method == name)
        for name in names
    }
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _png(pixels: Sequence[Sequence[Sequence[float]]]) -> str:
    """Return red and green channels, [height, width, 2] in 0 … 255, as the data URI of a PNG."""
    raw = bytearray()
    for line in pixels:
        raw.append(0)  # no filter
        for red, green in line:
            gray = red == green
            raw += bytes(min(max(round(v), 0), 255) for v in (red, green, red if gray else 0))
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(raw), 9)), (b"IEND", b"")):
        body = kind + data
        png += struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
