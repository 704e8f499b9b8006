"""The head's statistics and Fishr under torch.compile: values, gradients, state, batch sizes.

Gradients are compared, not values only: Inductor on the CPU has been seen to give right values and
gradients that are several times too large (softmax, one-hot, squares and a product).
"""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal

E, INPUTS, FEATURES, CLASSES = 3, 6, 5, 4
# Relative to the largest entry. Another order of summation changes a few units of roundoff.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def close(found: Tensor, expected: Tensor) -> bool:
    gap = (found - expected).abs().max()
    return bool(gap <= TOLERANCE[expected.dtype] * expected.abs().max())


def own_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)


Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def classes(z: Tensor, x: Tensor, y: Tensor, domains: Tensor) -> Tensor:
    return shoal.spread(shoal.head_variance(z, x, y, domains, num_domains=E))


def soft_labels(z: Tensor, x: Tensor, y: Tensor, domains: Tensor) -> Tensor:
    targets = (0.8 * F.one_hot(y, CLASSES) + 0.05).to(x.dtype)
    return shoal.spread(shoal.head_variance(z, x, targets, domains, num_domains=E))


def binary(z: Tensor, x: Tensor, y: Tensor, domains: Tensor) -> Tensor:
    return shoal.spread(shoal.head_variance(z, x[:, 0], y % 2, domains, num_domains=E))


def uncentred(z: Tensor, x: Tensor, y: Tensor, domains: Tensor) -> Tensor:
    v = shoal.head_variance(z, x, y, domains, centered=False, num_domains=E)
    return shoal.spread(v)


def biased_without_bias(z: Tensor, x: Tensor, y: Tensor, domains: Tensor) -> Tensor:
    v = shoal.head_variance(z, x, y, domains, unbiased=False, bias=False, num_domains=E)
    return shoal.spread(v)


def with_own_loss(z: Tensor, x: Tensor, y: Tensor, domains: Tensor) -> Tensor:
    return shoal.spread(shoal.head_variance(z, x, y, domains, loss=own_loss, num_domains=E))


def make_arguments(n: int, dtype: torch.dtype, seed: int = 0) -> Arguments:
    generator = torch.Generator().manual_seed(seed)
    domains = torch.randint(E, (n,), generator=generator)
    z = torch.randn(n, FEATURES, generator=generator, dtype=dtype) * (1 + domains[:, None])
    x = torch.randn(n, CLASSES, generator=generator, dtype=dtype) * 2
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return z.requires_grad_(), x.requires_grad_(), labels, domains


def value_and_gradients(function: Callable[..., Tensor], arguments: Arguments) -> list[Tensor]:
    value = function(*arguments)
    return [value.detach(), *torch.autograd.grad(value, arguments[:2])]


# Inductor covers the other variants below, and Fishr covers classes.
@pytest.mark.parametrize("function", [soft_labels, biased_without_bias])
def test_head_variance_is_one_graph(function: Callable[..., Tensor]) -> None:
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    arguments = make_arguments(24, torch.float64)
    expected = value_and_gradients(function, arguments)
    for found, one in zip(value_and_gradients(compiled, arguments), expected, strict=True):
        assert close(found, one)


@pytest.mark.parametrize(
    ("backend", "fullgraph"), [("eager", True), ("aot_eager", False)], ids=["eager", "aot_eager"]
)
def test_fishr_with_its_state(backend: str, fullgraph: bool) -> None:
    # The update of the buffers must not reach the backward, which can read them again.
    fishr, eager = (shoal.Fishr(E, 1.0, 0.9, warmup_steps=1) for _ in range(2))
    compiled = torch.compile(fishr, backend=backend, fullgraph=fullgraph, dynamic=True)
    for seed in range(3):
        arguments = make_arguments(48, torch.float64, seed)
        found = value_and_gradients(compiled, arguments)
        expected = value_and_gradients(eager, arguments)
        assert (expected[0].item() == 0) is (seed == 0)
        assert all(close(a, b) for a, b in zip(found, expected, strict=True))
        assert close(fishr.v_bar, eager.v_bar)
    assert fishr.steps.item() == 3


def test_gradient_share_is_one_graph() -> None:
    fishr, eager = (shoal.Fishr(E, 1.0, 0.9, warmup_steps=50, gradient_share=1.0) for _ in range(2))
    for module in (fishr, eager):
        module.allocate(CLASSES * (FEATURES + 1), torch.float64)
        module.steps.fill_(48)  # two calls before the end of the warm-up
    compiled = torch.compile(fishr, backend="aot_eager", fullgraph=True, dynamic=True)
    for seed in range(4):
        arguments = make_arguments(48, torch.float64, seed)
        found = value_and_gradients(compiled, arguments)
        expected = value_and_gradients(eager, arguments)
        assert (expected[0].item() == 0) is (seed < 2)
        assert all(close(a, b) for a, b in zip(found, expected, strict=True))
    assert int(fishr.ratios.isfinite().sum()) == 2
    torch.testing.assert_close(fishr.ratios, eager.ratios, equal_nan=True)


@pytest.mark.timeout(300)  # sixteen kernels, if none is in the cache
@pytest.mark.parametrize(
    ("dtype", "variants"),
    [(torch.float64, (binary, with_own_loss)), (torch.float32, (uncentred,))],
    ids=["float64", "float32"],
)
def test_head_variance_compiled_by_inductor(
    dtype: torch.dtype, variants: tuple[Callable[..., Tensor], ...]
) -> None:
    # One function for all variants, each with its own arguments, compiles in a fraction of the
    # time, and a wrong gradient still names its variant.
    def all_of_them(*arguments: Tensor) -> Tensor:
        values = [function(*arguments[4 * k : 4 * k + 4]) for k, function in enumerate(variants)]
        return torch.stack(values)

    def run(function: Callable[..., Tensor], n: int) -> tuple[Tensor, list[Tensor]]:
        many = [make_arguments(n, dtype, seed) for seed in range(len(variants))]
        values = function(*(t for one in many for t in one))
        leaves = [t for one in many for t in one[:2]]
        return values.detach(), list(torch.autograd.grad(values.sum(), leaves))

    compiled = torch.compile(all_of_them, dynamic=True, fullgraph=True)
    # Not below about 32: Inductor has other products for small matrices.
    for n in (48, 61, 40):
        # After the first, further batch sizes compile nothing.
        with torch._dynamo.config.patch(error_on_recompile=n != 48):
            values, gradients = run(compiled, n)
        expected_values, expected_gradients = run(all_of_them, n)
        for k, variant in enumerate(variants):
            name = variant.__name__
            assert close(values[k], expected_values[k]), f"{name}: value at n = {n}"
            for j, place in ((2 * k, "features"), (2 * k + 1, "logits")):
                assert expected_gradients[j].abs().max() > 0
                assert close(gradients[j], expected_gradients[j]), (
                    f"{name}: gradient in the {place} at n = {n}"
                )


class Step:
    """Loss of a small network with Fishr, to be compiled as a whole; smooth activations."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh()).to(dtype)
        self.classifier = nn.Linear(FEATURES, CLASSES).to(dtype)
        self.fishr = shoal.Fishr(E, 2.0, 0.8, warmup_steps=2, normalise=False)
        self.weights = [*self.features.parameters(), *self.classifier.parameters()]
        self.optimiser = torch.optim.SGD(self.weights, lr=0.05)
        self.loss = self.loss_of

    def loss_of(self, inputs: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        z = self.features(inputs)
        logits = self.classifier(z)
        return F.cross_entropy(logits, labels) + self.fishr(z, logits, labels, domains)

    def __call__(self, inputs: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        loss = self.loss(inputs, labels, domains)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.detach()


def make_batch(n: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    domains = torch.randint(E, (n,), generator=generator)
    inputs = torch.randn(n, INPUTS, generator=generator, dtype=dtype) * (1 + domains[:, None])
    return inputs, torch.randint(CLASSES, (n,), generator=generator), domains


def test_training_with_fishr_compiled_by_inductor() -> None:
    dtype = torch.float64
    eager, compiled = Step(dtype), Step(dtype)
    # A first call that makes the buffers is compiled on its own, as the tests above and that of two
    # threads do.
    for one in (eager, compiled):
        one.fishr.allocate(CLASSES * (FEATURES + 1), dtype)
    compiled.loss = torch.compile(compiled.loss_of, dynamic=True)
    addresses: dict[str, int] = {}
    for step, n in enumerate((48, 61, 40, 55)):
        batch = make_batch(n, dtype, step)
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            found = compiled(*batch)
        assert close(found, eager(*batch)), f"loss of step {step}"
        for a, b in zip(compiled.weights, eager.weights, strict=True):
            assert close(a.grad, b.grad), f"gradient of step {step}"
            assert close(a, b), f"weights after step {step}"
        assert close(compiled.fishr.v_bar, eager.fishr.v_bar)
        assert compiled.fishr.steps.item() == step + 1
        assert torch.equal(compiled.fishr.updates, eager.fishr.updates)
        assert compiled.fishr.active.item() is (step + 1 >= 2)
        assert not compiled.fishr.v_bar.requires_grad
        if step == 0:
            addresses = {name: b.data_ptr() for name, b in compiled.fishr.named_buffers()}
    # A captured step needs state that is written in place.
    assert addresses == {name: b.data_ptr() for name, b in compiled.fishr.named_buffers()}
    # The state of a compiled step is an ordinary one.
    other = shoal.Fishr(E, 2.0, 0.8, warmup_steps=2, normalise=False)
    other.load_state_dict(compiled.fishr.state_dict())
    assert torch.equal(other.v_bar, compiled.fishr.v_bar)


def test_values_are_not_checked_in_a_compiled_step() -> None:
    z, x, labels, domains = make_arguments(24, torch.float64)
    with torch.no_grad():
        z[0, 0] = torch.nan
    with pytest.raises(ValueError, match="features holds 1 NaN"):
        classes(z, x, labels, domains)

    def rows(*arguments: Tensor) -> Tensor:
        return shoal.head_variance(*arguments, num_domains=E)

    v = torch.compile(rows, backend="eager", dynamic=True)(z, x, labels, domains)
    assert v[domains[0]].isnan().any()


def message_while_compiling(message: str) -> str:
    """Return the message if this torch passes on an error's from a compiled step, else its own."""

    def fail() -> Tensor:
        raise RuntimeError("told")

    def step(inputs: Tensor) -> Tensor:
        return fail()  # the error shows this line, and not always the message

    with pytest.raises(Exception) as error:
        torch.compile(step, backend="eager", fullgraph=True)(torch.zeros(1))
    return message if "told" in str(error.value) else "Observed exception"


STATISTICS = [shoal.gradient_variance, shoal.gradient_mean, shoal.covariance_spread]


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda function: function.__name__)
def test_statistics_that_differentiate_twice_raise(statistic: Callable[..., Tensor]) -> None:
    model = nn.Linear(INPUTS, CLASSES).double()
    batch = make_batch(12, torch.float64, 0)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        statistic(torch.compile(model, backend="eager"), *batch)

    def step(inputs: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        return statistic(model, inputs, labels, domains, num_domains=E)

    with pytest.raises(Exception, match=message_while_compiling("differentiate twice")):
        torch.compile(step, backend="eager", fullgraph=True)(*batch)
    # If the graph can break, it breaks there, and the rest is right.
    found = value_of(torch.compile(step, backend="eager"), model, batch)
    expected = value_of(step, model, batch)
    assert all(close(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda function: function.__name__)
def test_a_statistic_of_convolutions_in_a_compiled_step(statistic: Callable[..., Tensor]) -> None:
    # A layer compiled by a backend with its own autograd cannot be differentiated twice.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Unflatten(1, (1, INPUTS)), nn.Conv1d(1, 2, 3), nn.Flatten())
    model.append(nn.Linear(2 * (INPUTS - 2), CLASSES)).double()
    batch = make_batch(12, torch.float64, 0)

    def step(inputs: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        return 2 * statistic(model, inputs + 1, labels, domains, num_domains=E)

    found = value_of(torch.compile(step, backend="aot_eager"), model, batch)
    expected = value_of(step, model, batch)
    assert all(close(a, b) for a, b in zip(found, expected, strict=True))


def value_of(step: Callable[..., Tensor], model: nn.Module, batch: tuple) -> list[Tensor]:
    value = step(*batch)
    number = shoal.spread(value) if value.ndim else value
    return [value.detach(), *torch.autograd.grad(number, list(model.parameters()))]
