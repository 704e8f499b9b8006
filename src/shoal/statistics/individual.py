"""Statistics of individual gradients: their norms, Fisher diagonals and the gradient noise scale.

None of them has a gradient of its own. So every chunk of examples runs once, and each layer's
gradients are reduced and dropped when the backward reaches the layer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..distributed import sum_over_ranks, world_size
from ..gradients.domains import SortedDomains
from ..gradients.examples import Inputs, Loss, individual_losses
from ..gradients.job import Job
from ..gradients.materialised import MaterialisedGradients, Moments, sum_of_squares
from ..gradients.memory import StatisticStep, chunk_without_gradient
from ..gradients.parameters import Parameters, outside_compile
from ..gradients.recording import WeightGradients
from ..gradients.sources import Form
from ..gradients.streaming import Stream, routes_of, streams
from ..gradients.variance import merge_ranks

# Bytes that a chunk can take if the caller names no number; on a GPU also at most half of what is
# free. A GPU wants large chunks; a CPU does not mind small ones.
MEMORY = {"cpu": 2 * 2**30, "cuda": 8 * 2**30}
# Weights of an entry up to which its gradients wait for others, to be squared together.
SMALL = 2**13


@overload
def gradient_norms(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    parameters: Parameters = "all",
    *,
    by_layer: Literal[False] = False,
    loss: Loss | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> Tensor: ...


@overload
def gradient_norms(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    parameters: Parameters = "all",
    *,
    by_layer: Literal[True],
    loss: Loss | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> dict[str, Tensor]: ...


@outside_compile
def gradient_norms(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    parameters: Parameters = "all",
    *,
    by_layer: bool = False,
    loss: Loss | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> Tensor | dict[str, Tensor]:
    """Return ‖g_i‖, the norm of every example's gradient, ``[n]``, without a graph.

    A linear layer needs no gradient: on vectors ‖g_i‖ = ‖r_i‖ ‖z_i‖. Sequences and convolutions use
    products of positions where that is cheaper, and otherwise one layer's ``[chunk, P_l]``. In a
    process group each rank gets the norms of its own examples.

    Args:
        model, inputs, labels, parameters, loss: as in ``gradient_variance``.
        by_layer: return the norms of every layer instead, by its name in ``named_modules()``.
        chunk_size: examples that run together.
        memory: bytes that the call can take, about; it chooses ``chunk_size``. By default 2 GiB, on
            a GPU 8 GiB or half of what is free.
    """
    job = _prepare(model, inputs, labels, parameters, loss=loss, chunk_size=chunk_size)
    squares = _squared_norms(_chunked(job, _squared_norms, memory))
    if by_layer:
        return {layer: found.sqrt() for layer, found in squares.by_layer().items()}
    return squares.total().sqrt()


@outside_compile
def fisher_diagonal(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor | None = None,
    parameters: Parameters = "all",
    *,
    samples: int | None = None,
    generator: torch.Generator | None = None,
    loss: Loss | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> dict[str, Tensor]:
    """Return the diagonal of the Fisher matrix, 1/n Σ_i g_i², by weight and in its shape.

    This is the mean of squared gradients, which elastic weight consolidation needs; the square of
    the batch's gradient is another quantity, smaller by up to n. Without a graph. In a process
    group every rank must call, and gets the mean over all examples.

    Args:
        labels: as in ``gradient_variance``, for the empirical Fisher matrix. None for labels from
            the model's own distribution p(y|x), which gives the Fisher matrix itself.
        samples: labels to draw for each example, if they come from the model. None for their
            exact expectation, which takes one backward per class.
        generator: draws the labels; by default torch's own.
        model, inputs, parameters, loss: as in ``gradient_variance``.
        chunk_size, memory: as in ``gradient_norms``.
    """
    if labels is not None and (samples is not None or generator is not None):
        raise ValueError("samples and generator are for labels from the model: leave out labels")
    if labels is None and loss is not None:
        raise ValueError(
            "labels from the model are drawn from its softmax (or its sigmoid, with one logit), "
            "which only the default loss belongs to: give labels, or leave out loss"
        )
    own = labels is None
    if labels is None:
        first = _first(inputs)
        labels = torch.zeros(len(first), dtype=torch.long, device=first.device)
    job = _prepare(model, inputs, labels, parameters, loss=loss, chunk_size=chunk_size)
    step: Callable[[Job], Tensor]
    if not own:
        step = _squares
    elif samples is None:
        step = _expected_squares
    else:
        check_count("samples", samples, 1)
        # For all examples at once, so that the labels do not depend on chunks.
        random = torch.rand(
            samples,
            len(job.examples),
            generator=generator,
            dtype=torch.float64,
            device=None if generator is None else generator.device,
        )
        step = partial(_sampled_squares, random=random.to(job.device))
    total = step(_chunked(job, _squares, memory))  # one backward takes as much as several
    count = torch.full((1,), float(len(job.examples)), dtype=torch.float64, device=job.device)
    total, count = sum_over_ranks(total), sum_over_ranks(count)
    if world_size() == 1 and not len(job.examples):
        raise ValueError("a Fisher matrix needs examples, got none")
    total /= (count * (samples or 1)).to(total.dtype)
    pieces = total.split([weight.numel() for weight in job.weights.values()])
    return {
        name: piece.view(weight.shape)
        for (name, weight), piece in zip(job.weights.items(), pieces, strict=True)
    }


class NoiseScale(NamedTuple):
    """The gradient noise scale of a batch and the two estimates that it is the ratio of.

    Args:
        scale: tr(Σ) / |G|², the batch size up to which larger batches pay off; ∞ if the estimate
            of |G|² is not positive, because the noise hides the gradient.
        trace: tr(Σ), the sum of the variances of all weights' gradients, unbiased.
        squared_norm: |G|², of the gradient of the whole distribution, unbiased.
    """

    scale: Tensor
    trace: Tensor
    squared_norm: Tensor


@outside_compile
def gradient_noise_scale(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    parameters: Parameters = "all",
    *,
    loss: Loss | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> NoiseScale:
    """Return the gradient noise scale tr(Σ) / |G|² (McCandlish et al., 2018), without a graph.

    From one batch of n examples: tr(Σ) = Σ_i ‖g_i − ḡ‖² / (n − 1) and |G|² = ‖ḡ‖² − tr(Σ) / n, both
    unbiased. Their ratio is not: over several batches, average the two and divide then. In a
    process group every rank must call, and gets the value of the whole batch.

    Args:
        model, inputs, labels, parameters, loss: as in ``gradient_variance``.
        chunk_size, memory: as in ``gradient_norms``.
    """
    job = _prepare(model, inputs, labels, parameters, loss=loss, chunk_size=chunk_size)
    moments = _moments(_chunked(job, _moments, memory))
    counts, mean, m2 = job.groups.counts, moments.mean, moments.m2
    if world_size() > 1:
        counts, mean, m2 = merge_ranks(counts, mean, m2, True)
    n = counts[0].to(torch.float64)
    if world_size() == 1 and len(job.examples) < 2:
        raise ValueError(
            f"a noise scale needs two examples or more, to see the noise, got {len(job.examples)}"
        )
    trace = m2.sum(dtype=torch.float64) / (n - 1)
    squared_norm = mean.square().sum(dtype=torch.float64) - trace / n
    scale = torch.where(squared_norm > 0, trace / squared_norm, torch.inf)
    return NoiseScale(*(t.to(job.dtype) for t in (scale, trace, squared_norm)))


def _first(inputs: Inputs) -> Tensor:
    """Return the first tensor of the inputs; an empty one if there is none, which is checked."""
    tensors = inputs.values() if isinstance(inputs, Mapping) else inputs
    first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
    return first if isinstance(first, Tensor) and first.ndim else torch.empty(0)


def _prepare(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    parameters: Parameters,
    *,
    loss: Loss | None,
    chunk_size: int | None,
) -> Job:
    """Return a job with all examples in one domain."""
    n = len(labels) if isinstance(labels, Tensor) and labels.ndim else 0
    return Job.prepare(
        model,
        inputs,
        labels,
        torch.zeros(n, dtype=torch.long),
        parameters=parameters,
        form=Form(),
        loss=loss,
        num_domains=1,
        chunk_size=chunk_size,
    )


def _chunked(job: Job, step: StatisticStep, memory: int | None) -> Job:
    """Return the job with verified routes, and chunks that ``memory`` bytes allow."""
    if job.chunk_size is not None and memory is not None:
        raise ValueError(
            f"give chunk_size or memory, which chooses it; got {job.chunk_size} and {memory}"
        )
    if not len(job.examples):
        return job
    job = replace(job, routes=routes_of(job))
    if job.chunk_size is not None:
        return job
    memory = _default_memory(job.device) if memory is None else memory
    return replace(job, chunk_size=chunk_without_gradient(step, job, memory))


def _default_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return MEMORY["cpu"]
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(MEMORY["cuda"], free // 2)


def _squared_norms(job: Job) -> "SquaredNorms":
    """Return ‖g_i‖² of every layer."""
    found = SquaredNorms(job)
    for _, stream in streams(job):
        found.add(stream)
    return found


class SquaredNorms:
    """‖g_i‖² of every layer, of the examples so far; small weights together, as in ``Squares``."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._layers = {name: name.rpartition(".")[0] for name in job.weights}
        # For each chunk, layers and a row ``[n]`` for each.
        self._chunks: list[tuple[list[str], Tensor]] = []
        self._rows: list[tuple[str, Tensor]] = []
        self._waiting: dict[int, list[tuple[str, Tensor]]] = {}

    def add(self, stream: Stream) -> None:
        """Add the examples of a stream."""
        stream.backward(self.job.loss, stream.examples.labels, self._take)
        rows, waiting = self._rows, self._waiting.values()
        self._rows, self._waiting = [], {}
        layers = [layer for one in (rows, *waiting) for layer, _ in one]
        found = [torch.stack([row for _, row in rows])] if rows else []
        for one in waiting:
            norms = torch.linalg.vector_norm(torch.stack([g for _, g in one]), dim=2)
            found.append(norms.square_())
        if found:
            self._chunks.append((layers, torch.cat(found)))
        else:
            self._chunks.append(([], self.job.zeros(0, len(stream.examples))))

    def _take(self, entry: WeightGradients) -> None:
        source, layers = entry.source, [self._layers[name] for name in entry.names]
        if len(layers) == 1 or len(set(layers)) == 1:
            if isinstance(source, MaterialisedGradients) and source.size <= SMALL:
                g = source.values(entry.tensors)
                self._waiting.setdefault(source.size, []).append((layers[0], g))
            else:
                self._rows.append((layers[0], source.squared_norms(entry.tensors)))
        elif isinstance(source, MaterialisedGradients):
            sizes = [self.job.weights[name].numel() for name in entry.names]
            norms = source.squared_norms_of_pieces(entry.tensors, sizes)
            self._rows += zip(layers, norms.unbind(1), strict=True)

    def total(self) -> Tensor:
        """Return ‖g_i‖² of all weights, ``[n]``."""
        parts = [rows.sum(0) for _, rows in self._chunks]
        return torch.cat(parts).to(self.job.dtype) if parts else self.job.zeros(0)

    def by_layer(self) -> dict[str, Tensor]:
        """Return ‖g_i‖² of each layer, ``[n]``, in the order of the weights."""
        parts: dict[str, list[Tensor]] = {layer: [] for layer in self._layers.values()}
        for layers, rows in self._chunks:
            sums = dict.fromkeys(parts, rows.new_zeros(rows.shape[1]))
            for layer, row in zip(layers, rows, strict=True):
                sums[layer] = sums[layer] + row
            for layer, found in parts.items():
                found.append(sums[layer])
        zero = self.job.zeros(0)
        return {
            layer: torch.cat([zero, *found]).to(self.job.dtype) for layer, found in parts.items()
        }


def _squares(job: Job) -> Tensor:
    """Return Σ_i g_i², ``[P]``."""
    total = Squares(job)
    for _, stream in streams(job):
        total.add(stream, job.loss, stream.examples.labels)
    return total.row


def _expected_squares(job: Job) -> Tensor:
    """Return Σ_i Σ_y p(y|x_i) g_iy², ``[P]``, over all classes y."""
    total = Squares(job)
    for _, stream in streams(job):
        logits = stream.logits.detach()
        classes = 2 if logits.ndim == 1 else max(logits.shape[1], 2)
        for y in range(classes):
            labels = torch.full_like(stream.examples.labels, y)
            total.add(stream, _weighted_by_root, labels, last=y == classes - 1)
    return total.row


def _weighted_by_root(logits: Tensor, labels: Tensor) -> Tensor:
    """Return √p(y|x) ℓ, the root held fixed: its squared gradient has the weight p(y|x)."""
    losses = individual_losses(logits, labels, None)
    return losses * (-losses.detach() / 2).exp()


def _sampled_squares(job: Job, random: Tensor) -> Tensor:
    """Return Σ_i Σ_y g_iy², ``[P]``, over labels y from uniform numbers ``[samples, n]``."""
    total = Squares(job)
    for part, stream in streams(job):
        logits = stream.logits.detach()
        for k, numbers in enumerate(random):
            labels = labels_at(logits, numbers[part])
            total.add(stream, None, labels, last=k == len(random) - 1)
    return total.row


def labels_at(logits: Tensor, numbers: Tensor) -> Tensor:
    """Return the label at each place in (0, 1) of the model's cumulative distribution, ``[n]``."""
    if logits.ndim == 1 or logits.shape[1] == 1:
        return (numbers < torch.sigmoid(logits.reshape(-1).double())).long()
    ends = torch.softmax(logits.double(), 1).cumsum(1)
    places = torch.searchsorted(ends, (numbers.to(ends) * ends[:, -1])[:, None], right=True)
    return places[:, 0].clamp(max=logits.shape[1] - 1)


class Squares:
    """Σ g², ``[P]``, of all gradients so far.

    Biases, norms and other small weights are squared together after a backward: on a GPU the host
    takes longer to start an operation than such a weight's arithmetic.
    """

    def __init__(self, job: Job) -> None:
        self.row, self._columns = job.zeros(job.size), job.columns()
        self._waiting: list[tuple[tuple[str, ...], Tensor]] = []
        self._places: dict[tuple[str, ...], Tensor] = {}

    def add(self, stream: Stream, loss: Loss | None, labels: Tensor, last: bool = True) -> None:
        """Add the squares of all gradients of one backward."""
        stream.backward(loss, labels, self._take, last)
        if self._waiting:
            names = tuple(name for own, _ in self._waiting for name in own)
            gradients = torch.cat([g for _, g in self._waiting], 1)
            self._waiting = []
            self.row.index_add_(0, self._places_of(names), sum_of_squares(gradients))

    def _take(self, entry: WeightGradients) -> None:
        source = entry.source
        if isinstance(source, MaterialisedGradients) and source.size <= SMALL:
            self._waiting.append((entry.names, source.values(entry.tensors)))
            return
        for columns, own in split(entry, source.sum_of_squares(entry.tensors), self._columns):
            self.row[columns].add_(own)

    def _places_of(self, names: tuple[str, ...]) -> Tensor:
        """Return the columns of these weights, one after the other."""
        if names not in self._places:
            columns = [self._columns[name] for name in names]
            places = torch.cat([torch.arange(one.start, one.stop) for one in columns])
            self._places[names] = places.to(self.row.device)
        return self._places[names]


def _moments(job: Job) -> Moments:
    """Return the mean and M2 of all gradients, ``[1, P]``."""
    total, columns = Moments.zero(1, job.size, [job.zeros(0)]), job.columns()
    for part, stream in streams(job):
        n = part.stop - part.start
        mean, m2 = torch.zeros_like(total.mean), torch.zeros_like(total.m2)
        groups = SortedDomains((n,), job.device)

        def take(entry: WeightGradients) -> None:
            found = entry.source.moments(entry.tensors, groups, True)  # noqa: B023
            for into, rows in zip((mean, m2), found, strict=True):  # noqa: B023
                for place, own in split(entry, rows[0], columns):
                    into[0, place] = own

        stream.backward(job.loss, stream.examples.labels, take)
        total.add(0, float(n), mean[0], m2[0], True)
    return total


def split(
    entry: WeightGradients, row: Tensor, columns: dict[str, slice]
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the columns and the share of each weight of an entry's row."""
    places = [columns[name] for name in entry.names]
    shares = row.split([place.stop - place.start for place in places])
    yield from zip(places, shares, strict=True)
