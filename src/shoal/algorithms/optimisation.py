"""What a training may choose about its optimisers: rule, schedule and clipping."""

from dataclasses import dataclass
from typing import Literal, get_args

from ..checks import choose

Rule = Literal["adam", "adamw", "sgd"]
Schedule = Literal["constant", "cosine"]
# SGD's, where nothing else is said.
MOMENTUM = 0.9


@dataclass(frozen=True)
class Optimisation:
    """How the optimisers of a method move its weights; by default Adam, as in the paper.

    Learning rates and weight decay stay hyperparameters of the method, and those of Adam suit no
    other rule by themselves. Weight decay is L2 in Adam and SGD and decoupled in AdamW, as in
    torch.

    A schedule follows the time of training: t is the number of the method's updates, from 0, and
    the same for all its optimisers. So it is whether an optimiser makes several steps in an update
    (Fish, SagNet), has its turn in some of them (DANN), or is started anew (the end of a warm-up).

    Args:
        rule: adam, adamw or sgd.
        momentum: of SGD.
        schedule: constant, or cosine: lr · ½ (1 + cos(π t / T)), and 0 from T on.
        steps: T, the updates of the whole training; what a cosine needs.
        clip: the largest norm of a gradient, taken over all weights of one optimiser.
    """

    rule: Rule = "adam"
    momentum: float = MOMENTUM
    schedule: Schedule = "constant"
    steps: int | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        choose("rule", self.rule, get_args(Rule))
        choose("schedule", self.schedule, get_args(Schedule))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.rule != "sgd" and self.momentum != MOMENTUM:
            raise ValueError(
                f"momentum is an option of sgd, got {self.momentum} with {self.rule}; leave it out"
            )
        if self.steps is not None and not (isinstance(self.steps, int) and self.steps > 0):
            raise ValueError(f"steps must be a whole number, 1 or more, got {self.steps!r}")
        if self.schedule == "cosine" and self.steps is None:
            raise ValueError("a cosine schedule needs steps, the updates of the whole training")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise ValueError(f"clip must be a norm above 0, or None for none, got {self.clip}")
