"""The linear example, tab:appendix-linear: ERM takes the shortcut, Fish and Fishr do not.

The data are those of Fish (Shi et al., 2021, Section 3.2) as far as the stated accuracies determine
them: **reconstructed**, because neither paper published code, counts, optimiser, steps or λ. There
are four binary features, and the model is a logistic regression. f1 predicts the label in 93 % of
cases in every domain. Each domain also has a spurious feature s of its own (f2 and f3 in training,
f4 in test) that predicts the label in 97 % of cases there and in 57 % elsewhere.

On these data the domains' variances differ only through errors on examples with f1 = s = 1. So the
penalty vanishes as the model becomes confident: invariance holds for a window of steps, and longer
training ends in the shortcut with every method. The window is therefore part of the result.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..reference import published
from ..report.figures import INK, canvas
from ..report.views import Sheet, power

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LABEL = "tab:appendix-linear"
# Number of examples of a domain with these values of f1, its spurious feature and the label.
CELLS = ((50, 0, 0, 0), (7, 1, 0, 0), (40, 1, 1, 1), (3, 1, 0, 1))
DOMAINS = ("D1", "D2", "test")

LEARNING_RATE, STEPS, LONGEST = 0.01, 400, 1500
STRENGTHS = {"erm": 0.0, "fish": 3.0, "fishr": 300.0, "fishr-uncentered": 300.0}
# The search for the window: smallest λ, largest λ, and how many.
GRIDS = {
    "fish": (0.3, 30.0, 81),
    "fishr": (10.0, 10_000.0, 91),
    "fishr-uncentered": (10.0, 1e4, 91),
}
# A model's state, by its accuracy in % on D1, D2 and test.
STATES = {(93, 93, 93): "invariant", (97, 97, 57): "shortcut"}


@dataclass(frozen=True)
class LinearData:
    """Three domains of four kinds of examples.

    Args:
        inputs: ``[3, 4, 5]``, the last a one for the bias.
        labels: 0 or 1, ``[4]``.
        counts: number of examples of each kind among a domain's 100, ``[4]``.
    """

    inputs: Tensor
    labels: Tensor
    counts: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over a domain's examples, given values of its kinds ``[..., 4]``."""
        return values @ (self.counts / self.counts.sum())


@dataclass(frozen=True)
class Paths:
    """Trainings side by side, one for each λ.

    Args:
        weights: weights and bias after each step, ``[k, steps, 5]``.
        accuracies: in %, on D1, D2 and test, ``[k, steps, 3]``.
    """

    weights: Tensor
    accuracies: Tensor

    def states(self) -> list[list[str]]:
        """Return the state of each model after each step: invariant, shortcut or neither."""
        return [
            [STATES.get(tuple(found), "neither") for found in path]
            for path in self.accuracies.round().int().tolist()
        ]


def data() -> LinearData:
    """Return the reconstructed domains."""
    counts, f1, spurious, labels = torch.tensor(CELLS, dtype=torch.float64).unbind(1)
    inputs = torch.zeros(3, len(CELLS), 5, dtype=torch.float64)
    inputs[:, :, 0], inputs[:, :, 4] = f1, 1
    for domain in range(3):
        inputs[domain, :, 1 + domain] = spurious
    return LinearData(inputs, labels, counts)


def train(method: str, strengths: Sequence[float], steps: int = LONGEST) -> Paths:
    """Train one model for each λ, from zero, with Adam on full batches of both domains."""
    domains = data()
    strength = torch.tensor(strengths, dtype=torch.float64)
    weights = torch.zeros(len(strengths), 5, dtype=torch.float64, requires_grad=True)
    # Adam treats every entry separately: models in one tensor do not influence each other.
    optimiser = torch.optim.Adam([weights], lr=LEARNING_RATE)
    found, right = [], []
    for _ in range(steps):
        optimiser.zero_grad()
        objective(method, weights, strength, domains).sum().backward()
        optimiser.step()
        with torch.no_grad():
            answers = torch.einsum("enf,kf->ken", domains.inputs, weights) > 0
            right.append(100 * domains.mean((answers == (domains.labels > 0.5)).double()))
            found.append(weights.detach().clone())
    return Paths(torch.stack(found, 1), torch.stack(right, 1))


def objective(method: str, weights: Tensor, strength: Tensor, domains: LinearData) -> Tensor:
    """Return the loss of each model ``[k]``: its risk plus λ times the method's penalty.

    Fish is its objective R − λ ⟨g_1, g_2⟩, exactly; its algorithm approximates it to first order.
    Fishr is Eq. 4, with 1/(n − 1).
    """
    inputs = domains.inputs[:2]
    logits = torch.einsum("enf,kf->ken", inputs, weights)
    labels = domains.labels.expand_as(logits)
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    risk = domains.mean(losses).mean(1)
    if method == "erm":
        return risk
    # g_i = (p − y) x: the individual gradients of the five weights, [k, e, 5, n].
    gradients = ((torch.sigmoid(logits) - labels)[..., None] * inputs).mT
    means, squares = domains.mean(gradients), domains.mean(gradients.square())
    if method == "fish":
        return risk - strength * means.prod(1).sum(1)
    n = domains.counts.sum()
    rows = squares if method == "fishr-uncentered" else (squares - means.square()) * n / (n - 1)
    # Eq. 3 for two domains.
    return risk + strength * (rows[:, 0] - rows[:, 1]).square().sum(1) / 4


def run() -> dict[str, Any]:
    """Return the table, and the window of λ and steps for which it holds."""
    published_rows = published(LABEL)["rows"]
    table, window = [], {}
    for method, strength in STRENGTHS.items():
        path = train(method, [strength])
        table.append(_row(method, strength, path, published_rows[method]))
    for method, (low, high, count) in GRIDS.items():
        strengths = torch.logspace(math.log10(low), math.log10(high), count).tolist()
        window[method] = [
            {"lambda": strength, "spans": _spans(states)}
            for strength, states in zip(strengths, train(method, strengths).states(), strict=True)
        ]
    return {
        "data": "reconstructed",
        "optimiser": f"Adam, learning rate {LEARNING_RATE:g}, weights from zero, full batches",
        "steps": STEPS,
        "longest": LONGEST,
        "table": table,
        "window": window,
        "at_steps": {method: _lambdas(rows, STEPS) for method, rows in window.items()},
    }


def _row(method: str, strength: float, path: Paths, paper: dict[str, Any]) -> dict[str, Any]:
    accuracies, weights = path.accuracies[0, STEPS - 1], path.weights[0, STEPS - 1].tolist()
    spans = _spans(path.states()[0])
    return {
        "method": method,
        "name": paper["name"],
        "statistic": paper["statistic"],
        "lambda": strength,
        "train": float(accuracies[:2].mean()),
        "test": float(accuracies[2]),
        "weights": weights[:4],
        "bias": weights[4],
        "spans": spans,
        "paper": {key: paper[key] for key in ("train", "test", "weights", "bias")},
    }


def _spans(states: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return (state, first step, last step), steps counted from 1."""
    found: list[tuple[str, int, int]] = []
    for step, state in enumerate(states, 1):
        if found and found[-1][0] == state:
            found[-1] = (state, found[-1][1], step)
        else:
            found.append((state, step, step))
    return found


def _lambdas(rows: Sequence[dict[str, Any]], step: int) -> tuple[float, float] | None:
    """Return the smallest and the largest λ whose model is invariant after this step."""
    inside = [
        row["lambda"]
        for row in rows
        for state, first, last in row["spans"]
        if state == "invariant" and first <= step <= last
    ]
    return (min(inside), max(inside)) if inside else None


# The tables


def linear_sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """Return the table of the linear example, and the window for which it holds."""
    rows = []
    for row in result["table"]:
        paper = row["paper"]
        rows.append(
            (
                f"{row['name']}: {_small(row['statistic'])}" if row["lambda"] else row["name"],
                f"{row['lambda']:g}" if row["lambda"] else "–",
                f"{row['train']:.0f} / {row['test']:.0f}",
                f"{paper['train']} / {paper['test']}",
                _weights(row),
                _weights(paper),
            )
        )
    table = Sheet(
        f"tab:appendix-linear, reconstructed data, {result['steps']} steps for all",
        ("Method", "λ", "Train / test in %", "paper", "W; b", "paper"),
        rows,
        f"{result['optimiser']}.",
    )
    spans = []
    for row in result["table"]:
        held = [f"{first}–{last}" for state, first, last in row["spans"] if state == "invariant"]
        low_high = result["at_steps"].get(row["method"])
        spans.append(
            (
                f"{row['name']}: {_small(row['statistic'])}" if row["lambda"] else row["name"],
                f"{row['lambda']:g}" if row["lambda"] else "–",
                ", ".join(held) or "none",
                f"{power(low_high[0], 3)} – {power(low_high[1], 3)}" if low_high else "–",
            )
        )
    window = Sheet(
        "Steps and λ with 93 % in train and test",
        ("Method", "λ", "steps at this λ", f"λ at {result['steps']} steps"),
        spans,
        f"Searched up to step {result['longest']}.",
    )
    return [table, window]


def _small(text: str) -> str:
    return text[0].lower() + text[1:].replace("entered", "entred")


def _weights(row: Mapping[str, Any]) -> str:
    weights: Sequence[float] = row["weights"]
    shown = ", ".join(f"{weight:.1f}" for weight in weights)
    return f"[{shown}]; {row['bias']:.1f}".replace("-", "−")


# The figure

TITLES = {
    "fish": "Fish: gradient means",
    "fishr": "Fishr: centred variances",
    "fishr-uncentered": "Fishr: uncentred variances",
}
SHADES = {"invariant": "#0072B2", "shortcut": "#F3D9C6", "neither": "#FFFFFF"}


def linear_window(result: Mapping[str, Any]) -> "Figure":
    """Return the states of each method's models by λ and steps; a dot is the table's model."""
    from matplotlib.patches import Patch

    chosen = {row["method"]: row["lambda"] for row in result["table"]}
    with canvas(1, len(TITLES), width=3.0, height=2.9, sharex=True) as (figure, axes):
        for axis, (method, title) in zip(axes[0], TITLES.items(), strict=True):
            _draw_spans(axis, result["window"][method], result["longest"])
            axis.axvline(result["steps"], color=INK, linewidth=0.8, linestyle=":")
            axis.plot(result["steps"], chosen[method], "o", color="white", markeredgecolor=INK)
            axis.set(title=title, xlabel="steps", yscale="log", xlim=(1, result["longest"]))
            axis.grid(False)
        axes[0][0].set_ylabel("λ")
        meanings = {
            "invariant": "93 % in train and test",
            "shortcut": "97 % in train, 57 % in test",
            "neither": "anything else",
        }
        patches = [
            Patch(facecolor=SHADES[state], edgecolor=INK, linewidth=0.5, label=text)
            for state, text in meanings.items()
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=3)
    return figure


def _draw_spans(axis: Any, rows: list[dict[str, Any]], longest: int) -> None:
    # A row reaches half way to the next λ, on the log scale.
    ratio = (rows[-1]["lambda"] / rows[0]["lambda"]) ** (0.5 / (len(rows) - 1))
    for row in rows:
        low, high = row["lambda"] / ratio, row["lambda"] * ratio
        for state, first, last in row["spans"]:
            axis.fill_between([first, last + 1], low, high, color=SHADES[state], linewidth=0)
    axis.set_ylim(rows[0]["lambda"] / ratio, rows[-1]["lambda"] * ratio)
