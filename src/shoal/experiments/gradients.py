"""Gradients of single examples of two domains, ERM against Fishr: the introduction's figure.

Individual gradients in the classifier's weights ω on Colored MNIST, in the two principal directions
of both domains' together. With ERM the domains' clouds have different widths, with Fishr the same.
"""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..randomness import stream
from .colored_mnist import Setup, Training
from .restarts import Folder, Progress, device_name
from .trained import SHOWN, head_inputs, trained

DOMAINS = ("90%", "80%")
SHOWN_EXAMPLES = 400


def run(setup: Setup, device: torch.device, folder: Folder, progress: Progress) -> dict[str, Any]:
    """Return the clouds of ERM and of Fishr."""
    found = {}
    for name in SHOWN:
        training = trained(name, setup, device, folder, progress)
        found[name] = clouds(training) | {"accuracies": training.accuracies()}
    return {"setup": asdict(setup), "device": device_name(device), "methods": found}


def clouds(training: Training) -> dict[str, Any]:
    """Return a sample of each domain's gradients, and mean and covariance of all, in the plane."""
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
    """Return the two directions ``[P, 2]`` of most variance, and their shares of all of it."""
    values, vectors = torch.linalg.eigh(torch.cov(gradients.mT))
    top = vectors[:, [-1, -2]]
    # Of either sign: so that the entry that is largest is positive.
    signs = top.gather(0, top.abs().argmax(0, keepdim=True)).sign()
    return top * signs, (values[[-1, -2]] / values.sum()).tolist()
