"""Figures of a diagnosis, PNG and PDF, readable in grey: hatches, markers and numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .figures.style import styled

Found = dict[str, Any]

GREYS = ("0.15", "0.45", "0.65", "0.82")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":", "-.")


def check_drawing() -> None:
    """Raise where figures cannot be drawn, before anything is computed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "figures are drawn by matplotlib, which is not installed: pip install 'shoal[report]'",
            name="matplotlib",
        ) from error


def draw(found: Found, folder: Path) -> list[Path]:
    """Draw every figure of a diagnosis into ``folder``; return the files."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[Found, Any], None]] = {
        "domains": _domains,
        "diagonals": _diagonals,
        "pairs": _pairs,
        "inconsistency": _inconsistency,
        "spectra": _spectra,
    }
    written = []
    with styled():
        for name, paint in figures.items():
            figure = Figure(figsize=(7.5, 3.2), layout="constrained")
            paint(found, figure)
            for kind in ("png", "pdf"):
                path = folder / f"{name}.{kind}"
                figure.savefig(path, dpi=160)
                written.append(path)
    return written


def _bars(axes: Any, names: list[str], values: list[float], title: str) -> None:
    axes.bar(range(len(names)), values, color=GREYS[2], edgecolor="0.1")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_title(title, loc="left")


def _domains(found: Found, figure: Any) -> None:
    """Risks, and the traces of the four matrices, of every domain."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    names = list(found["domains"])
    _bars(left, names, [one["risk"] for one in found["domains"].values()], "Risk")
    kinds = {"hessian": "H", "fisher": "F", "empirical": "F̃", "variance": "C"}
    hatches = ("", "//", "..", "xx")
    for k, (kind, label) in enumerate(kinds.items()):
        places = [e + 0.2 * (k - 1.5) for e in range(len(names))]
        values = [one["chain"][f"trace:{kind}"] for one in found["domains"].values()]
        right.bar(places, values, 0.2, label=label, color=GREYS[k], hatch=hatches[k], ec="0.1")
    right.set_xticks(range(len(names)), names, rotation=30, ha="right")
    right.set_title("Trace, a mean over examples", loc="left")
    right.legend(ncols=4)


def _diagonals(found: Found, figure: Any) -> None:
    """Hessian diagonal against gradient variance, a point for each weight."""
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
            marker=MARKERS[k % len(MARKERS)],
            facecolor="none",
            edgecolor=GREYS[k % len(GREYS)],
            linewidth=0.7,
            label=f"{name}, cos {cosine:.4f}",
        )
    axes.set(xscale="log", yscale="log", xlabel="Diag(H)", ylabel="Var(G)")
    axes.set_title("Curvature and gradient variance of single weights", loc="left")
    axes.legend(markerscale=2)


def _matrix(axes: Any, names: list[str], cells: dict[tuple[str, str], float], title: str) -> None:
    """Cells in grey by their logarithm, with their numbers."""
    from math import log10

    logs = {pair: log10(value) for pair, value in cells.items() if value > 0}
    low, high = (min(logs.values()), max(logs.values())) if logs else (0.0, 1.0)
    # A power of ten at least: what is nearly equal is to look it.
    span = max(high - low, 1.0)
    for (a, b), value in cells.items():
        depth = (logs[a, b] - low) / span if (a, b) in logs else 0.0
        x, y = names.index(b), names.index(a)
        grey = 1 - 0.75 * depth
        axes.fill_between([x - 0.5, x + 0.5], y - 0.5, y + 0.5, color=str(grey), lw=0)
        colour = "white" if grey < 0.5 else "black"
        axes.text(x, y, f"{value:.2g}", ha="center", va="center", color=colour, fontsize=7)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5))
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title(title, loc="left")
    axes.grid(False)


def _pairs(found: Found, figure: Any) -> None:
    """Squared distances between domains: of risks, variances and Hessian diagonals."""
    names = list(found["domains"])
    titles = {"risk": "|ΔR|²", "variance": "‖ΔVar(G)‖²", "hessian": "‖ΔDiag(H)‖²"}
    for axes, (kind, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        cells = {}
        for one in found["pairs"]:
            a, b = one["domains"]
            cells[a, b] = cells[b, a] = one[kind]
        _matrix(axes, names, cells, title)


def _inconsistency(found: Found, figure: Any) -> None:
    """I(A, B) of every pair, A in rows: full matrices and diagonals."""
    names = list(found["domains"])
    titles = {"full": "I(A, B), full matrices", "diagonal": "I(A, B), diagonals"}
    for axes, (kind, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        scores = found["inconsistency"][kind]
        cells = {(one["a"], one["b"]): one["inconsistency"] for one in scores["pairs"]}
        _matrix(axes, names, cells, title)
        axes.set(xlabel="B", ylabel="A")


def _spectra(found: Found, figure: Any) -> None:
    """The largest eigenvalues of tangent kernel and Fisher matrix."""
    titles = {"tangent": "Tangent kernel K / n", "fisher": "Fisher matrix F / n"}
    for axes, (kind, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        for k, (name, one) in enumerate(found["domains"].items()):
            values = one[kind]["largest"]
            style = {"marker": MARKERS[k % len(MARKERS)], "ls": LINES[k % len(LINES)]}
            grey = GREYS[k % 3]
            axes.plot(range(1, len(values) + 1), values, color=grey, label=name, **style)
        axes.set(yscale="log", xlabel="eigenvalue")
        axes.set_title(title, loc="left")
    figure.axes[0].legend()
