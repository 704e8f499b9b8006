"""How far the training domains are apart in a model's head, for records and for diagnoses."""

from typing import Any

import torch
from torch import Tensor, nn

from ..curvature import Diagonals, chain, gaps, head_diagonals, network_diagonals
from ..training.evaluation import Evaluation, HeadPass, classifier_of, head_passes

# Of each training domain, in the fixed sample that records are measured on.
EXAMPLES = 256
GAPS = ("risk", "variance", "hessian")


class Gaps:
    """Call for the gaps between domains, on the fixed sample of each, as a record holds them.

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


def joined(passes: list[HeadPass]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features, logits, labels and domains of all parts together."""
    sizes = torch.tensor([len(one.labels) for one in passes])
    domains = torch.arange(len(passes)).repeat_interleave(sizes)
    names = ("features", "logits", "labels")
    tensors = [torch.cat([getattr(one, name) for one in passes]) for name in names]
    return (*tensors, domains)  # type: ignore[return-value]


def diagonals_of(classifier: nn.Module, passes: list[HeadPass]) -> Diagonals:
    """Return every diagonal of a classifier: in closed form where it is one linear layer."""
    features, logits, labels, domains = joined(passes)
    if isinstance(classifier, nn.Linear):
        bias = classifier.bias is not None
        return head_diagonals(features, logits, labels, domains, bias=bias, num_domains=len(passes))
    return network_diagonals(classifier, features, labels, domains, num_domains=len(passes))
