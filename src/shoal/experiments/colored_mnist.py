"""Colored MNIST in the IRM setup: table:cmnist_25, table:cmnist_0 and table:cmnistend.

Two training domains of 25,000 digits whose colour agrees with the label in 80 % and 90 % of cases,
one test domain where it agrees in 10 %. The label is whether the digit is below 5, and a quarter of
the labels is wrong. So shape predicts 75 % everywhere, and colour up to 90 % in training but 10 %
in test. The penalty's weight is 1 until step 190 and then 91,257; every method uses the
hyperparameters of IRM.
"""

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..datasets.mnist import train_digits
from ..gradients.examples import individual_losses
from ..networks import MLP
from ..penalties import spread
from ..randomness import stream
from ..statistics import covariance_spread, head_variance, losses_and_variance
from ..training.step import CapturedStep


@dataclass(frozen=True)
class ColoredDomain:
    """Coloured digits ``[n, 392]`` and labels ``[n, 1]``; ``digits`` are the ten classes."""

    inputs: Tensor
    labels: Tensor
    digits: Tensor

    def to(self, device: torch.device) -> "ColoredDomain":
        return ColoredDomain(self.inputs.to(device), self.labels.to(device), self.digits.to(device))


def colour_digits(
    name: str,
    restart: int,
    which: Tensor,
    flip: float,
    colour_flip: float | None,
) -> ColoredDomain:
    """Return the digits ``which`` of MNIST's training set as a domain.

    Args:
        name, restart: seed of labels and colours.
        flip: share of wrong labels.
        colour_flip: share of colours that contradict the label; None for gray digits.
    """
    images, digits = _small_digits()
    draws = stream("colored-mnist", name, restart)

    def noise(probability: float) -> Tensor:
        return torch.rand(len(which), generator=draws) < probability

    small = images[which]
    labels = (digits[which] < 5) ^ noise(flip)
    channels = torch.stack([small, small], 1)
    if colour_flip is not None:  # gray keeps both channels
        colours = labels ^ noise(colour_flip)
        channels[torch.arange(len(which)), 1 - colours.long()] = 0
    return ColoredDomain(channels.flatten(1), labels.float()[:, None], digits[which].long())


@cache
def _small_digits() -> tuple[Tensor, Tensor]:
    """Return every second pixel of MNIST's training images, ``[60000, 14, 14]``, and the digits."""
    images, digits = train_digits()
    return torch.tensor(images[:, ::2, ::2]).float() / 255, torch.tensor(digits)


LEARNING_RATE = 0.0004898536566546834
L2_WEIGHT = 0.00110794568
PENALTY_WEIGHT = 91257.18613115903


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All settings of a training except its method and restart.

    The penalty's weight is 1 until ``jump_step``, then rises over ``ramp_updates``; 0 is a jump.
    """

    flip: float = 0.25
    examples: int = 25_000
    hidden: int = 390
    jump_step: int = 190
    ramp_updates: int = 0
    # Accuracies are measured at step 500, before its update.
    updates: int = 500
    tf32: bool = False

    def penalty_weight(self, step: int) -> float:
        """Return the weight of the penalty in an update, counted from 0."""
        risen = float(step >= self.jump_step)
        if self.ramp_updates:
            risen = min(max(step - self.jump_step, 0) / self.ramp_updates, 1.0)
        return PENALTY_WEIGHT if risen == 1 else 1 + risen * (PENALTY_WEIGHT - 1)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain values, without those that were added later."""
        return {k: v for k, v in asdict(self).items() if k != "ramp_updates" or v}


def domains_of(setup: Setup, restart: int) -> dict[str, ColoredDomain]:
    """Return the domains 80 %, 90 %, 10 % (test) and gray of one restart."""
    order = torch.randperm(50_000, generator=stream("colored-mnist", "order", restart))
    train = order[: 2 * setup.examples]
    test = torch.arange(50_000, 60_000)
    return {
        "80%": colour_digits("80%", restart, train[0::2], setup.flip, 0.2),
        "90%": colour_digits("90%", restart, train[1::2], setup.flip, 0.1),
        "10%": colour_digits("10%", restart, test, setup.flip, 0.9),
        "gray": colour_digits("gray", restart, test, setup.flip, None),
    }


@dataclass(frozen=True)
class MatchingMethod:
    """A row of the tables: the statistic that is matched, and the weights it is of."""

    name: str
    statistic: str  # none, irm, risk, variance, uncentered, covariance, covariance-released
    weights: str = "ω"


METHODS = {
    "erm": MatchingMethod("ERM", "none"),
    "irm": MatchingMethod("IRM", "irm"),
    "vrex": MatchingMethod("V-REx", "risk"),
    "fishr-theta": MatchingMethod("Fishr θ (centred variance)", "variance", "θ"),
    "fishr-omega": MatchingMethod("Fishr ω (centred variance)", "variance", "ω"),
    "fishr-phi": MatchingMethod("Fishr φ (centred variance)", "variance", "φ"),
    "uncentered-theta": MatchingMethod("Uncentred variance on θ", "uncentered", "θ"),
    "uncentered-omega": MatchingMethod("Uncentred variance on ω", "uncentered", "ω"),
    "uncentered-phi": MatchingMethod("Uncentred variance on φ", "uncentered", "φ"),
    "covariance-omega": MatchingMethod("Full covariance on ω", "covariance", "ω"),
    "covariance-omega-released": MatchingMethod(
        "Covariance on ω, per tensor and scaled (released code)", "covariance-released", "ω"
    ),
    "covariance-theta": MatchingMethod("Full covariance on θ", "covariance", "θ"),
    "covariance-phi": MatchingMethod("Full covariance on φ", "covariance", "φ"),
}

TABLES = {
    "table:cmnist_25": ("erm", "irm", "vrex", "fishr-theta", "fishr-omega", "fishr-phi"),
    "table:cmnist_0": ("erm", "irm", "vrex", "fishr-theta", "fishr-omega", "fishr-phi"),
    "table:cmnistend": (
        "fishr-omega",
        "covariance-omega",
        "covariance-omega-released",
        "uncentered-omega",
        "fishr-theta",
        "covariance-theta",
        "uncentered-theta",
        "fishr-phi",
        "covariance-phi",
        "uncentered-phi",
    ),
}

PARAMETERS = {"ω": "classifier", "φ": "features", "θ": "all"}


class Training:
    """Training of one method, used again for every restart: state is reset and updated in place.

    Args:
        outputs: 1 logit, or 2 with cross-entropy as in the paper's analyses of Hessians.
    """

    def __init__(
        self, method: MatchingMethod, setup: Setup, device: torch.device, outputs: int = 1
    ) -> None:
        if outputs == 2 and method.statistic == "irm":
            raise ValueError("IRM's slope is defined for one logit; use outputs=1")
        self.method, self.setup, self.device, self.outputs = method, setup, device, outputs
        # Dead units align the matrix products: their weights in and out are zero, so they never
        # move. The released covariance divides by a tensor's size, which would count them.
        dead = 0 if method.statistic == "covariance-released" else -setup.hidden % 8
        self.model = MLP(392, setup.hidden + dead, outputs).to(device)
        self.inputs = torch.zeros(2 * setup.examples, 392, device=device)
        self.labels = self._targets(torch.zeros(2 * setup.examples, 1, device=device))
        self.weight = torch.ones((), device=device)
        on_gpu = device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            self.model.parameters(), lr=LEARNING_RATE, capturable=on_gpu, fused=on_gpu
        )
        self.start(0)
        self._run = CapturedStep(self._step, lambda: self._reset(0), device)

    def start(self, restart: int) -> None:
        """Set data, weights and optimiser, in place, to the beginning of a restart."""
        self.domains = {
            name: domain.to(self.device) for name, domain in domains_of(self.setup, restart).items()
        }
        parts = [self.domains["90%"], self.domains["80%"]]
        self.inputs.copy_(torch.cat([part.inputs for part in parts]))
        self.labels.copy_(self._targets(torch.cat([part.labels for part in parts])))
        self._reset(restart)

    def _targets(self, labels: Tensor) -> Tensor:
        """Return labels ``[n, 1]`` for the loss: as class indices ``[n]`` for two logits."""
        return labels if self.outputs == 1 else labels[:, 0].long()

    def _reset(self, restart: int) -> None:
        # Whole: no step is in progress, so that state() can be saved.
        self.done, self.whole = 0, True
        draws = stream("colored-mnist", "weights", restart)
        drawn = MLP(392, self.setup.hidden, self.outputs, draws)
        for mine, theirs in zip(self.model.parameters(), drawn.parameters(), strict=True):
            with torch.no_grad():
                mine.zero_()[tuple(slice(size) for size in theirs.shape)].copy_(theirs)
        for state in self.optimiser.state.values():
            for tensor in state.values():
                tensor.zero_()
        self.weight.fill_(1.0)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def step(self) -> None:
        """Run one update."""
        self.whole = False
        weight = self.setup.penalty_weight(self.done)
        if weight != self.setup.penalty_weight(self.done - 1):
            self._run.between(lambda: self.weight.fill_(weight))
        self._run()
        self.done += 1
        self.whole = True

    def _step(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        losses, penalty = self._losses_and_penalty()
        risks = losses.reshape(2, -1).mean(1)
        squares = torch.stack([p.square().sum() for p in self.model.parameters()])
        loss = risks.mean() + L2_WEIGHT * squares.sum()
        if penalty is not None:
            # As IRM's code: the whole loss is divided by the weight, L2 too, and Adam is not reset.
            loss = (loss + self.weight * penalty) / self.weight
        loss.backward()
        self.optimiser.step()

    def _losses_and_penalty(self) -> tuple[Tensor, Tensor | None]:
        statistic = self.method.statistic
        if statistic in ("variance", "uncentered"):
            return self._variance_penalty()
        logits = self.model(self.inputs)
        losses = self.losses(logits)
        if statistic == "none":
            return losses, None
        if statistic == "risk":
            risks = losses.reshape(2, -1).mean(1)
            return losses, (risks[0] - risks[1]).square()
        if statistic == "irm":
            # The gradient of the risk in a scale on the logits, in closed form: E[l (σ(l) − y)].
            slope = (logits * (torch.sigmoid(logits) - self.labels)).reshape(2, -1).mean(1)
            return losses, slope.square().mean()
        released = statistic == "covariance-released"
        penalty = covariance_spread(
            self.model,
            self.inputs,
            self.labels,
            self.domain_ids(),
            PARAMETERS[self.method.weights],
            blocks=released,
            unbiased=not released,
            num_domains=2,
        )
        return losses, 2 * penalty

    def _variance_penalty(self) -> tuple[Tensor, Tensor]:
        """Return ℓ_i and Σ_e ‖v_e − v‖² with 1/n, as in the released code: twice Eq. 3."""
        centered = self.method.statistic == "variance"
        if self.method.weights == "ω":
            features = self.model.features(self.inputs)
            logits = self.model.classifier(features)
            rows = head_variance(
                features,
                logits,
                self.labels,
                self.domain_ids(),
                centered=centered,
                unbiased=False,
                num_domains=2,
            )
            return self.losses(logits), 2 * spread(rows)
        losses, rows = losses_and_variance(
            self.model,
            self.inputs,
            self.labels,
            self.domain_ids(),
            PARAMETERS[self.method.weights],
            centered=centered,
            unbiased=False,
            num_domains=2,
        )
        return losses, 2 * spread(rows)

    def domain_ids(self) -> Tensor:
        """Return the domain of each training example, on the host."""
        return torch.arange(2).repeat_interleave(self.setup.examples)

    def losses(self, logits: Tensor) -> Tensor:
        """Return ℓ_i of the training examples."""
        return individual_losses(logits, self.labels, None)

    def wait(self) -> None:
        """Wait until all updates have run, so that the model can be read."""
        self._run.wait()

    def accuracies(self) -> dict[str, float]:
        """Return the accuracies in train (mean of the two domains), test and gray."""
        self.wait()
        found = {name: self._accuracy(domain) for name, domain in self.domains.items()}
        train = (found["90%"] + found["80%"]) / 2
        return {"train": train, "test": found["10%"], "gray": found["gray"]}

    @torch.no_grad()
    def _accuracy(self, domain: ColoredDomain) -> float:
        logits = self.model(domain.inputs)
        if self.outputs == 2:
            logits = logits[:, 1:] - logits[:, :1]
        right = (logits > 0) == (domain.labels > 0.5)
        return float(right.float().mean())

    def state(self) -> dict[str, Any]:
        """Return all that a resumed restart needs except its data."""
        self.wait()
        moments = [dict(self.optimiser.state[p]) for p in self.model.parameters()]
        return {"done": self.done, "model": self.model.state_dict(), "optimiser": moments}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue, in place, from ``state()`` of the restart that was started last."""
        self.model.load_state_dict(state["model"])
        for parameter, saved in zip(self.model.parameters(), state["optimiser"], strict=True):
            mine = self.optimiser.state[parameter]
            for name, tensor in saved.items():
                if name in mine:
                    mine[name].copy_(tensor)
                else:  # on a CPU Adam has no state before its first step
                    mine[name] = tensor.clone()
        self.done = state["done"]
        weight = self.setup.penalty_weight(self.done - 1)  # of the last update
        self._run.between(lambda: self.weight.fill_(weight))
