"""Shift meter: how a domain differs from the others, as diversity shift and correlation shift.

Diversity shift: one side has inputs that the other side never has. Correlation shift: where both
sides have inputs, the same input belongs to another class (Ye et al., OoD-Bench, CVPR 2022). Each
is between 0 and 1. P is the other domains together, Q the domain:

1. P and Q are sampled so that every class has as many examples on both sides.
2. A small network learns to tell P from Q by input and label. It has to put whatever differs into
   features z ∈ R⁸, the entries of which are multiplied by a linear map of the label.
3. On held-out examples, Gaussian kernels estimate the densities p and q of z, and p_y and q_y of
   each class y. Both shifts are integrals of them, by importance sampling.

The paper trains a backbone on images; here the inputs are vectors, and what made them stays fixed.
So two hidden layers stand for the backbone, and small data get more than ten epochs. The kernels of
all densities have one covariance, so that p = Σ_y share(y) p_y holds exactly, and neither shift is
below 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ..datasets.base import HOLDOUT, DomainDataset
from ..internals import foreach
from ..randomness import stream
from ..weight_average import fold

# Below the first, a density counts as zero (diversity); above the second, as support
# (correlation). As published: both shifts are then about 0.01 between random halves of one pool.
NO_DENSITY, SUPPORT = 1e-12, 5e-4
SAMPLES = 10_000
# The network: features z, the hidden layers before them, and their training.
FEATURES, HIDDEN = 8, (64, 64)
RATE, MOMENTUM, DECAY, BATCH, EPOCHS = 0.05, 0.9, 1e-4, 32, 10
# At least, also if that is more than ten epochs. With 600 the correlation of random halves of 500
# examples each was up to 0.15, because the features collapse.
UPDATES = 300
# Standard deviations at which inputs are cut off: one wild value would make training diverge.
WIDEST = 5.0
# Added to the variance of the kernels, for features that take a few values only.
RIDGE = 1e-6
# Of each side: the most examples, of one domain and of all together; the fewest, of a class and of
# all classes together; the most domains.
MOST, MOST_TOGETHER = 2000, 8000
LEAST_OF_CLASS, LEAST = 5, 250
DOMAINS = 12
# Measurements whose mean is returned: one alone depends on the network's first weights.
REPEATS = 3


class Shift(NamedTuple):
    """Diversity and correlation shift between a domain and others, each from 0 to 1."""

    diversity: float
    correlation: float


class Examples(NamedTuple):
    """Vectors ``[n, d]`` and their labels ``[n]``."""

    vectors: Tensor
    labels: Tensor


@dataclass(frozen=True)
class MeasuredShifts:
    """The shift of every domain against the others, by name, and what was left out."""

    domains: dict[str, Shift]
    notes: tuple[str, ...]

    @property
    def mean(self) -> Shift:
        """The mean over the domains."""
        return _mean(list(self.domains.values()))


def measure_shifts(dataset: DomainDataset) -> MeasuredShifts | None:
    """Return the shift of each domain of vectors against the others; None if there are none.

    A side has at most 2,000 examples, and all domains together 8,000, which takes one to two
    seconds a domain on one core. The twelve largest domains are measured. A domain needs 250
    examples after both sides have the same number of every class, and a class 5.
    """
    if dataset.kind != "vectors":
        raise ValueError(f"shifts are measured on vectors, and {dataset.name} has {dataset.kind}")
    largest = sorted(dataset.domains, key=len, reverse=True)[:DOMAINS]
    most = min(MOST, MOST_TOGETHER // len(largest))
    found, few, missing = {}, [], set[int]()
    for domain in dataset.domains:
        if domain not in largest or len(dataset.domains) < 2:
            continue
        rest = [one for one in dataset.domains if one is not domain]
        others = Examples(
            torch.cat([one.tensor for one in rest]), torch.cat([one.labels for one in rest])
        )
        own = Examples(domain.tensor, domain.labels)
        counts = class_counts(others, own, most)
        if counts.sum() < LEAST:
            few.append(domain.name)
            continue
        present = own.labels.bincount(minlength=len(counts)) > 0
        missing |= set((present & (counts == 0)).nonzero()[:, 0].tolist())
        found[domain.name] = measure_shift(others, own, domain.name, most)
    if not found:
        return None
    notes = []
    if few:
        notes.append(
            f"domains with fewer than {LEAST} examples of classes that the others have too are "
            f"left out: {_list(few)}"
        )
    if len(largest) < len(dataset.domains):
        notes.append(f"only the {DOMAINS} largest of {len(dataset.domains)} domains are measured")
    if missing:
        notes.append(
            f"classes with fewer than {LEAST_OF_CLASS} examples in a domain or in the others are "
            f"left out there: {_list([dataset.classes[k] for k in sorted(missing)])}"
        )
    return MeasuredShifts(found, tuple(notes))


def measure_shift(p: Examples, q: Examples, name: str = "", most: int = MOST) -> Shift:
    """Return the shift between the examples of P and those of Q, the mean of three measurements.

    Args:
        p, q: float32 vectors; NaN is a missing value.
        name: of the random stream; the same data and name give the same numbers.
        most: examples of each side.
    """
    counts = class_counts(p, q, most)
    if counts.sum() < LEAST:
        raise ValueError(
            f"P and Q share {int(counts.sum())} examples of classes with {LEAST_OF_CLASS} or more "
            f"on both sides; a shift needs {LEAST}"
        )
    found = [_measure_once(p, q, counts, stream("shift-meter", name, k)) for k in range(REPEATS)]
    return _mean(found)


def _measure_once(p: Examples, q: Examples, counts: Tensor, draws: torch.Generator) -> Shift:
    (p_seen, p_new), (q_seen, q_new) = (sample(one, counts, draws) for one in (p, q))
    scale = standardiser(torch.cat([p_seen.vectors, q_seen.vectors]))
    network = train_network(
        Examples(scale(p_seen.vectors), p_seen.labels),
        Examples(scale(q_seen.vectors), q_seen.labels),
        len(counts),
        draws,
    )
    return shift_of_features(
        Examples(network(scale(p_new.vectors)).double(), p_new.labels),
        Examples(network(scale(q_new.vectors)).double(), q_new.labels),
        draws,
    )


def class_counts(p: Examples, q: Examples, most: int = MOST) -> Tensor:
    """Return how many examples of each class to take from both sides, ``[C]``.

    Together they are ``most``, or a few more, so that no rare class is lost.
    """
    classes = 1 + int(torch.cat([p.labels, q.labels]).max())
    counts = torch.minimum(
        p.labels.bincount(minlength=classes), q.labels.bincount(minlength=classes)
    )
    counts = counts * (counts >= LEAST_OF_CLASS)
    if counts.sum() > most:
        fewer = counts * most // counts.sum()
        counts = torch.minimum(counts, fewer.clamp(min=LEAST_OF_CLASS))
    return counts


def sample(examples: Examples, counts: Tensor, draws: torch.Generator) -> tuple[Examples, Examples]:
    """Return random examples with these counts of the classes, to train on and held out."""
    seen, new = [], []
    for label, count in enumerate(counts.tolist()):
        places = (examples.labels == label).nonzero()[:, 0]
        places = places[torch.randperm(len(places), generator=draws)[:count]]
        held_out = round(HOLDOUT * count)
        new.append(places[:held_out])
        seen.append(places[held_out:])
    kept, out = (
        Examples(examples.vectors[places], examples.labels[places])
        for places in (torch.cat(seen), torch.cat(new))
    )
    return kept, out


def standardiser(by: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function to vectors in standard deviations of ``by``, of length 1 on average.

    A missing value becomes the mean, and a column that is the same everywhere is dropped. The
    learning rate is for inputs of length 1, however many columns there are.
    """
    known = by.isfinite()
    count = known.sum(0).clamp(min=1)
    mean = by.where(known, 0.0).sum(0, dtype=torch.float64) / count
    deviation = ((by - mean).where(known, 0.0).square().sum(0) / count).sqrt()
    varying = deviation > 1e-6 * mean.abs()
    mean, deviation = mean[varying], deviation[varying] * math.sqrt(max(1, int(varying.sum())))
    limit = WIDEST / math.sqrt(max(1, len(mean)))

    def scale(vectors: Tensor) -> Tensor:
        scaled = ((vectors[:, varying] - mean) / deviation).float()
        return scaled.nan_to_num(0.0).clamp(-limit, limit)

    return scale


class DomainFeatures(nn.Module):
    """A network that tells P from Q: features z of a vector, times a map of its label."""

    def __init__(self, inputs: int, classes: int, draws: torch.Generator) -> None:
        super().__init__()
        widths = (inputs, *HIDDEN, FEATURES)
        layers = [_linear(*pair, draws) for pair in pairwise(widths)]
        between = [part for layer in layers[1:] for part in (nn.ReLU(), layer)]
        self.features = nn.Sequential(layers[0], *between)
        self.of_label = _linear(classes, FEATURES, draws)
        self.side = _linear(FEATURES, 2, draws)
        self.classes = classes

    def forward(self, vectors: Tensor) -> Tensor:
        """Return z, ``[n, 8]``."""
        z: Tensor = self.features(vectors)
        return z

    def sides(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the logits of P and Q, ``[n, 2]``."""
        of_label = self.of_label(one_hot(labels, self.classes).float())
        logits: Tensor = self.side(self(vectors) * of_label)
        return logits


def _linear(inputs: int, outputs: int, draws: torch.Generator) -> nn.Linear:
    """Return a layer with Xavier's weights and no biases yet; torch's own stream is not used."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    nn.init.xavier_uniform_(layer.weight, generator=draws)
    nn.init.zeros_(layer.bias)
    return layer


def train_network(
    p: Examples, q: Examples, classes: int, draws: torch.Generator
) -> "DomainFeatures":
    """Return a network whose features tell P from Q, given the label."""
    network = DomainFeatures(p.vectors.shape[1], classes, draws)
    weights: list[Tensor] = list(network.parameters())
    mean = [torch.zeros_like(weight, requires_grad=False) for weight in weights]
    optimiser = torch.optim.SGD(weights, RATE, MOMENTUM, weight_decay=DECAY, foreach=True)
    epoch = len(p.labels) // BATCH
    updates = epoch * max(EPOCHS, math.ceil(UPDATES / epoch))
    side = torch.arange(2).repeat_interleave(BATCH)
    vectors, labels = torch.cat([p.vectors, q.vectors]), torch.cat([p.labels, q.labels])
    order = torch.empty(0, 2, BATCH, dtype=torch.int64)
    for step in range(updates):
        if step % epoch == 0:
            order = torch.stack(
                [_batches(len(p.labels), draws), len(p.labels) + _batches(len(q.labels), draws)], 1
            )
        chosen = order[step % epoch].flatten()
        for group in optimiser.param_groups:
            # From the rate to its half by a cosine, in the first half of the updates.
            group["lr"] = RATE * (3 + math.cos(math.pi * min(1, 2 * step / updates))) / 4
        optimiser.zero_grad()
        cross_entropy(network.sides(vectors[chosen], labels[chosen]), side).backward()
        optimiser.step()
        if step >= updates // 2:
            with torch.no_grad():
                fold(mean, step - updates // 2, weights, 1)
    network.requires_grad_(False)
    foreach("copy_", weights, mean)
    return network


def _batches(n: int, draws: torch.Generator) -> Tensor:
    """Return an epoch of n examples in random order, ``[n // 32, 32]``."""
    return torch.randperm(n, generator=draws)[: n // BATCH * BATCH].view(-1, BATCH)


def shift_of_features(p: Examples, q: Examples, draws: torch.Generator) -> Shift:
    """Return the shift between two samples of features, as many of each class in both.

    Args:
        p, q: float64 features ``[m, k]`` with their labels.
    """
    both = torch.cat([p.vectors, q.vectors])
    # A feature that is the same everywhere says nothing, and has no scale.
    varying = both.std(0) > 1e-9 * (1 + both.mean(0).abs())
    both = (both - both.mean(0))[:, varying] / both.std(0)[varying]
    p, q = (Examples(z, one.labels) for z, one in zip(both.chunk(2), (p, q), strict=True))
    root = torch.linalg.cholesky(kernel_covariance(p, q))
    centres = both[torch.arange(SAMPLES) * len(both) // SAMPLES]
    noise = torch.randn(SAMPLES, both.shape[1], generator=draws, dtype=torch.float64)
    samples = centres + noise @ root.T
    present, labels = p.labels.unique(return_inverse=True)
    shares = labels.bincount() / len(labels)
    return integrate(
        class_densities(samples, p, present, root),
        class_densities(samples, q, present, root),
        shares.double(),
    )


def kernel_covariance(p: Examples, q: Examples) -> Tensor:
    """Return the covariance of the kernels: that within a class of a side, by Scott's rule.

    The covariance of everything would be that between the sides where they are far apart.
    """
    apart = [z.vectors[z.labels == y] for z in (p, q) for y in z.labels.unique()]
    centred = torch.cat([one - one.mean(0) for one in apart])
    n, k = p.vectors.shape
    within: Tensor = centred.T @ centred / max(1, len(centred) - len(apart))
    within = within + RIDGE * torch.eye(k, dtype=within.dtype)
    return within * math.pow(n, -2 / (k + 4))


def class_densities(samples: Tensor, examples: Examples, present: Tensor, root: Tensor) -> Tensor:
    """Return the density of every class at the samples, ``[n, C]``.

    Args:
        present: the classes, in order.
        root: L of the kernels' covariance L Lᵀ.
    """
    at, centres = (
        torch.linalg.solve_triangular(root, x.T, upper=False).T for x in (samples, examples.vectors)
    )
    member = (examples.labels[:, None] == present).double()
    scale = (2 * math.pi) ** (root.shape[0] / 2) * root.diagonal().prod()
    sums = [(-torch.cdist(part, centres).square() / 2).exp() @ member for part in at.split(1000)]
    density: Tensor = torch.cat(sums) / (member.sum(0) * scale)
    return density


def integrate(p: Tensor, q: Tensor, shares: Tensor) -> Shift:
    """Return both shifts from the densities of the classes at samples of (p + q) / 2.

    With p = Σ_y share(y) p_y, q alike and s = (p + q) / 2,

        diversity = 1/(2n) Σ_j (√p − √q)² / s                  over the x_j with p or q < 1e-12
        correlation = Σ_y share(y) 1/(2n) Σ_j [p_y √(q/p) + q_y √(p/q) − 2 √(p_y q_y)] / s
                                                               over the x_j with p and q > 5e-4

    Args:
        p, q: p_y and q_y at the samples x_j, ``[n, C]``.
        shares: of the classes, ``[C]``, the same on both sides.
    """
    n = len(p)
    p_all, q_all = p @ shares, q @ shares
    s = (p_all + q_all) / 2
    alone = (p_all < NO_DENSITY) | (q_all < NO_DENSITY)
    diversity = ((p_all.sqrt() - q_all.sqrt()).square() / s)[alone].sum() / (2 * n)
    shared = (p_all > SUPPORT) & (q_all > SUPPORT)
    p, q, s = p[shared], q[shared], s[shared]
    odds = (q_all[shared] / p_all[shared]).sqrt()[:, None]
    gaps = p * odds + q / odds - 2 * (p * q).sqrt()
    correlation = (gaps @ shares / s).sum() / (2 * n)
    return Shift(float(diversity), float(correlation))


def _mean(shifts: Sequence[Shift]) -> Shift:
    return Shift(*torch.tensor(shifts, dtype=torch.float64).mean(0).tolist())


def _list(names: Sequence[str]) -> str:
    """Return names as text, at most ten."""
    more = [f"and {len(names) - 10} more"] if len(names) > 10 else []
    return ", ".join([*names[:10], *more])
