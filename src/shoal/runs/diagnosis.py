"""Diagnosis: gaps, curvature, spectra and inconsistency of a model's domains."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..catalogue import title_of
from ..curvature import (
    Diagonals,
    Roots,
    Scores,
    alignment,
    chain,
    diagonal_inconsistency,
    dominance,
    gaps,
    head_diagonals,
    head_roots,
    head_tangent_spectra,
    inconsistency,
    network_diagonals,
    network_roots,
    pairs,
    spectra,
)
from ..curvature.comparison import KINDS
from ..curvature.roots import DENSE
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache
from ..penalties import spread
from ..randomness import stream
from ..statistics import head_variance
from ..training.evaluation import Evaluation, HeadPass, classifier_of, head_passes
from .model import Model, evaluation_of_model

# Images of each training domain in the fixed sample for extra metrics of records.
EXAMPLES = 256
GAPS = ("risk", "variance", "hessian")


class Gaps:
    """Call for the gaps between domains, on the fixed sample of each, for a record.

    ``gaps`` are the spreads over domains of risks, of gradient variances and of Hessian diagonals;
    ``cosine`` is that of Diag(H_e) and Var(G_e), by domain.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._classifier = classifier_of(evaluation)

    def __call__(self) -> dict[str, Any]:
        found = head_passes(self._evaluation)
        diagonals = diagonals_of(self._classifier, list(found.values()))
        between = gaps(diagonals)
        cosines = {
            domain: chain(diagonals, number)["cosine:hessian:variance"]
            for number, (domain, _) in enumerate(found)
        }
        return {"gaps": {name: between[name] for name in GAPS}, "cosine": cosines}


def concatenate(passes: list[HeadPass]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features, logits, labels and domains of all parts."""
    sizes = torch.tensor([len(one.labels) for one in passes])
    domains = torch.arange(len(passes)).repeat_interleave(sizes)
    names = ("features", "logits", "labels")
    tensors = [torch.cat([getattr(one, name) for one in passes]) for name in names]
    return (*tensors, domains)  # type: ignore[return-value]


def diagonals_of(classifier: nn.Module, passes: list[HeadPass]) -> Diagonals:
    """Return every diagonal of a classifier, in closed form if it is one linear layer."""
    features, logits, labels, domains = concatenate(passes)
    if isinstance(classifier, nn.Linear):
        bias = classifier.bias is not None
        return head_diagonals(features, logits, labels, domains, bias=bias, num_domains=len(passes))
    return network_diagonals(classifier, features, labels, domains, num_domains=len(passes))


# The most rows of a domain's root, K for each example, for an eigenvalue problem of seconds.
ROWS, NETWORK_ROWS = 1024, 128
Spectra = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DiagnosisSubject:
    """The inputs of a diagnosis; spectra are of ``examples`` of each domain.

    ``shuffles`` is ``shuffled_gaps`` of some domains; None if that takes too long.
    """

    accuracies: list[float]
    diagonals: Callable[[], Diagonals]
    roots: Callable[[], Roots]
    tangent: Callable[[], Spectra]
    examples: tuple[int, ...]
    shuffles: Callable[[Sequence[int]], dict[str, Any]] | None = None


def head_subject(evaluate: Evaluation) -> DiagnosisSubject:
    """Return the head of the evaluated method, in closed form if it is one layer."""
    classifier = classifier_of(evaluate)
    passes = list(head_passes(evaluate).values())
    accuracies = [float((one.logits.argmax(1) == one.labels).double().mean()) for one in passes]
    features, logits, labels, domains = concatenate(passes)
    if not isinstance(classifier, nn.Linear):
        return _network(
            accuracies,
            classifier,
            features,
            labels,
            domains,
            parameters="all",
            method="auto",
            chunk=None,
            rows=ROWS,
        )
    bias = classifier.bias is not None
    small = logits.shape[1] * (features.shape[1] + bias) <= DENSE
    chosen = _first(domains, None if small else _examples(logits.shape[1], ROWS))
    some = [t[chosen.to(t.device)] for t in (features, logits, labels)]
    return DiagnosisSubject(
        accuracies=accuracies,
        diagonals=partial(head_diagonals, features, logits, labels, domains, bias=bias),
        roots=partial(head_roots, some[0], some[1], some[2], domains[chosen], bias=bias),
        tangent=partial(head_tangent_spectra, features, logits.shape[1], domains, bias=bias),
        examples=_counts(domains[chosen]),
        shuffles=partial(shuffled_gaps, features, logits, labels, domains, bias),
    )


# Shuffles, and examples of each domain in them, for a test of seconds.
SHUFFLES, SHUFFLED = 99, 512


@torch.no_grad()
def shuffled_gaps(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    bias: bool,
    chosen: Sequence[int],
) -> dict[str, Any]:
    """Return the gap of gradient variances in a head, and those of examples dealt out at random.

    If the domains' gradients are of one distribution, the gap is as likely as any other to be the
    largest. ``larger`` counts the shuffles with a gap at least as large; ``examples`` are those of
    each domain that were used.

    Args:
        chosen: the numbers of the domains to compare.
    """
    rows = [(domains == e).nonzero()[:, 0][:SHUFFLED] for e in chosen]
    sizes = torch.tensor([len(one) for one in rows])
    mine, numbers = torch.cat(rows), torch.arange(len(rows)).repeat_interleave(sizes)
    some = [t[mine.to(t.device)] for t in (features, logits, labels)]

    def gap(order: Tensor) -> float:
        v = head_variance(some[0], some[1], some[2], order, bias=bias, num_domains=len(rows))
        return float(spread(v.double()))

    draws = stream("diagnosis", "shuffles")
    found = gap(numbers)
    others = [gap(numbers[torch.randperm(len(numbers), generator=draws)]) for _ in range(SHUFFLES)]
    return {
        "count": SHUFFLES,
        "examples": sizes.tolist(),
        "variance": {
            "gap": found,
            "median": median(others),
            "larger": sum(one >= found for one in others),
        },
    }


def network_subject(evaluate: Evaluation, parameters: str, method: str) -> DiagnosisSubject:
    """Return weights of the network: ``"all"``, or names and prefixes separated by commas."""
    algorithm = evaluate.algorithm
    if algorithm.predicts_batchwise or algorithm.extra_channels:
        raise ValueError(
            f"{type(algorithm).__name__} predicts a batch as a whole, so the loss of one image "
            "depends on the others: only its head can be diagnosed"
        )
    inputs, labels, domains = [], [], []
    for number, part in enumerate(evaluate.parts.values()):
        batches = [evaluate.prepare(images) for images in evaluate.batches(part)]
        inputs.append(torch.cat(batches))
        labels.append(part.labels.to(algorithm.device))
        domains.append(torch.full((len(part),), number))
    chunk = evaluate.size(inputs[0])
    return _network(
        [outcome.accuracy for outcome in evaluate().values()],
        algorithm.model,
        torch.cat(inputs),
        torch.cat(labels),
        torch.cat(domains),
        parameters=parameters,
        method=method,
        chunk=chunk,
        rows=NETWORK_ROWS,
    )


def _network(
    accuracies: list[float],
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    domains: Tensor,
    *,
    parameters: str,
    method: str,
    chunk: int | None,
    rows: int,
) -> DiagnosisSubject:
    with torch.no_grad():
        classes = model(inputs[:1]).shape[-1]
    chosen = _first(domains, _examples(classes, rows))
    some = inputs[chosen.to(inputs.device)], labels[chosen.to(labels.device)], domains[chosen]
    roots = partial(network_roots, model, *some, parameters, chunk_size=chunk)
    return DiagnosisSubject(
        accuracies=accuracies,
        diagonals=partial(
            network_diagonals,
            model,
            inputs,
            labels,
            domains,
            parameters,
            method=method,
            chunk_size=chunk,
        ),
        roots=roots,
        tangent=lambda: spectra(roots(kind="tangent")),
        examples=_counts(domains[chosen]),
    )


def _examples(classes: int, rows: int) -> int:
    return max(rows // (classes if classes > 2 else 1), 2)


def _first(domains: Tensor, count: int | None) -> Tensor:
    """Return the first ``count`` examples of every domain; all for None."""
    every = [(domains == e).nonzero()[:, 0][:count] for e in range(int(domains.max()) + 1)]
    return torch.cat(every)


def _counts(domains: Tensor) -> tuple[int, ...]:
    return tuple(torch.bincount(domains).tolist())


# The number of weights whose curvature and variance a diagnosis lists.
POINTS = 400


@dataclass(frozen=True, kw_only=True)
class Question:
    """The settings of a diagnosis.

    Args:
        parameters: "head", "all", or names and prefixes of weights, separated by commas.
        epsilon, floor: as in ``shoal.curvature.inconsistency``.
        images: of each domain, at most; None for all.
        method: of whole networks' Hessians, as in ``shoal.curvature.hessian_diagonal``.
    """

    parameters: str = "head"
    epsilon: float = 0.1
    floor: float = 1e-3
    images: int | None = None
    method: str = "auto"


def diagnose(
    model: Model,
    dataset: DomainDataset,
    cache: ImageCache | None,
    domains: Sequence[str],
    question: Question,
) -> dict[str, Any]:
    """Return the diagnosis as plain values, ready for JSON."""
    if len(domains) < 2:
        raise ValueError(f"a diagnosis compares domains; name two or more, got {len(domains)}")
    evaluate = evaluation_of_model(model, dataset, cache, domains, question.images)
    for (name, _), part in evaluate.parts.items():
        if len(part) < 2:
            raise ValueError(f"the domain {name!r} has {len(part)} image; a variance needs two")
    if next(classifier_of(evaluate).parameters(), None) is None:
        raise ValueError(
            f"{title_of(model.run.algorithm)} has no gradients, which a diagnosis compares; give a "
            "model with a linear head, such as a run of another method in the folder of the fit"
        )
    whole = question.parameters != "head"
    subject = (
        network_subject(evaluate, question.parameters, question.method)
        if whole
        else head_subject(evaluate)
    )
    same = dataset.name == model.run.dataset
    trained = [name in model.card["training_domains"] and same for name in domains]
    found = {
        "algorithm": model.row,
        "dataset": dataset.name,
        "question": asdict(question),
        **_answers(subject, question, list(domains), trained),
    }
    if subject.shuffles is not None:
        chosen = [e for e, mine in enumerate(trained) if mine or sum(trained) < 2]
        found["shuffles"] = {
            "domains": [domains[e] for e in chosen],
            **subject.shuffles(chosen),
        }
    return found


class Diagnoses:
    """Call for a diagnosis of the head on the fixed sample of each domain, for a record."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation, self._gaps = evaluation, Gaps(evaluation)
        self._names = [domain for domain, _ in evaluation.parts]
        if len(self._names) < 2:
            raise ValueError(
                "a diagnosis compares training domains, but there is one; use --log gaps, or none"
            )

    def __call__(self) -> dict[str, Any]:
        subject, names = head_subject(self._evaluation), self._names
        found = _answers(subject, Question(), names, [True] * len(names))
        del found["points"]  # thousands of numbers, for a figure
        return {**self._gaps(), "diagnosis": found}


def _answers(
    subject: DiagnosisSubject,
    question: Question,
    names: list[str],
    trained: list[bool],
) -> dict[str, Any]:
    diagonals, roots, tangent = subject.diagonals(), subject.roots(), subject.tangent()
    fisher, dominant, aligned = spectra(roots), dominance(roots), alignment(roots)
    apart = pairs(diagonals)
    limits = (diagonals.risks, question.epsilon, question.floor)
    found: dict[str, Any] = {"weights": roots.weights, "spectra_of": list(subject.examples)}
    found["domains"] = {
        name: {
            "images": diagonals.sizes[e],
            "trained_on": trained[e],
            "accuracy": subject.accuracies[e],
            "risk": float(diagonals.risks[e]),
            "chain": chain(diagonals, e),
            "dominance": dominant[e],
            "tangent": tangent[e],
            "fisher": fisher[e],
        }
        for e, name in enumerate(names)
    }
    found["pairs"] = [
        {"domains": [names[a], names[b]], **apart[a, b], "alignment": aligned[a, b]}
        for a, b in combinations(range(len(names)), 2)
    ]
    found["gaps"] = {"all": gaps(diagonals)}
    if 2 <= sum(trained) < len(names):
        found["gaps"]["trained_on"] = gaps(_some(diagonals, trained))
    found["inconsistency"] = {
        "full": _plain(inconsistency(roots, *limits), names),
        "diagonal": _plain(diagonal_inconsistency(diagonals.hessian, *limits), names),
    }
    found["points"] = _points(diagonals, names)
    return found


def _some(diagonals: Diagonals, chosen: list[bool]) -> Diagonals:
    """Return the diagonals of the chosen domains."""
    kept = [e for e, mine in enumerate(chosen) if mine]
    rows = {name: rows[kept] for name, rows in vars(diagonals).items() if name != "sizes"}
    return Diagonals(sizes=tuple(diagonals.sizes[e] for e in kept), **rows)


def _plain(scores: Scores, names: list[str]) -> dict[str, Any]:
    return {
        "epsilon": scores.epsilon,
        "floor": scores.floor,
        "small_enough": scores.small_enough,
        "largest": scores.largest,
        "pairs": [
            {"a": names[a], "b": names[b], **asdict(score), "inconsistency": score.inconsistency}
            for (a, b), score in scores.pairs.items()
        ],
    }


def _points(diagonals: Diagonals, names: list[str]) -> dict[str, Any]:
    """Return curvature and variance of weights, evenly spaced from the largest to the smallest."""
    order = diagonals.hessian.mean(0).argsort(descending=True)
    chosen = order[torch.linspace(0, len(order) - 1, min(POINTS, len(order))).long()]
    return {
        name: {kind: getattr(diagonals, kind)[e, chosen].tolist() for kind in KINDS}
        for e, name in enumerate(names)
    }
