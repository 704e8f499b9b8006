"""Networks prepared for inference give what the networks give."""

import pytest
import torch
from torch import Tensor, nn

from shoal.networks import for_data
from shoal.networks.inference import OneDnnConv2d, for_inference
from shoal.randomness import stream

INPUTS = torch.rand(3, 3, 32, 32, generator=stream("test")).contiguous(
    memory_format=torch.channels_last
)


def block(bias: bool = True, **options: object) -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=bias, **options),  # type: ignore[arg-type]
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 1, bias=False),
        nn.BatchNorm2d(8),
    )
    for module in network:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return network.eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"stride": 2, "padding": 1},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "reflect"},
        {"dilation": 2},
    ],
)
def test_batch_norms_are_folded_and_nothing_changes(options: dict[str, object]) -> None:
    network = block(**options)  # type: ignore[arg-type]
    with torch.no_grad():
        wanted = network(INPUTS)
        found = for_inference(network, lambda one: one(INPUTS))
        assert not any(isinstance(one, nn.BatchNorm2d) for one in found.modules())
        assert any(isinstance(one, OneDnnConv2d) for one in found.modules())
        torch.testing.assert_close(found(INPUTS), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(network(INPUTS), wanted, rtol=0, atol=0)  # the network stays
    assert isinstance(network[1], nn.BatchNorm2d) and not network[2].inplace


def test_a_layer_that_is_used_twice_is_not_folded() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.norm(self.shared(inputs)) + self.shared(inputs)

    network = Twice().eval()
    assert for_inference(network, lambda one: one(INPUTS)) is network


def test_a_copy_that_differs_is_not_used() -> None:
    """The output of the batch norm is needed after the activation, which must not work in place."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = block()

        def forward(self, inputs: Tensor) -> Tensor:
            before = self.layers[1](self.layers[0](inputs))
            return self.layers[2](before) + before

    network = Kept().eval()
    assert for_inference(network, lambda one: one(INPUTS)) is network


def test_a_whole_network() -> None:
    network = for_data((3, 32, 32), 5, name="wide-resnet", generator=stream("wide")).eval()
    with torch.no_grad():
        found = for_inference(network, lambda one: one(INPUTS))
        torch.testing.assert_close(found(INPUTS), network(INPUTS), rtol=1e-3, atol=1e-4)
