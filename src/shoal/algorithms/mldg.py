"""MLDG: a step on some domains must also help on the others (Li et al., 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ..gradients.examples import individual_losses
from ..gradients.precision import precise
from ..internals import foreach
from ..randomness import Draws
from .base import UpdateAlgorithm
from .forward import Batch, Stacked, shares
from .hparams import Hparams, choice, hparam, power
from .optimiser import Optimiser


@dataclass(frozen=True)
class MLDGHparams(Hparams):
    """The weight and the number of the meta-test domains."""

    beta: float = hparam(
        1.0, power(10, -1, 1), key="mldg_beta", help="β, the weight of the meta-test risk"
    )
    num_meta_test: int = hparam(
        2,
        choice(1, 2),
        "[1, ∞)",
        key="n_meta_test",
        help="meta-test domains; at most all but one",
    )


class MLDG(UpdateAlgorithm):
    """Match the gradient means: a step on one domain must help on another, to first order."""

    paper = "Learning to Generalize: Meta-Learning for Domain Generalization (Li et al.)"
    year = 2018
    Hparams = MLDGHparams
    hparams: MLDGHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        # If all domains are meta-test domains, DomainBed has no pairs and trains nothing. Here one
        # domain is left to train on; a single domain is both.
        self.num_test = max(min(h.num_meta_test, self.num_domains - 1), 1)
        self.num_train = max(self.num_domains - self.num_test, 1)
        self.optimiser = Optimiser(self.model.parameters(), h.lr, h.weight_decay)
        self.names = [name for name, w in self.model.named_parameters() if w.requires_grad]
        self.draws = Draws("mldg", self.seed, device=self.device)

    def update(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Make one step with Σ (g_i + β g_j) / E over pairs of domains (i, j).

        g_i is taken at θ, and g_j at the weights after the first step of a new optimiser down g_i,
        held constant. The loss is the same sum of the risks.
        """
        self.check_batches(batches)
        examples = Stacked.of(batches)
        beta = self.hparams.beta
        order = self.draws.permutation(self.num_domains)
        test = order[-self.num_test :]
        share = 1 / self.num_domains  # of all domains, even if there are fewer pairs
        weights: list[Tensor] = list(self.optimiser.weights)
        losses: list[Tensor] = []
        total: list[Tensor] = []
        for i in range(self.num_train):
            risk, grads = self._gradient(examples.pick(order[i : i + 1]), weights)
            if total:
                foreach("add_", total, grads, alpha=share)
            else:
                total = foreach("mul", grads, share)
            there = [weight.requires_grad_() for weight in self.optimiser.first_step(grads)]
            j = i % self.num_test
            their_risk, grads = self._gradient(examples.pick(test[j : j + 1]), there)
            foreach("add_", total, grads, alpha=beta * share)
            losses.append(risk + beta * their_risk)
        loss = torch.stack(losses).sum() * share
        self.optimiser.step(total, loss.isfinite() & self.all_finite)
        return self.report(loss=loss)

    def _gradient(self, batch: Stacked, weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the risk of one domain at these weights, detached, and its gradient there."""
        named = dict(zip(self.names, weights, strict=True))
        logits = precise(functional_call(self.model, named, batch.inputs[0]))
        losses = individual_losses(logits, batch.labels[0], None)
        risk = (losses * shares(batch.sizes, len(losses))[0].to(losses.dtype)).sum()
        return risk.detach(), torch.autograd.grad(risk, weights, materialize_grads=True)
