"""Fishr: the same gradient variance in every training domain (Rame et al., 2022)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .. import regularizers
from .base import Capture, Penalised
from .forward import Forward
from .hparams import Hparams, fixed, hparam, later, power, uniform, whole

# What a new optimiser at the end of the warm-up forgets.
RESETS = ("all", "mean", "none")


@dataclass(frozen=True)
class FishrHparams(Hparams):
    """table:hyperparameters, then options of ablations, then another way to bring in λ."""

    penalty_weight: float = hparam(1e3, power(10, 1, 4), key="lambda", help="λ of the variances")
    warmup_steps: int = hparam(1500, whole(0, 5000), key="penalty_anneal_iters", help="λ's start")
    ema_decay: float = hparam(0.95, uniform(0.9, 0.99), "[0, 1)", key="ema", help="γ; 0 for none")
    mean_weight: float = fixed(0.0, key="lambdamean", help="λ of the gradient means (+ IGA)")
    centered: bool = fixed(True, key="centered", help="false for the uncentred variance")
    parameters: str = fixed("classifier", key="parameters", help="weights: all, or names")
    average: bool = later(True, key="average", help="false: λ/(1 − γ) in place of an average by γ")
    ramp_steps: int = later(0, key="ramp_steps", help="updates over which λ rises; 0 for a jump")
    reset: str = later(
        "all", RESETS, key="reset", help="new optimiser at λ's start: all, mean or none"
    )
    gradient_share: float = later(
        0.0, key="gradient_share", help="λ in units of ‖∇R‖/‖∇penalty‖; 0: λ as given"
    )


class Fishr(Penalised):
    """Match the gradient variances in the classifier: the spread of Var(G_e)."""

    paper = "Fishr: Invariant Gradient Variances for OOD Generalization (Rame et al.)"
    year = 2022
    capture: Capture = "compiled"
    Hparams = FishrHparams
    hparams: FishrHparams

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        h = self.hparams
        if h.reset != "none":
            self.reset_step = h.warmup_steps
            self.reset_state = "mean" if h.reset == "mean" else "all"
        decay = h.ema_decay
        pull = 1.0
        if not h.average:
            # Where the gaps persist, u sums them up to 1/(1 − γ) times: the pull that γ = 0 loses.
            decay = 0.0
            pull = 1 / (1 - h.ema_decay)
        self.variances = regularizers.Fishr(
            num_domains=self.num_domains,
            penalty_weight=pull * h.penalty_weight,
            ema_decay=decay,
            warmup_steps=h.warmup_steps,
            ramp_steps=h.ramp_steps,
            gradient_share=h.gradient_share,
            centered=h.centered,
            unbiased=False,  # 1/n as in the released code, which the range of λ assumes
        ).to(self.device)
        self.means = regularizers.Match(
            num_domains=self.num_domains,
            penalty_weight=pull * h.mean_weight,
            ema_decay=decay,
            warmup_steps=h.warmup_steps,
            ramp_steps=h.ramp_steps,
            normalise=True,
        ).to(self.device)
        head = self.model.classifier
        if h.parameters == "classifier" and isinstance(head, nn.Linear):
            self.variances.prepare_for(head)
        elif h.gradient_share > 0:
            raise ValueError(
                "gradient_share is measured in a linear classifier that is matched alone, got "
                f"parameters={h.parameters!r} and a {type(head).__name__}; set it to 0"
            )
        else:
            self.capture = "graph"
            self.record_gradients_of = h.parameters

    def penalty(self, forward: Forward) -> Tensor:
        """Return λ · spread of the variances' moving averages, plus the same of the means."""
        if self.record_gradients_of is None:  # in closed form
            penalty: Tensor = self.variances(*forward.head)
        else:
            rows = forward.variance(centered=self.hparams.centered, unbiased=False)
            penalty = self.variances.match(rows)
        if self.hparams.mean_weight > 0:
            penalty = penalty + self.means.match(forward.mean(self.variances.bias))
        return penalty
