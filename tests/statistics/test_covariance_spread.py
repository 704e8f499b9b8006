"""covariance_spread: the spread of full gradient covariances, against P × P matrices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
import shoal.statistics
from shoal.gradients import gram
from tests.oracles import autograd as oracle

# Unsorted, imbalanced: three, four and two examples.
DOMAINS = torch.tensor([1, 0, 2, 1, 0, 1, 2, 1, 0])
N, C = len(DOMAINS), 3
LABELS = torch.arange(N) % C


@pytest.fixture(params=["dense", "gram", "gram by 2", "gram by 100"])
def chunk_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """All code paths: dense C_e, and one, several or more than enough Gram blocks per pair."""
    if request.param == "dense":
        return None
    monkeypatch.setattr(shoal.statistics.network, "DENSE", 0)
    return {"gram": None, "gram by 2": 2, "gram by 100": 100}[request.param]


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, *shape, generator=generator, dtype=torch.float64)


def mlp() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, C)), normal(4)


def cnn() -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(2, 3, 2), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, C)]
    return nn.Sequential(*layers), normal(2, 3, 3)


def embedded() -> tuple[nn.Module, Tensor]:
    tokens = torch.randint(5, (N, 3), generator=torch.Generator().manual_seed(1))
    return nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, C)), tokens


def without_rules() -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(4, 3), nn.PReLU(3), nn.Linear(3, 3), nn.PReLU(3), nn.Linear(3, C)]
    return nn.Sequential(*layers), normal(4)


def scalar_inputs_and_no_bias() -> tuple[nn.Module, Tensor]:
    # Weight and bias of the first layer have the same size; the last has no bias.
    return nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, C, bias=False)), normal(1)


Make = Callable[[], tuple[nn.Module, Tensor]]
MAKES = [mlp, cnn, embedded, without_rules, scalar_inputs_and_no_bias]


def build(make: Make) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, its inputs and its individual gradients."""
    torch.manual_seed(0)
    model, inputs = make()
    model.double()
    return model, inputs, oracle.individual_gradients(model, inputs, LABELS)


def named(make: Make) -> str:
    return make.__name__


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("make", MAKES, ids=named)
def test_agrees_with_the_loop_and_with_finite_differences(
    make: Make, unbiased: bool, chunk_size: int | None
) -> None:
    model, x, g = build(make)
    leaves = list(model.parameters())
    truth = oracle.spread(oracle.covariances(g, DOMAINS, unbiased))

    def ours() -> Tensor:
        return shoal.covariance_spread(
            model, x, LABELS, DOMAINS, unbiased=unbiased, chunk_size=chunk_size
        )

    oracle.same_function(ours(), truth, leaves)
    exact, differences = oracle.directional(ours, leaves)
    assert exact == pytest.approx(differences, **oracle.DIFFERENCES)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("make", MAKES, ids=named)
def test_blocks_are_per_weight_tensor_and_divided_by_its_size(
    make: Make, unbiased: bool, chunk_size: int | None
) -> None:
    model, x, g = build(make)
    leaves = list(model.parameters())
    columns = g.split([p.numel() for p in leaves], 1)
    truth = sum(
        oracle.spread([c / part.shape[1] for c in oracle.covariances(part, DOMAINS, unbiased)])
        for part in columns
    )
    ours = shoal.covariance_spread(
        model, x, LABELS, DOMAINS, blocks=True, unbiased=unbiased, chunk_size=chunk_size
    )
    oracle.same_function(ours, truth, leaves)


def test_two_domains_give_a_quarter_of_the_squared_distance(chunk_size: int | None) -> None:
    model, x, g = build(mlp)
    domains = torch.arange(N) % 2
    a, b = oracle.covariances(g, domains)
    ours = shoal.covariance_spread(model, x, LABELS, domains, chunk_size=chunk_size)
    oracle.same_function(ours, (a - b).square().sum() / 4, list(model.parameters()))


def test_absent_domains_take_no_part(chunk_size: int | None) -> None:
    model, x, g = build(mlp)
    domains = torch.tensor([2, 0, 2, 2, 0, 3, 2, 0, 2])  # none in 1 and 4, a single one in 3
    truth = oracle.spread(oracle.covariances(g, domains))
    ours = shoal.covariance_spread(model, x, LABELS, domains, num_domains=5, chunk_size=chunk_size)
    oracle.same_function(ours, truth, list(model.parameters()))


@pytest.mark.parametrize("blocks", [True, False])
def test_fewer_than_two_domains_give_zero_with_a_graph(
    blocks: bool, chunk_size: int | None
) -> None:
    model, x, _ = build(mlp)
    alone = torch.tensor([0] * (N - 1) + [1])
    for domains in (torch.zeros_like(DOMAINS), alone):
        value = shoal.covariance_spread(
            model, x, LABELS, domains, blocks=blocks, chunk_size=chunk_size
        )
        assert value == 0
        model.zero_grad()
        value.backward()
        for p in model.parameters():
            assert p.grad is None or torch.equal(p.grad, torch.zeros_like(p))


@pytest.mark.parametrize(("parameters", "places"), [("2", [2, 3]), (["0.weight"], [0])])
def test_parameters_choose_columns(
    parameters: Any, places: list[int], chunk_size: int | None
) -> None:
    model, x, _ = build(mlp)
    weights = list(model.parameters())
    g = oracle.individual_gradients(model, x, LABELS, [weights[k] for k in places])
    ours = shoal.covariance_spread(model, x, LABELS, DOMAINS, parameters, chunk_size=chunk_size)
    oracle.same_function(ours, oracle.spread(oracle.covariances(g, DOMAINS)), weights)


def test_a_custom_loss(chunk_size: int | None) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.smooth_l1_loss(logits, labels, reduction="none").sum(1)

    model, x, _ = build(mlp)
    targets = normal(C)
    g = oracle.individual_gradients(model, x, targets, loss=loss)
    ours = shoal.covariance_spread(model, x, targets, DOMAINS, loss=loss, chunk_size=chunk_size)
    truth = oracle.spread(oracle.covariances(g, DOMAINS))
    oracle.same_function(ours, truth, list(model.parameters()))


def test_gradient_in_inputs_that_require_it(chunk_size: int | None) -> None:
    model, x, _ = build(mlp)
    x.requires_grad_()
    g = oracle.individual_gradients(model, x, LABELS)
    truth = oracle.spread(oracle.covariances(g, DOMAINS))
    ours = shoal.covariance_spread(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
    oracle.same_function(ours, truth, [x, *model.parameters()])


def test_the_gradient_scales_with_its_cotangent(chunk_size: int | None) -> None:
    model, x, _ = build(mlp)
    weight = model[0].weight
    value = shoal.covariance_spread(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
    (plain,) = torch.autograd.grad(value, weight, retain_graph=True)
    (times_three,) = torch.autograd.grad(3 * value, weight)
    torch.testing.assert_close(times_three, 3 * plain, **oracle.GRADIENT)


def test_without_grad_no_graph_is_left(chunk_size: int | None) -> None:
    for make in MAKES:
        model, x, g = build(make)
        with torch.no_grad():
            value = shoal.covariance_spread(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
        assert not value.requires_grad
        truth = oracle.spread(oracle.covariances(g, DOMAINS))
        torch.testing.assert_close(value, truth.detach(), **oracle.VALUE)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_float64_stays_and_the_rest_is_float32(
    given: torch.dtype, expected: torch.dtype, chunk_size: int | None
) -> None:
    model, x, _ = build(mlp)
    model.to(given)
    value = shoal.covariance_spread(model, x.to(given), LABELS, DOMAINS, chunk_size=chunk_size)
    assert value.dtype == expected
    assert value.shape == ()
    value.backward()
    assert all(p.grad.dtype == given for p in model.parameters())


def test_a_second_derivative_is_right_or_refused(chunk_size: int | None) -> None:
    model, x, g = build(mlp)
    weight = model[2].weight

    def second(value: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(value.square(), weight, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), weight)
        return found

    truth = second(oracle.spread(oracle.covariances(g, DOMAINS)))
    try:
        ours = second(shoal.covariance_spread(model, x, LABELS, DOMAINS, chunk_size=chunk_size))
    except RuntimeError:
        return
    torch.testing.assert_close(ours, truth, **oracle.GRADIENT)


def large_mean(scale: float) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """Two domains whose gradients have a large common mean, float32; ``scale`` apart."""
    torch.manual_seed(0)
    n = 40
    x = torch.randn(n, 6) + 3
    x = torch.cat([x, x * (1 + scale)])
    labels = torch.zeros(2 * n, dtype=torch.long)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, C))
    return model, x, labels, torch.arange(2 * n) // n


def in_float64(model: nn.Module, x: Tensor, labels: Tensor, domains: Tensor) -> list[Tensor]:
    exact = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, C)).double()
    exact.load_state_dict(model.state_dict())
    g = oracle.individual_gradients(exact, x.double(), labels)
    return [c.detach() for c in oracle.covariances(g, domains)]


@pytest.mark.parametrize("scale", [0.0, 1e-5])
def test_domains_that_nearly_agree_stay_within_the_stated_floor(
    scale: float, chunk_size: int | None
) -> None:
    model, x, labels, domains = large_mean(scale)
    matrices = in_float64(model, x, labels, domains)
    floor = 1e-7 * float(sum(c.square().sum() for c in matrices) / 2)
    truth = float(oracle.spread(matrices))
    assert truth < floor  # so the terms cancel completely
    ours = shoal.covariance_spread(model, x, labels, domains, chunk_size=chunk_size)
    assert abs(float(ours.detach()) - truth) < 2 * floor


def test_a_large_common_mean_costs_no_accuracy_in_float32(chunk_size: int | None) -> None:
    model, x, labels, domains = large_mean(0.5)
    truth = float(oracle.spread(in_float64(model, x, labels, domains)))
    ours = shoal.covariance_spread(model, x, labels, domains, chunk_size=chunk_size)
    assert float(ours.detach()) == pytest.approx(truth, rel=1e-4)


class Watching:
    """A linear layer's Gram block that records the precision it runs under."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.entry = gram.block_of

    def __call__(self, *args: Any) -> Tensor:
        self.seen.append(torch.get_float32_matmul_precision())
        return self.entry(*args)


@pytest.fixture
def reduced_precision() -> Any:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def test_reduced_precision_products_are_disabled_inside_and_restored_after(
    reduced_precision: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching()
    monkeypatch.setattr(gram, "block_of", watching)
    monkeypatch.setattr(shoal.statistics.network, "DENSE", 0)
    model, x, _ = build(mlp)
    model.float()
    value = shoal.covariance_spread(model, x.float(), LABELS, DOMAINS)
    assert set(watching.seen) == {"highest"}
    assert torch.get_float32_matmul_precision() == "high"
    value.backward()
    assert torch.get_float32_matmul_precision() == "high"


def test_precision_is_restored_after_an_error(
    reduced_precision: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(gram, "block_of", broken)
    monkeypatch.setattr(shoal.statistics.network, "DENSE", 0)
    model, x, _ = build(mlp)
    with pytest.raises(MemoryError):
        shoal.covariance_spread(model, x, LABELS, DOMAINS)
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("blocks", [False, True])
def test_weights_that_the_loss_ignores_have_no_spread(blocks: bool) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    arguments = (Half().double(), normal(4), torch.arange(N) % 3, torch.arange(N) % 2)
    assert shoal.covariance_spread(*arguments, parameters="unused", blocks=blocks).item() == 0
