"""A captured step: the same numbers as calling it, and never a step too many."""

import pytest
import torch
from torch import Tensor, nn

from shoal.training.step import CapturedStep

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_on_a_cpu_the_step_is_called_plainly() -> None:
    called: list[str] = []
    step = CapturedStep(
        lambda: called.append("step"), lambda: called.append("undo"), torch.device("cpu")
    )
    assert called == []  # no warm-up, and so nothing to take back
    step()
    assert called == ["step"]
    step.between(lambda: called.append("change"))
    assert called == ["step", "change"]
    step.wait()
    step()
    assert called == ["step", "change", "step"]


def test_on_a_cpu_an_error_of_the_step_comes_through() -> None:
    def fail() -> None:
        raise ValueError("of the step")

    step = CapturedStep(fail, lambda: None, torch.device("cpu"))
    with pytest.raises(ValueError, match="of the step"):
        step()


class Problem:
    """A small regression with state that is reset and updated in place."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
        self.first = [p.detach().clone() for p in self.model.parameters()]
        self.inputs, self.targets = torch.randn(32, 8).cuda(), torch.randn(32, 1).cuda()
        self.weight = torch.ones((), device="cuda")
        self.calls = torch.zeros((), device="cuda")
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-2, capturable=True)

    def step(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.weight * (self.model(self.inputs) - self.targets).square().mean()
        (loss + 1e-3 * sum(p.square().sum() for p in self.model.parameters())).backward()
        self.optimiser.step()
        self.calls += 1

    def reset(self) -> None:
        with torch.no_grad():
            for parameter, first in zip(self.model.parameters(), self.first, strict=True):
                parameter.copy_(first)
        for state in self.optimiser.state.values():
            for tensor in state.values():
                tensor.zero_()
        self.weight.fill_(1.0)
        self.calls.zero_()

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


@needs_gpu
def test_replays_equal_eager_steps() -> None:
    """With a change between two of them, and no trace of the steps that warmed it up."""
    eager, captured = Problem(), Problem()
    step = CapturedStep(captured.step, captured.reset, torch.device("cuda"))
    assert captured.calls.item() == 0
    for mine, theirs in zip(captured.weights(), captured.first, strict=True):
        assert torch.equal(mine, theirs)
    for done in range(7):
        if done == 4:
            eager.weight.fill_(50.0)
            step.between(lambda: captured.weight.fill_(50.0))
        eager.step()
        step()
        if done in (0, 3, 4, 6):
            step.wait()
            torch.cuda.synchronize()
            assert captured.calls.item() == done + 1
            for mine, theirs in zip(captured.weights(), eager.weights(), strict=True):
                assert torch.equal(mine, theirs)


@needs_gpu
def test_a_replay_never_asks_the_step_again() -> None:
    called = []
    total = torch.zeros((), device="cuda")

    def step() -> None:
        called.append(None)
        total.add_(1)

    captured = CapturedStep(step, total.zero_, torch.device("cuda"))
    before = len(called)
    for _ in range(5):
        captured()
    captured.wait()
    assert len(called) == before
    assert total.item() == 5


@needs_gpu
def test_trainings_side_by_side_do_not_disturb_each_other() -> None:
    alone = Problem()
    for _ in range(20):
        alone.step()
    problems = [Problem() for _ in range(3)]
    steps = [CapturedStep(p.step, p.reset, torch.device("cuda")) for p in problems]
    for _ in range(20):
        for step in steps:
            step()
    for step in steps:
        step.wait()
    torch.cuda.synchronize()
    for problem in problems:
        for mine, theirs in zip(problem.weights(), alone.weights(), strict=True):
            assert torch.equal(mine, theirs)
