"""Everything that can be said of a model's domains: risks, diagonals, spectra, inconsistency."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import torch

from ..curvature import (
    Diagonals,
    Scores,
    alignment,
    chain,
    diagonal_inconsistency,
    dominance,
    gaps,
    inconsistency,
    pairs,
    spectra,
)
from ..curvature.comparison import KINDS
from ..datasets import DomainDataset
from ..datasets.cache import ImageCache
from ..training.evaluation import Evaluation
from .gaps import Gaps
from .model import Model
from .subject import Subject, head_subject, network_subject
from .testing import evaluation_of

# Weights whose curvatures and variances a diagnosis holds one by one.
POINTS = 400


@dataclass(frozen=True)
class Question:
    """What is asked of a model.

    Args:
        parameters: "head", "all", or names and prefixes of weights with commas.
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
        raise ValueError(f"a diagnosis compares domains: name two or more, got {len(domains)}")
    evaluate = evaluation_of(model, dataset, cache, domains, question.images)
    for (name, _), part in evaluate.parts.items():
        if len(part) < 2:
            raise ValueError(f"the domain {name!r} has {len(part)} image; a variance needs two")
    whole = question.parameters != "head"
    subject = (
        network_subject(evaluate, question.parameters, question.method)
        if whole
        else head_subject(evaluate)
    )
    same = dataset.name == model.run.dataset
    trained = [name in model.card["training_domains"] and same for name in domains]
    return {
        "algorithm": model.run.algorithm,
        "dataset": dataset.name,
        "question": asdict(question),
        **_answers(subject, question, list(domains), trained),
    }


class Diagnoses:
    """Call for a diagnosis of the head on the fixed sample of each domain, as a record holds it."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation, self._gaps = evaluation, Gaps(evaluation)
        self._names = [domain for domain, _ in evaluation.parts]
        if len(self._names) < 2:
            raise ValueError(
                "a diagnosis compares training domains, and there is one; record none, or the gaps"
            )

    def __call__(self) -> dict[str, Any]:
        subject, names = head_subject(self._evaluation), self._names
        found = _answers(subject, Question(), names, [True] * len(names))
        del found["points"]  # thousands of numbers, for a figure
        return {**self._gaps(), "diagnosis": found}


def _answers(
    subject: Subject,
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
    return Diagonals(tuple(diagonals.sizes[e] for e in kept), **rows)


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
    """Return curvature and variance of weights, evenly taken from the largest to the smallest."""
    order = diagonals.hessian.mean(0).argsort(descending=True)
    chosen = order[torch.linspace(0, len(order) - 1, min(POINTS, len(order))).long()]
    return {
        name: {kind: getattr(diagonals, kind)[e, chosen].tolist() for kind in KINDS}
        for e, name in enumerate(names)
    }
