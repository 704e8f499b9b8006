"""Checks of a step that several tests share, and networks that are awkward for it."""

import torch
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm
from shoal.networks import Network, draw_weights
from shoal.randomness import stream
from tests.test_capture_safety import NoQuestions

from .plain import CLASSES, FEATURES, INPUTS, make_batches


def asks_nothing(algorithm: Algorithm, sizes: tuple[int, ...] = (4, 6, 5)) -> None:
    """Check that a third step reads no value on the host and keeps the address of all state."""
    for step in range(2):
        algorithm.update(make_batches(step, sizes))
    before = {key: t.data_ptr() for key, t in algorithm.state_dict(keep_vars=True).items()}
    batches = make_batches(2, sizes)
    with NoQuestions():
        algorithm.update(batches)
    assert before == {k: t.data_ptr() for k, t in algorithm.state_dict(keep_vars=True).items()}


def keeps_its_weights(algorithm: Algorithm, domain: int, sizes: tuple[int, ...]) -> None:
    """Check that a NaN in the inputs of one domain changes no weight and is reported."""
    algorithm.update(make_batches(0, sizes))
    before = [p.detach().clone() for p in algorithm.model.parameters()]
    batches = make_batches(1, sizes)
    batches[domain][0][0] = float("nan")
    terms = algorithm.update(batches)
    assert not terms["loss"].isfinite()
    for p, kept in zip(algorithm.model.parameters(), before, strict=True):
        assert torch.equal(p, kept)


class TwoBiases(nn.Module):
    """Two weights that are added: autograd gives them the same gradient tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, FEATURES)
        self.one = nn.Parameter(torch.zeros(INPUTS))
        self.two = nn.Parameter(torch.ones(INPUTS) / 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.linear(inputs * (self.one + self.two + 1)))


def two_biases() -> Network:
    linear = draw_weights(lambda: nn.Linear(INPUTS, FEATURES), stream("two biases"))
    features = TwoBiases()
    features.linear.load_state_dict(linear.state_dict())
    head = draw_weights(lambda: nn.Linear(FEATURES, CLASSES), stream("head of two biases"))
    return Network(features, head).double()


def with_batch_norm() -> Network:
    """Buffers that move: statistics in floating point and a count of batches."""

    def build() -> Network:
        features = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.BatchNorm1d(FEATURES), nn.Tanh())
        return Network(features, nn.Linear(FEATURES, CLASSES))

    return draw_weights(build, stream("with batch norm")).double()


def single_logit() -> Network:
    def build() -> Network:
        return Network(
            nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh()), nn.Linear(FEATURES, 1)
        )

    return draw_weights(build, stream("single logit")).double()
