"""Figures of a diagnosis: PNG and PDF, readable without colours."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .figures import GRID, INK, figure_style, letters_without_a_font, look_of, name_in_figure

Found = dict[str, Any]
Cells = dict[tuple[str, str], float]

HATCHES = ("", "//", "..", "xx")
SIZE = (7.5, 3.2)
SIZES = {"inconsistency": (7.5, 5.4)}


def draw(found: Found, folder: Path) -> list[Path]:
    """Draw every figure of a diagnosis into ``folder``; return the files.

    If no font has some letters, one warning lists them.
    """
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[Found, Any], None]] = {
        "domains": _domains,
        "diagonals": _diagonals,
        "pairs": _pairs,
        "inconsistency": _inconsistency,
        "spectra": _spectra,
        "alignment": _alignment,
    }
    written = []
    found = _with_safe_names(found)
    boxes = letters_without_a_font(found["domains"])
    if boxes:
        warnings.warn(
            f"no installed font has the letters {boxes} of the domains' names, so the figures show "
            "boxes; install a font that has them, such as Noto Sans CJK, and draw again",
            stacklevel=2,
        )
    with figure_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        for name, paint in figures.items():
            figure = Figure(figsize=SIZES.get(name, SIZE), layout="constrained")
            paint(found, figure)
            for kind in ("png", "pdf"):
                path = folder / f"{name}.{kind}"
                figure.savefig(path, dpi=160)
                written.append(path)
    return written


def _with_safe_names(found: Found) -> Found:
    """Return a diagnosis with the names of its domains as figures show them."""
    named = {
        part: {name_in_figure(name): one for name, one in found[part].items()}
        for part in ("domains", "points")
    }
    pairs = [one | {"domains": [*map(name_in_figure, one["domains"])]} for one in found["pairs"]]
    return {**found, **named, "pairs": pairs}


def _bars(axes: Any, names: list[str], values: list[float], title: str) -> None:
    axes.bar(range(len(names)), values, color=look_of(0).colour, edgecolor=INK, linewidth=0.6)
    axes.grid(False, axis="x")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_title(title, loc="left")


def _domains(found: Found, figure: Any) -> None:
    """Draw the risk and the traces of the four matrices of every domain."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    names = list(found["domains"])
    _bars(left, names, [one["risk"] for one in found["domains"].values()], "Risk")
    kinds = {"hessian": "H", "fisher": "F", "empirical": "F̃", "variance": "C"}
    for k, (kind, label) in enumerate(kinds.items()):
        places = [e + 0.2 * (k - 1.5) for e in range(len(names))]
        values = [one["chain"][f"trace:{kind}"] for one in found["domains"].values()]
        style = {"facecolor": _pale(k), "edgecolor": INK, "linewidth": 0.6, "hatch": HATCHES[k]}
        right.bar(places, values, 0.2, label=label, **style)
    right.grid(False, axis="x")
    right.set_xticks(range(len(names)), names, rotation=30, ha="right")
    right.set_title("Trace, a mean over examples", loc="left")
    right.legend(ncols=4)


def _pale(number: int) -> Any:
    """Return the colour of a series, pale enough for a hatch to be seen on it."""
    from matplotlib.colors import to_rgb

    return tuple(1 - 0.55 * (1 - part) for part in to_rgb(look_of(number).colour))


def _diagonals(found: Found, figure: Any) -> None:
    """Draw Hessian diagonal against gradient variance, a point for each weight."""
    axes = figure.subplots()
    for k, (name, rows) in enumerate(found["points"].items()):
        pairs = [
            (h, v) for h, v in zip(rows["hessian"], rows["variance"], strict=True) if h > 0 < v
        ]
        cosine = found["domains"][name]["chain"]["cosine:hessian:variance"]
        axes.scatter(
            [h for h, _ in pairs],
            [v for _, v in pairs],
            s=9,
            marker=look_of(k).marker,
            facecolor="none",
            edgecolor=look_of(k).colour,
            linewidth=0.7,
            label=f"{name}, cos {cosine:.4f}",
        )
    axes.set(xscale="log", yscale="log", xlabel="Diag(H)", ylabel="Var(G)")
    axes.set_title("Curvature and gradient variance of single weights", loc="left")
    axes.legend(markerscale=2)


def _matrix(axes: Any, names: list[str], cells: Cells, title: str, powers: bool = True) -> None:
    """Draw cells with numbers, grey by the logarithm of their size, or from 0 to 1."""
    from math import log10

    from matplotlib.patches import Rectangle

    depths = {pair: log10(abs(v)) if powers else v for pair, v in cells.items() if v != 0}
    # At least a power of ten, so that nearly equal cells look equal.
    low = min(depths.values(), default=0.0) if powers else 0.0
    span = max(max(depths.values(), default=0.0) - low, 1.0)
    for y, a in enumerate(names):
        for x, b in enumerate(names):
            corner = (x - 0.5, y - 0.5)
            if (a, b) not in cells:
                axes.add_patch(Rectangle(corner, 1, 1, fc="white", ec=GRID, hatch="////", lw=0))
                continue
            grey = 0.95 - 0.75 * max(depths.get((a, b), low) - low, 0.0) / span
            axes.add_patch(Rectangle(corner, 1, 1, fc=str(grey), lw=0))
            ink = "white" if grey < 0.5 else INK
            text = f"{cells[a, b]:.2g}" if powers else f"{cells[a, b]:.3f}"
            axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=7)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5))
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title(title, loc="left")
    axes.grid(False)


def _either_way(found: Found, value: Callable[[Found], float]) -> Cells:
    """Return a value of every pair of domains, in both orders."""
    cells = {}
    for one in found["pairs"]:
        a, b = one["domains"]
        cells[a, b] = cells[b, a] = value(one)
    return cells


def _pairs(found: Found, figure: Any) -> None:
    """Draw squared distances between domains: of risks, variances and Hessian diagonals."""
    titles = {"risk": "|ΔR|²", "variance": "‖ΔVar(G)‖²", "hessian": "‖ΔDiag(H)‖²"}
    for axes, (kind, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        cells = _either_way(found, lambda pair, kind=kind: pair[kind])  # type: ignore[misc]
        _matrix(axes, list(found["domains"]), cells, title)


def _inconsistency(found: Found, figure: Any) -> None:
    """Draw I(A, B) of every pair and its two terms, A in rows: full matrices and diagonals."""
    kinds = {"full": "full matrices", "diagonal": "diagonals"}
    terms = {"inconsistency": "I(A, B)", "risk": "its term R", "curvature": "its term H"}
    for row, (kind, label) in zip(figure.subplots(2, 3), kinds.items(), strict=True):
        pairs = found["inconsistency"][kind]["pairs"]
        for axes, (term, title) in zip(row, terms.items(), strict=True):
            cells = {(one["a"], one["b"]): one[term] for one in pairs}
            _matrix(axes, list(found["domains"]), cells, f"{title}, {label}")
            axes.set(xlabel="B", ylabel="A")


def _spectra(found: Found, figure: Any) -> None:
    """Draw the largest eigenvalues of tangent kernel and Fisher matrix."""
    from matplotlib.ticker import MaxNLocator

    titles = {"tangent": "Tangent kernel K / n", "fisher": "Fisher matrix F / n"}
    for axes, (kind, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for k, (name, one) in enumerate(found["domains"].items()):
            values, look = one[kind]["largest"], look_of(k)
            places = range(1, len(values) + 1)
            axes.plot(places, values, marker=look.marker, label=name, **look.line)
        axes.set(yscale="log", xlabel="eigenvalue")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(title, loc="left")
    figure.axes[0].legend()


def _alignment(found: Found, figure: Any) -> None:
    """Draw how far the top eigenvectors of the domains' Fisher matrices agree, 1 if equal."""
    titles = {"first": "First eigenvectors", "subspace": "Top eigenvectors together"}
    for axes, (kind, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        cells = _either_way(found, lambda pair, kind=kind: pair["alignment"][kind])  # type: ignore[misc]
        _matrix(axes, list(found["domains"]), cells, f"{title} of F", powers=False)
