"""Figures: the same bytes every time, told apart without colours, and made of the given numbers."""

from typing import Any

import pytest

from shoal.experiments.batch_size import batch_figure
from shoal.experiments.gradients import gradient_scatter
from shoal.experiments.hessian import gap_dynamics, hessian_dynamics
from shoal.experiments.landscape import landscape_figure
from shoal.experiments.linear import linear_window
from shoal.experiments.overhead import overhead_figure
from shoal.report.figures import DOMAIN_COLOURS, LOOKS, canvas, look_of, render


def texts(figure: Any) -> str:
    """Return all that is written in a figure."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def lines(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axis.get_lines()
    }


def drawn() -> Any:
    with canvas(1, 2) as (figure, axes):
        axes[0][1].plot([1, 2], [3, 4], **look_of(1).line)
    return figure


def test_png_and_pdf_of_the_same_bytes_every_time() -> None:
    first, again = render(drawn()), render(drawn())
    assert first == again
    assert list(first) == ["png", "pdf"]
    assert first["png"].startswith(b"\x89PNG") and first["pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in first["pdf"]


def test_settings_of_ones_own_neither_act_nor_change() -> None:
    import matplotlib

    before = render(drawn())["png"]
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "lines.linewidth": 9}):
        assert render(drawn())["png"] == before
        assert matplotlib.rcParams["font.size"] == 30


def test_series_differ_without_colours() -> None:
    assert len({str(look.dashes) for look in LOOKS}) == len(LOOKS)
    assert len({look.marker for look in LOOKS}) == len(LOOKS)
    assert len({look.colour for look in LOOKS}) == len(LOOKS)
    assert look_of(len(LOOKS)) == LOOKS[0]
    assert len({str(look.dashes) for look in DOMAIN_COLOURS.values()}) == len(DOMAIN_COLOURS)


def test_linear_window() -> None:
    spans = [("neither", 1, 2), ("invariant", 3, 6), ("shortcut", 7, 9)]
    rows = [{"lambda": 10.0**k, "spans": spans} for k in range(3)]
    methods = ("fish", "fishr", "fishr-uncentered")
    result = {
        "window": dict.fromkeys(methods, rows),
        "table": [{"method": method, "lambda": 10.0} for method in methods],
        "steps": 5,
        "longest": 9,
    }
    figure = linear_window(result)
    axis = figure.axes[1]
    assert axis.get_ylim() == pytest.approx((10**-0.5, 10**2.5))
    # Nine areas; the one of λ = 1, invariant, from step 3 to the end of step 6.
    box = axis.collections[1].get_datalim(axis.transData)
    assert len(axis.collections) == 9
    assert (box.x0, box.x1) == (3, 7)
    assert (box.y0, box.y1) == pytest.approx((10**-0.5, 10**0.5))
    assert "93 % in train and test" in texts(figure)
    assert render(figure)["png"]


CURVES = {
    "step": [0, 5, 10],
    "train": [0.5, 0.7, 0.8],
    "test": [0.5, 0.3, 0.6],
    "risk_gap": [1e-2, 1e-3, 1e-4],
    "variance_gap": [1.0, 0.1, 0.01],
    "hessian_gap": [2.0, 0.2, 0.02],
    "hessian_cosine": [0.9, 0.95, 0.99],
    "hessian_norm_gap": [3.0, 0.3, 0.03],
    "hessian_norm": [4.0, 5.0, 6.0],
}


def test_dynamics() -> None:
    figure = gap_dynamics(CURVES, "Fishr", 5)
    accuracy, gaps = figure.axes
    assert lines(accuracy)["train"] == ([0, 5, 10], pytest.approx([50, 70, 80]))
    assert lines(gaps)["|R₉₀ − R₈₀|²"] == ([0, 5, 10], [1e-2, 1e-3, 1e-4])
    assert lines(gaps)["‖Var(G₉₀) − Var(G₈₀)‖²"][1] == CURVES["variance_gap"]
    assert lines(gaps)["‖Diag(H₉₀ − H₈₀)‖²"][1] == CURVES["hessian_gap"]
    assert gaps.get_yscale() == "log"
    assert texts(figure).count("λ jumps") == 2
    assert not any(axis.texts for axis in figure.axes)  # nothing is written over a line
    assert "λ jumps" not in texts(gap_dynamics(CURVES, "ERM", None))
    sizes, directions = hessian_dynamics(CURVES, "ERM", None).axes
    assert lines(sizes)["mean of ‖h₉₀‖² and ‖h₈₀‖²"][1] == CURVES["hessian_norm"]
    assert lines(sizes)["(‖h₉₀‖² − ‖h₈₀‖²)²"][1] == CURVES["hessian_norm_gap"]
    assert lines(directions)["cosine"][1] == CURVES["hessian_cosine"]


def test_landscape() -> None:
    risks = [[[0.1 * (e + i * i + j) for j in range(5)] for i in range(5)] for e in range(2)]
    terms = {"R": 0.1, "H": 0.3, "proposition": 0.4, "measured": 0.35}
    found = {
        "domains": ["90%", "80%"],
        "axes": [[-2, -1, 0, 1, 2], [-4, -2, 0, 2, 4]],
        "risks": risks,
        "pairs": {"90%, 80%": terms, "80%, 90%": terms | {"R": -0.1}},
    }
    figure = landscape_figure({"epsilon": 0.05, "methods": {"ERM": found, "Fishr": found}})
    written = texts(figure)
    assert "ERM: risk at ★ 0.600 (90%), 0.700 (80%)" in written
    assert "|risk on 90% − its value at ★| = 0.05" in written
    assert "equal risks" in written and not any(axis.texts for axis in figure.axes)
    bars = next(axis for axis in figure.axes if "Inconsistency" in axis.get_title(loc="left"))
    heights = [patch.get_height() for patch in bars.patches]
    assert heights == [0.1, 0.3, -0.1, 0.3] * 2
    assert [label.get_text() for label in bars.get_xticklabels()][1] == "ERM\n80% → 90%"
    assert render(figure)["pdf"]


def test_scatter_has_ellipses_of_two_deviations() -> None:
    cloud = {
        "points": [[0.0, 1.0], [2.0, 0.0]],
        "mean": [1.0, 2.0],
        "covariance": [[4.0, 1.0], [1.0, 9.0]],
        "trace": 13.0,
    }
    domains = {"90%": cloud, "80%": cloud | {"mean": [0.0, 0.0]}}
    found = {"domains": domains, "shares": [0.7, 0.2], "variance_gap": 0.5}
    figure = gradient_scatter({"methods": {"ERM": found}})
    (axis,) = figure.axes
    first, _ = axis.get_lines()
    x, y = first.get_data()
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named[::2] == ["examples of 90%", "examples of 80%"]
    assert named[1::2] == ["two deviations"] * 2
    assert (min(x), max(x)) == pytest.approx((1 - 4, 1 + 4), rel=1e-3)
    assert (min(y), max(y)) == pytest.approx((2 - 6, 2 + 6), rel=1e-3)
    # (p − m)ᵀ C⁻¹ (p − m) = 4 all around.
    for a, b in zip(x, y, strict=True):
        u, v = a - 1, b - 2
        assert (9 * u * u - 2 * u * v + 4 * v * v) / 35 == pytest.approx(4)
    assert axis.get_xlim() == pytest.approx((-6.4, 7.4))
    assert "first direction, 70 % of the variance" in texts(figure)


def test_batches_leave_out_what_was_not_run() -> None:
    cells = [
        {"pull": pull, "ema_decay": decay, "batch_size": size, "mean": 10.0 * size, "error": 1.0}
        for pull in ("a", "b")
        for decay in (0.0, 0.9)
        for size in (8, 32)
    ]
    cells[1] |= {"mean": None, "error": None}
    figure = batch_figure(cells)
    first, second = figure.axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == ("a", "b")
    assert [list(line.get_xdata()) for line in first.get_lines()[::3]] == [[8], [8, 32]]
    assert "γ = 0.9" in texts(figure)


def test_overhead_says_what_was_not_measured() -> None:
    paper = {"time": 2.7, "memory": 0.2}
    head = {"name": "PACS", "time": -0.5, "memory": None, "paper": paper}
    figure = overhead_figure({"device": "a machine", "heads": {"pacs": head}})
    time, memory = figure.axes
    assert [patch.get_height() for patch in time.patches] == [-0.5, 2.7]
    assert [patch.get_height() for patch in memory.patches] == [0.2]
    assert "not\nmeasured" in texts(figure) and "−0.5" in texts(figure)
