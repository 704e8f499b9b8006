"""Network: a feature extractor Φ_φ and a head w_ω; initial weights from a stream; dropout."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..randomness import Draws
from ..replay import current_part


class Preprocessing(NamedTuple):
    """Mean and standard deviation of each colour that a network expects, for images in 0 … 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

# Layers whose weights are drawn, and those whose weights begin at one and zero.
DRAWN = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)
RESET = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._NormBase)

M = TypeVar("M", bound=nn.Module)


class Network(nn.Module):
    """A classifier: a feature extractor Φ_φ and a head w_ω.

    ``preprocessing`` is how to normalise images first; None leaves them unchanged.
    """

    def __init__(
        self,
        features: nn.Module,
        classifier: nn.Module,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.preprocessing = preprocessing

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(inputs))
        return logits


def head_sizes(classifier: nn.Module) -> tuple[int, int]:
    """Return p and C: inputs of the classifier's first linear layer, outputs of its last."""
    layers = [part for part in classifier.modules() if isinstance(part, nn.Linear)]
    if not layers:
        raise TypeError(
            f"the classifier must have a linear layer, {type(classifier).__name__} has none"
        )
    return layers[0].in_features, layers[-1].out_features


def draw_weights(
    build: Callable[[], M], generator: torch.Generator, like: nn.Module | None = None
) -> M:
    """Return the module of ``build`` with weights drawn from ``generator`` as torch draws them.

    The global random state is neither read nor moved. The module gets the device and dtype of
    ``like``; the draws are the same on every device. Under ``torch.device("meta")`` it has shapes
    and no memory.
    """
    with torch.device("meta"):
        module = build()
    if _shapes_only():
        return module
    module.to_empty(device="cpu")
    for part in module.modules():
        weights = {name for name, _ in part.named_parameters(recurse=False)}
        buffers = next(part.buffers(recurse=False), None)
        known = {"weight", "bias"} if isinstance(part, (*DRAWN, *RESET)) else set()
        if weights - known or (buffers is not None and not isinstance(part, RESET)):
            raise TypeError(
                f"the weights or buffers of {type(part).__name__} cannot be drawn from a stream"
            )
        if isinstance(part, DRAWN[:2]):
            bound = 1 / math.sqrt(part.weight[0].numel())
            for weight in (part.weight, part.bias):
                if weight is not None:
                    nn.init.uniform_(weight, -bound, bound, generator=generator)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, generator=generator)
        elif isinstance(part, RESET):
            part.reset_parameters()
    if like is not None:
        weight = next(like.parameters())
        module.to(weight.device, weight.dtype)
    return module


def build_seeded(build: Callable[[], M], generator: torch.Generator) -> M:
    """Return the module that ``build`` makes on the CPU (or meta), drawing weights in its own way.

    Networks of other packages draw from the global random state. It is seeded with one number
    from ``generator`` for ``build`` and restored afterwards.
    """
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    # Only the CPU's generator: torch.manual_seed would also seed those of the GPUs.
    device = torch.device("meta" if _shapes_only() else "cpu")
    with torch.random.fork_rng(devices=[]), device:
        torch.default_generator.manual_seed(int(seed))
        return build()


def _shapes_only() -> bool:
    return torch.get_default_device().type == "meta"


def dropout(inputs: Tensor, rate: float, draws: Draws) -> Tensor:
    """Return ``inputs`` with a drawn share ``rate`` set to zero and the rest scaled."""
    if rate == 0:
        return inputs
    part = current_part(inputs)
    if part is None:
        drawn = draws.uniform(inputs.numel()).view_as(inputs)
    else:
        shape = (part.total, *inputs.shape[1:])
        drawn = part.take(draws.uniform(math.prod(shape)).view(shape))
    return inputs * (drawn >= rate) / (1 - rate)


class Dropout(nn.Module):
    """Set a share ``rate`` of the inputs to zero in training; ``generator`` seeds its draws."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be 0 or more and below 1, got {rate}")
        self.rate = rate
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self.draws = Draws("dropout", int(seed), device=torch.device("cpu"))

    def forward(self, inputs: Tensor) -> Tensor:
        return dropout(inputs, self.rate, self.draws) if self.training else inputs

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
