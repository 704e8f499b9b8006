"""Figure style: Okabe and Ito's colours, each with its own dash and marker.

People who do not see red or green can tell the colours apart; dashes and markers survive a printer
without colours. matplotlib is imported when a figure is drawn; no window is opened.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..escapes import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INK, GRID = "#222222", "#D9D9D9"
# Width and height of one panel in inches: three side by side fill a page.
WIDTH, PANEL = 3.4, 2.6


@dataclass(frozen=True)
class Look:
    """A series: its colour, its dashes, and the marker of its points."""

    colour: str
    dashes: str = "-"
    marker: str = "o"

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.dashes}


LOOKS = (
    Look("#0072B2", "-", "o"),
    Look("#D55E00", "--", "s"),
    Look("#009E73", "-.", "^"),
    Look("#000000", ":", "D"),
    Look("#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "v"),  # type: ignore[arg-type]
    Look("#E69F00", (0, (1, 1)), "P"),  # type: ignore[arg-type]
)
DOMAIN_COLOURS: Mapping[str, Look] = {"90%": LOOKS[0], "80%": LOOKS[1], "10%": LOOKS[2]}

# FONT has most letters and comes with matplotlib; most machines have one of the others.
FONT = "DejaVu Sans"
FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Nirmala UI",
    "Arial Unicode MS",
)
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "text.color": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
}


def look_of(number: int) -> Look:
    """Return the look of the series with this number."""
    return LOOKS[number % len(LOOKS)]


@contextmanager
def canvas(
    rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = PANEL, **options: Any
) -> "Iterator[tuple[Figure, Any]]":
    """Yield a figure and its axes, an array of ``[rows, columns]``, to be drawn on inside.

    Args:
        width, height: inches of one panel.
        options: of matplotlib's ``Figure.subplots``, such as ``sharey=True``.
    """
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


def render(figure: "Figure") -> dict[str, bytes]:
    """Return the figure as PNG and PDF, by file ending; the bytes are the same every time."""
    found = {}
    with figure_style():
        for kind, about in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
            file = io.BytesIO()
            figure.savefig(file, format=kind, metadata=about)
            found[kind] = file.getvalue()
    return found


def figure_style() -> Any:
    """Return a context with this style, without the user's own settings."""
    import matplotlib

    settings: dict[Any, Any] = dict(matplotlib.rcParamsDefault)
    settings.pop("backend", None)
    return matplotlib.rc_context(settings | _STYLE | {"font.family": _families()})


def _families() -> list[str]:
    """Return the installed fonts; the first that has a letter draws it."""
    from matplotlib.font_manager import fontManager

    there = {font.name for font in fontManager.ttflist}
    return [FONT, *(name for name in FALLBACKS if name in there)]


def name_in_figure(name: str) -> str:
    """Return a name as a figure shows it: no formula, and none of the signs that are not seen."""
    return printable(name).replace("$", r"\$")


def letters_without_a_font(texts: Iterable[str]) -> str:
    """Return the letters that no font has, which would be drawn as boxes."""
    from matplotlib.font_manager import findfont, get_font

    known = {code for name in _families() for code in get_font(findfont(name)).get_charmap()}
    return "".join(
        sorted({letter for text in texts for letter in text if ord(letter) not in known})
    )
