"""What goes through a method's classifier when it predicts: what statistics of a head are of."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .evaluation import Evaluation, Part, Place


@dataclass(frozen=True)
class HeadPass:
    """Features ``[n, p]`` that the classifier was given, its logits ``[n, C]``, labels ``[n]``."""

    features: Tensor
    logits: Tensor
    labels: Tensor


def classifier_of(evaluate: Evaluation) -> nn.Module:
    """Return w_ω of the method that is evaluated."""
    model: Any = evaluate.algorithm.model
    classifier: nn.Module = model.classifier
    return classifier


def head_passes(evaluate: Evaluation) -> dict[Place, HeadPass]:
    """Return what goes through the classifier of each part that is evaluated, on the device.

    Seen by a hook, so that it is what the method predicts with, whatever it adds to its inputs.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    found = {}
    hook = classifier_of(evaluate).register_forward_hook(
        lambda _, given, logits: seen.append((given[0].float(), logits.float()))
    )
    try:
        for place, part in evaluate.parts.items():
            seen.clear()
            for _ in evaluate.logits(part):
                pass
            found[place] = _head_pass(part, seen)
    finally:
        hook.remove()
    return found


def _head_pass(part: Part, seen: list[tuple[Tensor, Tensor]]) -> HeadPass:
    passed = sum(len(logits) for _, logits in seen)
    if passed != len(part):
        raise ValueError(
            "statistics of the head need a method that sends each image through model.classifier "
            f"once, got {passed} passes for {len(part)} images"
        )
    features, logits = (torch.cat(tensors) for tensors in zip(*seen, strict=True))
    return HeadPass(features.flatten(1), logits, part.labels.to(logits.device))
