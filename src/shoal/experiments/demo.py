"""The demo: ERM, V-REx and Fishr on Colored MNIST, at a size that a laptop trains in minutes."""

import time
from dataclasses import replace
from typing import Any

import torch

from ..penalties import spread
from ..randomness import stream
from ..statistics import head_variance
from .colored_mnist import METHODS, Setup, Training
from .restarts import RestartProgress, device_name

SETUP = Setup(examples=8_000, hidden=256, jump_step=100, updates=300)
SHOWN = {"ERM": "erm", "V-REx": "vrex", "Fishr": "fishr-omega"}
EVERY = 10
DIGITS = 12


def shortened(updates: int) -> Setup:
    """Return the setup with another number of updates; the penalty rises after a third of them."""
    return replace(SETUP, updates=updates, jump_step=updates // 3)


def run(progress: RestartProgress, setup: Setup = SETUP) -> dict[str, Any]:
    """Train the three methods; return the data of the demo's page and table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    begin = time.perf_counter()
    methods, trainings = [], {}
    for name, key in SHOWN.items():
        trainings[name] = Training(METHODS[key], setup, device)
        methods.append(_train(name, trainings[name], progress))
    return {
        "title": "Colored MNIST: what happens when the colours turn",
        "seconds": time.perf_counter() - begin,
        "machine": device_name(device),
        "examples": setup.examples,
        "steps": setup.updates,
        "jump_step": setup.jump_step,
        "colour_only": 0.10,
        "shape_only": 0.75,
        "methods": methods,
        "digits": _digits(trainings),
    }


def _train(name: str, training: Training, progress: RestartProgress) -> dict[str, Any]:
    begin = time.perf_counter()
    curve: dict[str, list[float]] = {
        key: [] for key in ("step", "train", "test", "variance_gap", "risk_gap")
    }
    while training.done < training.setup.updates:
        if training.done % EVERY == 0:
            _look(training, curve)
        training.step()
        progress(name, 0, training.done, training.setup.updates)
    _look(training, curve)
    seconds = time.perf_counter() - begin
    return {"name": name, **training.accuracies(), "seconds": seconds, "curve": curve}


@torch.no_grad()
def _look(training: Training, curve: dict[str, list[float]]) -> None:
    """Append this step's accuracies and gaps between the two training domains."""
    accuracies = training.accuracies()
    features = training.model.features(training.inputs)
    logits = training.model.classifier(features)
    rows = head_variance(features, logits, training.labels, training.domain_ids())
    risks = training.losses(logits).reshape(2, -1).mean(1)
    curve["step"].append(training.done)
    curve["train"].append(accuracies["train"])
    curve["test"].append(accuracies["test"])
    # ‖v_A − v_B‖² and |R_A − R_B|²: four times the spread of two domains.
    curve["variance_gap"].append(4 * spread(rows).item())
    curve["risk_gap"].append(4 * spread(risks).item())


@torch.no_grad()
def _digits(trainings: dict[str, Training]) -> list[dict[str, Any]]:
    """Return some digits of the reversed domain with each model's probability of "below 5"."""
    domain = next(iter(trainings.values())).domains["10%"]
    # A typical sample: correct labels, and every digit about equally often.
    honest = (domain.labels[:, 0] > 0.5) == (domain.digits < 5)
    order = torch.randperm(len(honest), generator=stream("demo", "digits"))
    chosen: list[int] = []
    for index in order.tolist():
        seen = [int(domain.digits[i]) for i in chosen]
        if honest[index] and seen.count(int(domain.digits[index])) <= len(chosen) // 10:
            chosen.append(index)
        if len(chosen) == DIGITS:
            break
    found = []
    for index in chosen:
        pixels = (domain.inputs[index].reshape(2, 14, 14).permute(1, 2, 0) * 255).round().int()
        answers = {
            name: torch.sigmoid(training.model(domain.inputs[index : index + 1])).item()
            for name, training in trainings.items()
        }
        found.append(
            {
                "pixels": pixels.tolist(),
                "digit": int(domain.digits[index]),
                "label": int(domain.labels[index]),
                "answers": answers,
            }
        )
    return found
