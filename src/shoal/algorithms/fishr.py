"""Fishr: the same gradient variance in every training domain (Rame et al., 2022)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .. import regularizers
from ..statistics import gradient_variance, head_mean
from .base import Forward, Penalised
from .hparams import Hparams, constant, hparam, power, uniform, whole


@dataclass(frozen=True)
class FishrHparams(Hparams):
    """table:hyperparameters; the rest are the options of the paper's ablations."""

    penalty_weight: float = hparam(
        1000.0, power(10, 1, 4), key="lambda", help="λ of the gradient variances"
    )
    warmup_steps: int = hparam(
        1500,
        whole(0, 5000),
        key="penalty_anneal_iters",
        help="the step at which λ acts and Adam starts anew; 0 for no warm-up",
    )
    ema_decay: float = hparam(
        0.95, uniform(0.90, 0.99), key="ema", help="γ of the moving average; 0 for none"
    )
    mean_weight: float = hparam(
        0.0, constant(0.0), key="lambdamean", help="λ of the gradient means in ω (Fishr + IGA)"
    )
    centered: bool = hparam(
        True, constant(True), key="centered", help="false for the uncentred variance"
    )
    parameters: str = hparam(
        "classifier",
        constant("classifier"),
        key="parameters",
        help="weights whose variances are matched: classifier, all, or names with commas",
    )


class Fishr(Penalised):
    """Match the gradient variances in the classifier: the spread of Var(G_e)."""

    paper = "Fishr: Invariant Gradient Variances for OOD Generalization (Rame et al.)"
    year = 2022
    capture = "compiled"
    Hparams = FishrHparams
    hparams: FishrHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h, self.reset_step = self.hparams, self.hparams.warmup_steps
        schedule = (h.ema_decay, h.warmup_steps)
        # 1/n, as in the released code: the published numbers and the range of λ are its.
        self.variances = regularizers.Fishr(
            self.num_domains, h.penalty_weight, *schedule, centered=h.centered, unbiased=False
        )
        self.means = regularizers.Match(self.num_domains, h.mean_weight, *schedule, normalise=True)
        self.closed_form = h.parameters == "classifier" and isinstance(
            self.model.classifier, nn.Linear
        )

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ · spread of the variances' moving averages, plus the same of the means."""
        head = (forward.features, forward.logits, forward.labels, forward.domains)
        if self.closed_form:
            penalty = self.variances(*head)
        else:
            penalty = self.variances.match(self._variance(forward))
        if self.hparams.mean_weight > 0:
            penalty = penalty + self.means.match(head_mean(*head, self.num_domains), present=True)
        return penalty

    def _variance(self, forward: Forward) -> Tensor:
        h = self.hparams
        return gradient_variance(
            self.model,
            forward.inputs,
            forward.labels,
            forward.domains,
            "all" if h.parameters == "all" else h.parameters.split(","),
            centered=h.centered,
            unbiased=False,
            num_domains=self.num_domains,
        )
