"""Per-example gradients of two domains, ERM and Fishr: the figure of the introduction.

The gradients are of the classifier's weights ω on Colored MNIST, projected on the two principal
directions of both domains together. With ERM the domains' clouds differ in width, with Fishr not.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..randomness import stream
from ..report.figures import DOMAIN_COLOURS, canvas
from ..report.views import Sheet, power
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
SHOWN_EXAMPLES = 400


def run(
    setup: Setup, device: torch.device, folder: RestartFolder, progress: RestartProgress
) -> dict[str, Any]:
    """Return the clouds of ERM and of Fishr."""
    found = {}
    for name in SHOWN:
        training = train_or_load(name, setup, device, folder, progress)
        found[name] = clouds(training) | {"accuracies": training.accuracies()}
    return {"setup": setup.as_json(), "device": device_name(device), "methods": found}


def clouds(training: Training) -> dict[str, Any]:
    """Return a sample of each domain's gradients in the plane, and their mean and covariance."""
    z, logits, labels = head_inputs(training)
    gradients = (torch.sigmoid(logits) - labels)[..., None] * z
    directions, shares = principal_directions(gradients.flatten(0, 1))
    places = gradients @ directions
    draws = stream("experiments", "gradients")
    chosen = torch.randperm(places.shape[1], generator=draws)[:SHOWN_EXAMPLES].to(places.device)
    variances = gradients.var(1)
    return {
        "domains": {
            domain: {
                "points": [[round(v, 5) for v in point] for point in places[e, chosen].tolist()],
                "mean": places[e].mean(0).tolist(),
                "covariance": torch.cov(places[e].mT).tolist(),
                "trace": float(variances[e].sum()),
            }
            for e, domain in enumerate(DOMAINS)
        },
        "shares": shares,
        "variance_gap": float((variances[0] - variances[1]).square().sum()),
    }


def principal_directions(gradients: Tensor) -> tuple[Tensor, list[float]]:
    """Return the two directions ``[P, 2]`` of largest variance, and their shares of the total."""
    values, vectors = torch.linalg.eigh(torch.cov(gradients.mT))
    top = vectors[:, [-1, -2]]
    # The sign is arbitrary: make the largest entry positive.
    signs = top.gather(0, top.abs().argmax(0, keepdim=True)).sign()
    return top * signs, (values[[-1, -2]] / values.sum()).tolist()


# The table


def gradient_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return the widths of the domains' gradients, and the gap between their variances."""
    rows = []
    for name, found in result["methods"].items():
        traces = [power(cloud["trace"], 3) for cloud in found["domains"].values()]
        accuracies = [f"{100 * found['accuracies'][key]:.1f}" for key in ("train", "test")]
        rows.append((name, *traces, power(found["variance_gap"]), " / ".join(accuracies)))
    head = ("Method", "Tr C_90", "Tr C_80", "‖Var(G_90) − Var(G_80)‖²", "train / test in %")
    return Sheet("Per-example gradients of ω", head, rows, describe_models(result))


# The figure

MARKERS = {"90%": "o", "80%": "+"}


def gradient_scatter(result: Mapping[str, Any]) -> "Figure":
    """Return the clouds of each method, with an ellipse of two standard deviations per domain."""
    methods = result["methods"]
    with canvas(1, len(methods), width=3.6, height=3.4) as (figure, axes):
        for axis, (name, found) in zip(axes[0], methods.items(), strict=True):
            for domain, cloud in found["domains"].items():
                look = DOMAIN_COLOURS[domain]
                x, y = zip(*cloud["points"], strict=True)
                axis.scatter(
                    x,
                    y,
                    s=9,
                    marker=MARKERS[domain],
                    **_ink(domain),
                    linewidths=0.6,
                    alpha=0.6,
                    label=f"examples of {domain}",
                )
                axis.plot(*_ellipse(cloud), label="two deviations", linewidth=2, **look.line)
            first, second = (100 * share for share in found["shares"])
            traces = ", ".join(
                f"{cloud['trace']:.2g} ({domain})" for domain, cloud in found["domains"].items()
            )
            _frame(axis, found["domains"])
            axis.set(
                title=f"{name}: Tr C {traces}",
                xlabel=f"first direction, {first:.0f} % of the variance",
                ylabel=f"second, {second:.0f} %",
            )
        handles, names = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def _ink(domain: str) -> dict[str, str]:
    """Return the colours of a domain's markers: open circles, or crosses without a face."""
    colour = DOMAIN_COLOURS[domain].colour
    return (
        {"facecolors": "none", "edgecolors": colour}
        if MARKERS[domain] == "o"
        else {"color": colour}
    )


def _frame(axis: Any, clouds: Mapping[str, Any]) -> None:
    """Set the limits to 3.2 standard deviations: a few examples are far outside."""
    for k, setter in enumerate((axis.set_xlim, axis.set_ylim)):
        ends = []
        for cloud in clouds.values():
            deviation = math.sqrt(cloud["covariance"][k][k])
            ends += [cloud["mean"][k] + sign * 3.2 * deviation for sign in (-1, 1)]
        setter(min(ends), max(ends))


def _ellipse(cloud: Mapping[str, Any], points: int = 121) -> tuple[list[float], list[float]]:
    """Return the curve two standard deviations from the mean."""
    (a, b), (_, d) = cloud["covariance"]
    first = math.sqrt(a)
    low, across = b / first, math.sqrt(max(d - b * b / a, 0.0))
    mean: Sequence[float] = cloud["mean"]
    angles = [2 * math.pi * k / (points - 1) for k in range(points)]
    x = [mean[0] + 2 * first * math.cos(t) for t in angles]
    y = [mean[1] + 2 * (low * math.cos(t) + across * math.sin(t)) for t in angles]
    return x, y
