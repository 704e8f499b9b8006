"""Stages: outputs inside a network, and how far training has moved them from its initial ones.

A network says which outputs these are by a method ``stages(inputs)``, which returns them and then
the features, and by ``stage_widths``, their channels. Another network has one stage, its features.
"""

import copy

import torch
from torch import Tensor, nn

from .backbones import Features


class FrozenCopy(nn.Module):
    """A copy of a network as it is now: in eval mode for ever, its weights as buffers.

    It has no weights to train, and checkpoints hold it. Predictions do not need it, and saved
    models leave it out.

    Args:
        features: Φ_φ; its dropout before the head is left out.
        width: the number of features.
    """

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.network = copy.deepcopy(_network(features))
        self.widths: tuple[int, ...] = getattr(self.network, "stage_widths", (width,))
        for part in self.network.modules():
            for name, weight in list(part.named_parameters(recurse=False)):
                delattr(part, name)
                part.register_buffer(name, weight.detach())
        self.train(False)

    def train(self, mode: bool = True) -> "FrozenCopy":
        """Stay in eval mode."""
        super().train(False)
        return self


def moved_stages(
    features: nn.Module, initial: FrozenCopy, inputs: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return Φ_φ of ``inputs``, and how far each stage is from that of the copy.

    That is (f − f⁰)² of each example and channel, ``[n, C]``, the mean over pixels, in float32 or
    float64.
    """
    if not isinstance(features, Features):
        return _compare(features, initial, inputs)
    if features.runner is None:
        found, gaps = _compare(features.network, initial, inputs)
    else:
        together = features.runner(_Compared(features.network, initial), inputs)
        sizes = [together.shape[1] - sum(initial.widths), *initial.widths]
        found, *gaps = together.split(sizes, 1)
        found = found.to(next(features.network.parameters()).dtype)
    return features.dropout(found), gaps


class _Compared(nn.Module):
    """A network beside its copy, with one output: all that ``moved_stages`` returns."""

    def __init__(self, network: nn.Module, initial: FrozenCopy) -> None:
        super().__init__()
        self.network, self.initial = network, initial

    def forward(self, inputs: Tensor) -> Tensor:
        found, gaps = _compare(self.network, self.initial, inputs)
        return torch.cat([found.to(gaps[0].dtype), *gaps], 1)


def _compare(
    network: nn.Module, initial: FrozenCopy, inputs: Tensor
) -> tuple[Tensor, list[Tensor]]:
    *now, features = _stages(network, inputs)
    with torch.no_grad():
        *before, _ = _stages(initial.network, inputs)
    gaps = []
    for one, other in zip(now, before, strict=True):
        precise = torch.promote_types(one.dtype, torch.float32)
        gap = (one.to(precise) - other.to(precise)).square()
        gaps.append(gap.mean(tuple(range(2, gap.ndim))) if gap.ndim > 2 else gap)
    return features, gaps


def _stages(network: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
    if hasattr(network, "stages"):
        found: tuple[Tensor, ...] = network.stages(inputs)  # type: ignore[operator]
        return found
    features: Tensor = network(inputs)
    return features, features


def _network(features: nn.Module) -> nn.Module:
    return features.network if isinstance(features, Features) else features
