"""Domain bottleneck: features whose nearest neighbours come from other domains (CAD, CondCAD)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_vectors
from ..gradients.precision import precise
from ..regularizers import Warmup
from ..scalars import Scalars
from .base import Penalised
from .forward import Forward
from .hparams import Hparams, choice, fixed, hparam

# The losses are multiplied by T over this temperature, as in DomainBed.
BASE_TEMPERATURE = 0.07


@dataclass(frozen=True)
class BottleneckHparams(Hparams):
    """λ and the similarity of two examples; there is no warm-up."""

    penalty_weight: float = hparam(
        0.1,
        choice(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0),
        key="lmbda",
        help="λ of the bottleneck",
    )
    temperature: float = hparam(
        0.1,
        choice(0.05, 0.1),
        "(0, ∞)",
        key="temperature",
        help="T: the similarity of two examples is z_i · z_j / T",
    )
    normalised: bool = fixed(False, key="is_normalized", help="features of length 1")
    flipped: bool = fixed(
        True, key="is_flipped", help="raise the share of other domains; false: lower one's own"
    )


def bottleneck(
    features: Tensor,
    labels: Tensor,
    domains: Tensor,
    temperature: float | Tensor,
    conditional: bool,
    flipped: bool = True,
) -> Tensor:
    """Return the mean of ∓ (T/0.07) log Σ_j P(j | i), zero if no example takes part.

    P(j | i) is the softmax of z_i · z_j / T over the other examples. Flipped, j is of another
    domain and the sign is −; else j is of the domain of i and the sign is +. Example i takes part
    if another one has its label, and if there is such a j.

    Args:
        features: ``[n, p]``.
        labels, domains: ``[n]``, on the device of the features.
        conditional: whether every j, also in the softmax, has the label of i.
    """
    check_vectors(features)
    # A product in half precision would lose the differences of similar examples.
    with torch.autocast(features.device.type, enabled=False):
        z = precise(features)
        similarity = (z @ z.mT) / temperature
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    alike = (labels[:, None] == labels) & others
    near = domains[:, None] == domains
    candidates = alike if conditional else others
    wanted = candidates & (~near if flipped else near)
    part = wanted.any(1) & alike.any(1)
    # Where nothing is left of a row it is −∞, but what is masked gets no gradient.
    log_share, log_all = (
        similarity.masked_fill(~chosen, -torch.inf).logsumexp(1) for chosen in (wanted, candidates)
    )
    losses = torch.where(part, log_share - log_all, 0.0)
    mean = losses.sum() / part.sum().clamp(min=1)
    return (-mean if flipped else mean) * temperature / BASE_TEMPERATURE


class DomainBottleneck(Penalised):
    """The risk and a bottleneck; a method says whether it looks within classes."""

    Hparams = BottleneckHparams
    hparams: BottleneckHparams
    capture = "compiled"
    conditional: ClassVar[bool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        self.warmup = Warmup(h.penalty_weight).to(self.device)
        self.scalars = Scalars(temperature=h.temperature).to(self.device)

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ times the bottleneck."""
        if forward.labels.is_floating_point():
            raise TypeError(
                f"{type(self).__name__} needs the class of each example, got soft targets"
            )
        h, z = self.hparams, precise(forward.features)
        z = F.normalize(z) if h.normalised else z
        ids = [torch.full((n,), e, device=z.device) for e, n in enumerate(forward.sizes)]
        temperature = self.scalars.values[0].to(z.dtype)
        found = bottleneck(
            z, forward.labels, torch.cat(ids), temperature, self.conditional, h.flipped
        )
        penalty: Tensor = self.warmup(found)
        return penalty
