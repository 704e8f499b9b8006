"""Loss landscapes around trained weights, fig:fig_consistenty, and the terms of Proposition 1.

The paper sketches two domains' risks around inconsistent weights. We measure them, in a plane of
the classifier's weights ω through the trained ones: the two directions in which the domains' mean
risk is most curved. The ε-level set N_A^ε contains the weights that are connected to θ* by a path
on which R_A stays within ε of R_A(θ*).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..curvature import inconsistency, of_matrices
from ..report.figures import DOMAIN_COLOURS, INK, canvas
from ..report.views import Sheet
from .colored_mnist import Setup, Training
from .restarts import (
    SHOWN,
    RestartFolder,
    RestartProgress,
    describe_models,
    device_name,
    head_inputs,
    train_or_load,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DOMAINS = ("90%", "80%")
POINTS = 61
# How often an axis can grow by half, for level sets that reach further than those of a bowl.
WIDENINGS = 5


def run(
    epsilon: float,
    setup: Setup,
    device: torch.device,
    folder: RestartFolder,
    progress: RestartProgress,
) -> dict[str, Any]:
    """Return the landscape around ERM's and around Fishr's weights."""
    found = {}
    for name in SHOWN:
        training = train_or_load(name, setup, device, folder, progress)
        found[name] = landscape(training, epsilon) | {"accuracies": training.accuracies()}
    return {
        "setup": setup.as_json(),
        "device": device_name(device),
        "epsilon": epsilon,
        "methods": found,
    }


def landscape(training: Training, epsilon: float) -> dict[str, Any]:
    """Return risks on a grid, level sets, and the terms of the inconsistency in the plane."""
    z, logits, labels = head_inputs(training)
    hessians = head_hessians(z, logits)
    plane = plane_of(hessians)
    within = plane.mT @ hessians @ plane
    # At first, twice as far as the level sets of a bowl reach.
    reach = 2.0 * (2 * epsilon / torch.diagonal(within, dim1=1, dim2=2).amin(0)).sqrt()
    for widening in range(WIDENINGS + 1):
        ticks = [torch.linspace(-float(r), float(r), POINTS) for r in reach]
        risks = risks_on(z @ plane, logits, labels, ticks)
        sets = torch.stack([level_set(mine, epsilon) for mine in risks])
        cut = cut_at(sets)
        if widening == WIDENINGS or not cut.any():
            break
        reach = reach * torch.where(cut.any(0), 1.5, 1.0).to(reach)
    centre = risks[:, POINTS // 2, POINTS // 2]
    scores = inconsistency(of_matrices(within), centre, epsilon)
    pairs = {}
    for a, b in ((0, 1), (1, 0)):
        score = scores.pairs[a, b]
        measured = (risks[b] - centre[a]).abs()[sets[a]].max()
        pairs[f"{DOMAINS[a]}, {DOMAINS[b]}"] = {
            "R": score.risk,
            "H": score.curvature,
            "proposition": score.inconsistency,
            "measured": float(measured),
        }
    return {
        "domains": DOMAINS,
        "axes": [tick.tolist() for tick in ticks],
        "risks": [[[round(v, 5) for v in row] for row in mine] for mine in risks.tolist()],
        "curvatures": within.tolist(),
        "cut": cut.any(1).tolist(),
        "pairs": pairs,
    }


def head_hessians(z: Tensor, logits: Tensor) -> Tensor:
    """Return H_e of the domains' mean risks in ω, ``[2, P, P]``: E[σ(1 − σ) z zᵀ]."""
    h = torch.sigmoid(logits) * torch.sigmoid(-logits)
    return (z * h[..., None]).mT @ z / z.shape[1]


def plane_of(hessians: Tensor) -> Tensor:
    """Return the two directions ``[P, 2]`` in which the domains' mean risk is most curved.

    Their largest entries are positive, so that a picture is not mirrored on another machine.
    """
    plane: Tensor = torch.linalg.eigh(hessians.mean(0))[1][:, [-1, -2]]
    largest = plane.gather(0, plane.abs().argmax(0, keepdim=True))
    return plane * largest.sign()


def risks_on(steps: Tensor, logits: Tensor, labels: Tensor, ticks: list[Tensor]) -> Tensor:
    """Return R_e on the grid, ``[2, x, y]``: logits are linear in ω.

    Args:
        steps: growth of a logit along either direction, ``[2, n, 2]``.
    """
    x, y = (tick.to(logits) for tick in ticks)
    rows = []
    for a in x:
        moved = (logits + a * steps[..., 0])[..., None] + steps[..., 1:] * y
        targets = labels[..., None].expand_as(moved)
        losses = F.binary_cross_entropy_with_logits(moved, targets, reduction="none")
        rows.append(losses.mean(1))
    return torch.stack(rows, 1).cpu()


def level_set(risks: Tensor, epsilon: float) -> Tensor:
    """Return which points of the grid are connected to its centre by |R − R(centre)| ≤ ε."""
    centre = tuple(size // 2 for size in risks.shape)
    inside = (risks - risks[centre]).abs() <= epsilon
    found = torch.zeros_like(inside)
    found[centre] = True
    while True:
        grown = F.max_pool2d(found[None].double(), 3, 1, 1)[0].bool() & inside
        if torch.equal(grown, found):
            return found
        found = grown


def cut_at(sets: Tensor) -> Tensor:
    """Return which sets reach the end of which axis, ``[sets, 2]``."""
    return torch.stack([sets[:, [0, -1]].any((1, 2)), sets[:, :, [0, -1]].any((1, 2))], 1)


# The table


def landscape_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return the terms of the inconsistency of every ordered pair of domains."""
    rows = [
        (
            f"{name}, {pair.replace(', ', ' → ')}",
            *[_signed(terms[key]) for key in ("R", "H", "proposition", "measured")],
        )
        for name, found in result["methods"].items()
        for pair, terms in found["pairs"].items()
    ]
    return Sheet(
        f"Inconsistency in the plane, ε = {result['epsilon']:g}",
        ("Method, A → B", "R = R_B − R_A", "H", "Proposition 1", "measured on the grid"),
        rows,
        "Proposition 1 assumes that the weights are a minimum of two quadratic risks; the grid "
        f"does not. Level sets that are cut at the edge of the grid: {_cut(result)}. "
        f"{describe_models(result)}",
    )


def _cut(result: Mapping[str, Any]) -> str:
    found = [
        f"{name} on {domain}"
        for name, mine in result["methods"].items()
        for domain, cut in zip(mine["domains"], mine["cut"], strict=True)
        if cut
    ]
    return ", ".join(found) or "none"


def _signed(value: float) -> str:
    return f"{value:+z.3f}".replace("-", "−")


# The figure

TERMS = {"R": ("#E69F00", ""), "H": ("#56B4E9", "///")}
# Larger gaps between the risks have the shade of this one.
WIDEST = 0.2
# Width of the line on which both risks are equal.
EVEN = 0.6


def landscape_figure(result: Mapping[str, Any]) -> "Figure":
    """Return the level sets around each method's weights, next to the terms R and H."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    methods, epsilon = result["methods"], result["epsilon"]
    with canvas(1, len(methods) + 1, width=3.2, height=3.3) as (figure, axes):
        maps, bars = list(axes[0][:-1]), axes[0][-1]
        for axis, (name, found) in zip(maps, methods.items(), strict=True):
            shown = _sets(axis, name, found, epsilon)
        maps[0].set_ylabel("second most curved direction")
        bar = figure.colorbar(shown, ax=maps, location="right", aspect=25, pad=0.02)
        bar.set_ticks([-WIDEST, 0, WIDEST], labels=[f"−{WIDEST:g}", "0", f"{WIDEST:g}"])
        bar.set_label("risk on 80% minus risk on 90%", size=8, labelpad=-4)
        _terms(bars, methods)
        handles: list[Any] = [
            Line2D(
                [],
                [],
                label=f"|risk on {d} − its value at ★| = {epsilon:g}",
                **DOMAIN_COLOURS[d].line,
            )
            for d in next(iter(methods.values()))["domains"]
        ]
        texts = {"R": "R: gap of the risks at ★", "H": "H: term of the curvatures"}
        for term, text in texts.items():
            colour, hatch = TERMS[term]
            handles.append(Patch(facecolor=colour, edgecolor=INK, hatch=hatch, label=text))
        handles.append(Line2D([], [], marker="D", color=INK, ls="", label="measured on the grid"))
        # In the legend: at the edge of the panel a label on the line would be cut.
        handles.append(Line2D([], [], color=INK, linewidth=EVEN, label="equal risks"))
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _sets(axis: Any, name: str, found: Mapping[str, Any], epsilon: float) -> Any:
    """Draw a method's level sets over the gap of the risks; return the coloured map."""
    import numpy as np

    x, y = found["axes"]
    risks = np.array(found["risks"])
    centre = risks[:, risks.shape[1] // 2, risks.shape[2] // 2]
    gap = (risks[1] - risks[0]).T
    # Greys: a map of two colours loses its sign in black and white.
    levels = np.linspace(-WIDEST, WIDEST, 17)
    greys = [str(shade) for shade in np.linspace(1.0, 0.55, len(levels) + 1)]
    shown = axis.contourf(x, y, gap, levels, colors=greys, extend="both")
    if gap.min() < 0 < gap.max():
        axis.contour(x, y, gap, [0.0], colors=INK, linewidths=EVEN)
    for e, domain in enumerate(found["domains"]):
        look = DOMAIN_COLOURS[domain]
        edges = [centre[e] - epsilon, centre[e] + epsilon]
        axis.contour(x, y, risks[e].T, edges, colors=look.colour, linestyles=look.dashes)
    axis.plot(0, 0, "*", color=INK, markersize=7)
    values = ", ".join(f"{v:.3f} ({d})" for d, v in zip(found["domains"], centre, strict=True))
    axis.set(title=f"{name}: risk at ★ {values}", xlabel="most curved direction of ω")
    axis.grid(False)
    return shown


def _terms(axis: Any, methods: Mapping[str, Any]) -> None:
    """Draw R and H of both ordered pairs, and the inconsistency measured on the grid."""
    ticks: list[tuple[float, str]] = []
    for name, found in methods.items():
        for pair, terms in found["pairs"].items():
            place = 1.2 * len(ticks)
            for shift, term in ((-0.2, "R"), (0.2, "H")):
                colour, hatch = TERMS[term]
                look = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.5}
                axis.bar(place + shift, terms[term], 0.38, **look)
            axis.plot(place, terms["measured"], "D", color=INK)
            ticks.append((place, f"{name}\n{pair.replace(', ', ' → ')}"))
    axis.axhline(0, color=INK, linewidth=0.7)
    axis.set_xticks([place for place, _ in ticks], [text for _, text in ticks], fontsize=7)
    axis.set(title="Inconsistency and its two terms")
    axis.grid(False, axis="x")
