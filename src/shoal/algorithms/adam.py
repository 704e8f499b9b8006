"""Adam as every method uses it: all state in buffers, changed in place, switched on the device."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Adam(nn.Module):
    """Adam over some weights, its moments and counts in ``state_dict()``.

    Nothing in it asks the host: a step can be left out and the state set back by a bool on the
    device, so that a captured step does what the count of steps demands.

    Args:
        weights: what it trains; frozen ones are left out.
        lr, weight_decay, betas: as in ``torch.optim.Adam``.
    """

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__()
        self.weights = [weight for weight in weights if weight.requires_grad]
        self._rule = torch.optim.Adam(
            self.weights, lr, betas, weight_decay=weight_decay, fused=True, capturable=True
        )
        for k, weight in enumerate(self.weights):
            self.register_buffer(f"count_{k}", torch.zeros((), device=weight.device))
            self.register_buffer(f"mean_{k}", torch.zeros_like(weight, requires_grad=False))
            self.register_buffer(f"square_{k}", torch.zeros_like(weight, requires_grad=False))
        self._link()

    def _link(self) -> None:
        for k, weight in enumerate(self.weights):
            self._rule.state[weight] = {
                "step": self.get_buffer(f"count_{k}"),
                "exp_avg": self.get_buffer(f"mean_{k}"),
                "exp_avg_sq": self.get_buffer(f"square_{k}"),
            }

    def _apply(self, fn: Any, recurse: bool = True) -> "Adam":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for k in range(len(self.weights)):  # Adam counts in float32 whatever the weights are
            self._buffers[f"count_{k}"] = self.get_buffer(f"count_{k}").float()
        self._link()
        return self

    def minimise(self, loss: Tensor, active: Tensor | None = None) -> None:
        """Make one step down ``loss``; one that is not finite leaves the weights as they were."""
        grads = torch.autograd.grad(loss, self.weights, allow_unused=True)
        finite = loss.detach().isfinite()
        self.step(grads, finite if active is None else finite & active)

    def step(self, grads: Sequence[Tensor | None], active: Tensor | None = None) -> None:
        """Make one step with these gradients, if ``active`` (a bool scalar on the device)."""
        for weight, grad in zip(self.weights, grads, strict=True):
            # A fused step walks through memory and takes both for laid out alike.
            if grad is not None and grad.stride() != weight.stride():
                grad = torch.empty_like(weight).copy_(grad)
            weight.grad = grad
        # The switch that a loss scaler uses: a step with it on changes neither weights nor state.
        rule: Any = self._rule
        rule.grad_scale, rule.found_inf = None, None if active is None else (~active).float()
        self._rule.step()
        for weight in self.weights:
            weight.grad = None

    def reset(self, when: Tensor) -> None:
        """Set the state back to the beginning where ``when``, a bool scalar on the device."""
        torch._foreach_mul_(list(self.buffers()), (~when).float())
