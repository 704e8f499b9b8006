"""Adam as every method uses it: all state in buffers, changed in place, switched on the device."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Adam(nn.Module):
    """Adam over some weights, its moments and counts in ``state_dict()``.

    Nothing in it asks the host: a step can be left out and the state set back by a bool on the
    device, so that a captured step does what the count of steps demands. A step with a gradient
    that is not finite changes nothing but ``sound``.

    Args:
        weights: what it trains; frozen ones are left out.
        lr, weight_decay, betas: as in ``torch.optim.Adam``.
    """

    sound: Tensor  # whether all gradients since it was last set were finite

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__()
        self.weights = [weight for weight in weights if weight.requires_grad]
        self._options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        self._rule: torch.optim.Adam
        for k, weight in enumerate(self.weights):
            self.register_buffer(f"count_{k}", torch.zeros((), device=weight.device))
            self.register_buffer(f"mean_{k}", torch.zeros_like(weight, requires_grad=False))
            self.register_buffer(f"square_{k}", torch.zeros_like(weight, requires_grad=False))
        device = self.weights[0].device if self.weights else None
        sound = torch.ones((), dtype=torch.bool, device=device)
        self.register_buffer("sound", sound, persistent=False)
        self.register_load_state_dict_post_hook(_link_again)  # type: ignore[no-untyped-call]
        self._link()

    def _state(self, name: str) -> list[Tensor]:
        return [self.get_buffer(f"{name}_{k}") for k in range(len(self.weights))]

    def _link(self) -> None:
        for weight in self.weights:
            if torch.empty_like(weight, device="meta").stride() != weight.stride():
                raise ValueError(
                    "Adam walks through memory and needs weights without gaps, got one of shape "
                    f"{list(weight.shape)} with strides {list(weight.stride())}; call contiguous()"
                )
        self._means, self._squares = self._state("mean"), self._state("square")
        if not self.weights:  # all frozen: nothing to do, and torch knows no such Adam
            return
        self._rule = torch.optim.Adam(self.weights, **self._options, fused=True, capturable=True)  # type: ignore[arg-type]
        state = zip(self._state("count"), self._means, self._squares, strict=True)
        for weight, (count, mean, square) in zip(self.weights, state, strict=True):
            self._rule.state[weight] = {"step": count, "exp_avg": mean, "exp_avg_sq": square}

    def _apply(self, fn: Any, recurse: bool = True) -> "Adam":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.follow(lambda weight: weight)
        return self

    def follow(self, new: Callable[[nn.Parameter], nn.Parameter]) -> None:
        """Train other objects from now on: what became of each weight when the network moved."""
        self.weights = [new(weight) for weight in self.weights]
        for k, weight in enumerate(self.weights):
            for name in (f"mean_{k}", f"square_{k}"):
                # A fused step walks through memory and takes all for laid out alike.
                if self.get_buffer(name).stride() != weight.stride():
                    copy = torch.empty_like(weight, requires_grad=False)
                    self._buffers[name] = copy.copy_(self.get_buffer(name))
            # Adam counts in float32 whatever the weights are.
            self._buffers[f"count_{k}"] = self.get_buffer(f"count_{k}").float()
        self._link()

    def minimise(self, loss: Tensor, active: Tensor | None = None) -> None:
        """Make one step down ``loss``; one that is not finite leaves the weights as they were."""
        grads = torch.autograd.grad(loss, self.weights, allow_unused=True) if self.weights else ()
        finite = loss.detach().isfinite()
        self.step(grads, finite if active is None else finite & active)

    def step(self, grads: Sequence[Tensor | None], active: Tensor | None = None) -> None:
        """Make one step with these gradients, if ``active`` (a bool scalar on the device)."""
        pairs = zip(self._means, self.weights, strict=True)
        if any(mean.stride() != weight.stride() for mean, weight in pairs):
            self.follow(lambda weight: weight)
        found = []
        for weight, grad in zip(self.weights, grads, strict=True):
            if grad is not None and grad.stride() != weight.stride():
                grad = torch.empty_like(weight).copy_(grad)
            weight.grad = grad
            found += [] if grad is None else [grad]
        if not found:
            return
        # The switch that a loss scaler uses: a step with it on changes neither weights nor state.
        stop = torch.zeros((), device=found[0].device)
        one = torch.ones((), device=found[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(found, stop, one)
        self.sound.logical_and_(stop == 0)
        rule: Any = self._rule
        rule.grad_scale = None
        rule.found_inf = stop if active is None else torch.maximum(stop, (~active).float())
        self._rule.step()
        for weight in self.weights:
            weight.grad = None
        torch.clear_autocast_cache()  # it holds the weights of before

    def reset(self, when: Tensor) -> None:
        """Set the state back to the beginning where ``when``, a bool scalar on the device."""
        if self.weights:
            # Squares may overflow, and ∞ · 0 is no beginning.
            for dtype in {square.dtype for square in self._squares}:
                mine = [square for square in self._squares if square.dtype == dtype]
                torch._foreach_clamp_max_(mine, torch.finfo(dtype).max)
            state = [*self._state("count"), *self._means, *self._squares]
            torch._foreach_mul_(state, (~when).float())


def _link_again(adam: nn.Module, _: Any) -> None:
    if isinstance(adam, Adam):  # loaded with assign=True, its state is in other tensors
        adam.sound.fill_(True)
        adam._link()
