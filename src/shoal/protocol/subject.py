"""What a diagnosis is of: a model's head, or any weights of its network, and its examples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature import (
    Diagonals,
    Roots,
    head_diagonals,
    head_roots,
    head_tangent_spectra,
    network_diagonals,
    network_roots,
    spectra,
)
from ..curvature.roots import DENSE
from ..training.evaluation import Evaluation, classifier_of, head_passes
from .gaps import joined

# Rows of a domain's root, K for each example: what an eigenvalue problem in seconds bears.
ROWS, NETWORK_ROWS = 1024, 128
Spectra = list[dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """Everything that a diagnosis asks for; ``examples`` of each domain have its spectra."""

    accuracies: list[float]
    diagonals: Callable[[], Diagonals]
    roots: Callable[[], Roots]
    tangent: Callable[[], Spectra]
    examples: tuple[int, ...]


def head_subject(evaluate: Evaluation) -> Subject:
    """Return the head of the method that is evaluated: closed forms where it is one layer."""
    classifier = classifier_of(evaluate)
    passes = list(head_passes(evaluate).values())
    accuracies = [float((one.logits.argmax(1) == one.labels).double().mean()) for one in passes]
    features, logits, labels, domains = joined(passes)
    if not isinstance(classifier, nn.Linear):
        data = features, labels, domains
        return _network(accuracies, classifier, *data, "all", "auto", None, ROWS)
    bias = classifier.bias is not None
    small = logits.shape[1] * (features.shape[1] + bias) <= DENSE
    chosen = _first(domains, None if small else _examples(logits.shape[1], ROWS))
    some = [t[chosen.to(t.device)] for t in (features, logits, labels)]
    return Subject(
        accuracies,
        partial(head_diagonals, features, logits, labels, domains, bias=bias),
        partial(head_roots, some[0], some[1], some[2], domains[chosen], bias=bias),
        partial(head_tangent_spectra, features, logits.shape[1], domains, bias=bias),
        _counts(domains[chosen]),
    )


def network_subject(evaluate: Evaluation, parameters: str, method: str) -> Subject:
    """Return weights of the whole network: ``"all"``, or names and prefixes with commas."""
    algorithm = evaluate.algorithm
    if algorithm.together or algorithm.extra_channels:
        raise ValueError(
            f"{type(algorithm).__name__} predicts images together, and the loss of one depends on "
            "the others: only its head can be diagnosed"
        )
    inputs, labels, domains = [], [], []
    for number, part in enumerate(evaluate.parts.values()):
        batches = [evaluate.prepare(images) for images in evaluate.batches(part)]
        inputs.append(torch.cat(batches))
        labels.append(part.labels.to(algorithm.device))
        domains.append(torch.full((len(part),), number))
    chunk = evaluate.size(inputs[0])
    data = torch.cat(inputs), torch.cat(labels), torch.cat(domains)
    accuracies = [outcome.accuracy for outcome in evaluate().values()]
    return _network(accuracies, algorithm.model, *data, parameters, method, chunk, NETWORK_ROWS)


def _network(
    accuracies: list[float],
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    domains: Tensor,
    parameters: str,
    method: str,
    chunk: int | None,
    rows: int,
) -> Subject:
    with torch.no_grad():
        classes = model(inputs[:1]).shape[-1]
    chosen = _first(domains, _examples(classes, rows))
    some = inputs[chosen.to(inputs.device)], labels[chosen.to(labels.device)], domains[chosen]
    roots = partial(network_roots, model, *some, parameters, chunk_size=chunk)
    return Subject(
        accuracies,
        partial(
            network_diagonals,
            model,
            inputs,
            labels,
            domains,
            parameters,
            method=method,
            chunk_size=chunk,
        ),
        roots,
        lambda: spectra(roots(kind="tangent")),
        _counts(domains[chosen]),
    )


def _examples(classes: int, rows: int) -> int:
    return max(rows // (classes if classes > 2 else 1), 2)


def _first(domains: Tensor, count: int | None) -> Tensor:
    """Return the first ``count`` examples of every domain; all for None."""
    every = [(domains == e).nonzero()[:, 0][:count] for e in range(int(domains.max()) + 1)]
    return torch.cat(every)


def _counts(domains: Tensor) -> tuple[int, ...]:
    return tuple(torch.bincount(domains).tolist())
