"""The demo's result: a self-contained page, and a small table for the terminal.

Python computes the positions and ``demo.html`` draws them, so that the template escapes every name.
The charts are inline SVG in the page's own colours: they follow a light or a dark screen, which a
picture from a plotting library would not.
"""

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .demo_charts import NBSP, accuracy_chart, gap_chart, percent
from .screen import plain, rich_table
from .template import render

if TYPE_CHECKING:
    from rich.table import Table

# The digits of class 0 and of class 1.
ANSWERS = ("5–9", "0–4")

_COLOURS = {"ERM": "erm", "V-REx": "vrex", "Fishr": "fishr"}
_SPARE_COLOURS = ("spare1", "spare2", "spare3")


@dataclass(frozen=True, kw_only=True)
class _DemoMethod:
    """A method on the page; ``colour`` names a CSS variable, ``width`` is that of its bar in %."""

    name: str
    colour: str
    train: str
    test: str
    gray: str
    seconds: str
    width: float


@dataclass(frozen=True, kw_only=True)
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
        result: ``title``, ``seconds``, ``machine``, ``examples`` (per domain), ``steps``,
            ``jump_step`` (at which λ jumps), ``colour_only`` and ``shape_only`` (accuracies of the
            two extreme models), ``methods`` (each ``name``, ``train``, ``test``, ``gray``,
            ``seconds`` and ``curve`` with ``step``, ``train``, ``test``, ``variance_gap``,
            ``risk_gap``) and ``digits`` (each ``pixels`` [14, 14, 2] in 0 … 255, ``digit`` and
            ``answers``, the probability of class 1 by method). Accuracies are fractions.
    """
    methods = _methods(result)
    colours = {method.name: method.colour for method in methods}
    by_name = {method.name: method for method in methods}
    first = by_name.get("ERM", methods[0])
    last = by_name.get("Fishr", methods[-1])
    digits = [_digit(digit, colours) for digit in result["digits"]]
    return render(
        "demo.html",
        {},
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
        accuracy=[accuracy_chart(result, method, colours) for method in result["methods"]],
        gaps=[
            gap_chart(
                result, colours, "variance_gap", "Gap between the domains’ gradient variances"
            ),
            gap_chart(result, colours, "risk_gap", "Gap between the domains’ risks"),
        ],
        digits=digits,
        tally=_tally(digits, [method.name for method in methods]),
    )


def demo_table(result: Mapping[str, Any]) -> "Table":
    """Return the demo's accuracies as a rich table, with a bar for the test on reversed colours.

    Args:
        result: as for ``demo_page``; the curves and the digits are not needed.
    """
    colour_only, shape_only = result["colour_only"], result["shape_only"]
    caption = (
        f"┊ on reversed colours, colour alone gives {_share(colour_only)}, "
        f"shape alone {_share(shape_only)}"
    )
    view = rich_table(str(result["title"]), caption)
    view.add_column("Method")
    view.add_column("Train", justify="right", no_wrap=True)
    view.add_column("Test, reversed colours", justify="right", no_wrap=True)
    view.add_column("", no_wrap=True)
    view.add_column("Gray", justify="right", no_wrap=True)
    for method in result["methods"]:
        view.add_row(
            plain(str(method["name"])),
            plain(percent(method["train"])),
            plain(percent(method["test"]), style="bold"),
            plain(_bar(method["test"], (colour_only, shape_only)), style="cyan"),
            plain(percent(method["gray"])),
        )
    return view


def _bar(value: float, references: Sequence[float], width: int = 20) -> str:
    filled = round(width * min(max(value, 0.0), 1.0)) if math.isfinite(value) else 0
    marks = {min(int(width * reference), width - 1) for reference in references}
    empty = ("┊" if place in marks else " " for place in range(filled, width))
    return "█" * filled + "".join(empty)


def _methods(result: Mapping[str, Any]) -> list[_DemoMethod]:
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
            _DemoMethod(
                name=name,
                colour=colour,
                train=percent(method["train"]),
                test=percent(method["test"]),
                gray=percent(method["gray"]),
                seconds=_duration(method["seconds"]),
                width=_percent_of_track(method["test"]),
            )
        )
    return views


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


def _digit(digit: Mapping[str, Any], colours: Mapping[str, str]) -> _Digit:
    # Judged by shape: the label in the data can be a flipped one.
    truth = int(digit["digit"] < 5)
    answers = []
    for name, colour in colours.items():
        if name not in digit["answers"]:
            continue
        chance = digit["answers"][name]
        if chance is None or not math.isfinite(chance):
            answers.append(_Answer(method=name, colour=colour, text="none", sure="", right=False))
            continue
        answer = int(chance > 0.5)
        sure = f"{100 * max(chance, 1 - chance):.0f}{NBSP}%"
        answers.append(
            _Answer(
                method=name,
                colour=colour,
                text=ANSWERS[answer],
                sure=sure,
                right=answer == truth,
            )
        )
    red, green = (sum(row[k] for line in digit["pixels"] for row in line) for k in (0, 1))
    tint = "gray" if red == green else "red" if red > green else "green"
    return _Digit(_png(digit["pixels"]), f"a {tint} {digit['digit']}", ANSWERS[truth], answers)


def _tally(digits: Sequence[_Digit], names: Sequence[str]) -> str:
    """Return the number of digits that each method answers correctly, in words."""
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
