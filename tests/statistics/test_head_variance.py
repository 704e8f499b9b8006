"""head_variance: Eq. 2 in a dense linear classifier, against a loop of autograd over examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import shoal
import shoal.checks
import shoal.statistics
from shoal.gradients.domains import MaskedDomains
from tests.oracles import autograd as oracle

# Unsorted, imbalanced: five, four and three examples.
DOMAINS = torch.tensor([2, 0, 1, 0, 2, 1, 0, 1, 0, 1, 0, 2])
N, C, P = len(DOMAINS), 4, 5


@pytest.fixture(params=["sorted", "masked"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both code paths: domain sizes known on the host, and ids that stay on the device."""
    if request.param == "masked":
        force_masked(monkeypatch)
    return str(request.param)


def force_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    def masked(domains: Tensor, num_domains: int | None, device: torch.device) -> Any:
        return MaskedDomains.of(domains.long(), num_domains or int(domains.max()) + 1), None

    monkeypatch.setattr(shoal.statistics.head, "_groups", masked)


@dataclass
class Head:
    """Features and a classifier with a graph, and labels."""

    features: Tensor
    weight: Tensor
    bias: Tensor
    labels: Tensor
    flat: bool = False
    loss: oracle.Loss | None = None

    @staticmethod
    def of(labels: Tensor, classes: int = C, **options: Any) -> "Head":
        torch.manual_seed(0)
        made = [torch.randn(*shape, dtype=torch.float64) for shape in ((N, P), (classes, P))]
        bias = torch.randn(classes, dtype=torch.float64)
        for tensor in (*made, bias):
            tensor.requires_grad_()
        return Head(*made, bias, labels, **options)

    @property
    def leaves(self) -> list[Tensor]:
        return [self.features, self.weight, self.bias]

    def logits(self, features: Tensor) -> Tensor:
        logits = features @ self.weight.T + self.bias
        return logits[:, 0] if self.flat else logits

    def individual_gradients(self, bias: bool = True) -> Tensor:
        weights = [self.weight, self.bias] if bias else [self.weight]
        rows = [
            oracle.gradient_of(
                oracle.loss_of_one(
                    self.logits(self.features[i : i + 1]), self.labels[i : i + 1], self.loss
                ),
                weights,
            )
            for i in range(len(self.features))
        ]
        return torch.stack(rows)

    def variance(self, domains: Tensor = DOMAINS, **options: Any) -> Tensor:
        return shoal.head_variance(
            self.features,
            self.logits(self.features),
            self.labels,
            domains,
            loss=self.loss,
            **options,
        )


def class_indices() -> Head:
    return Head.of(torch.arange(N) % C)


def soft_targets() -> Head:
    torch.manual_seed(1)
    return Head.of(torch.randn(N, C, dtype=torch.float64).softmax(1))


def soft_targets_that_do_not_sum_to_one() -> Head:
    torch.manual_seed(1)
    return Head.of(torch.rand(N, C, dtype=torch.float64))


def binary_column() -> Head:
    return Head.of(torch.arange(N) % 2, classes=1)


def binary_column_with_column_of_labels() -> Head:
    return Head.of((torch.arange(N) % 2)[:, None].double(), classes=1)


def binary_vector() -> Head:
    return Head.of(torch.arange(N) % 2 == 0, classes=1, flat=True)


def smooth_l1() -> Head:
    torch.manual_seed(2)
    targets = torch.randn(N, C, dtype=torch.float64)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.smooth_l1_loss(logits, labels, reduction="none").sum(1)

    return Head.of(targets, loss=loss)


def label_smoothing() -> Head:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.2)

    return Head.of(torch.arange(N) % C, loss=loss)


def custom_loss_of_a_vector() -> Head:
    torch.manual_seed(2)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.soft_margin_loss(logits, labels, reduction="none")

    return Head.of(torch.randn(N, dtype=torch.float64).sign(), classes=1, flat=True, loss=loss)


LOSSES = [
    class_indices,
    soft_targets,
    soft_targets_that_do_not_sum_to_one,
    binary_column,
    binary_column_with_column_of_labels,
    binary_vector,
    smooth_l1,
    label_smoothing,
    custom_loss_of_a_vector,
]
FORMS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("make", LOSSES, ids=lambda make: make.__name__)
def test_every_loss_agrees_with_the_loop(make: Callable[[], Head], path: str) -> None:
    head = make()
    truth = oracle.variance(head.individual_gradients(), DOMAINS)
    oracle.same_function(head.variance(), truth, head.leaves)


@pytest.mark.parametrize(("centered", "unbiased"), FORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_every_normalisation_agrees_with_the_loop(
    centered: bool, unbiased: bool, bias: bool, path: str
) -> None:
    head = class_indices()
    g = head.individual_gradients(bias)
    truth = oracle.variance(g, DOMAINS, None, centered, unbiased)
    ours = head.variance(centered=centered, unbiased=unbiased, bias=bias)
    assert ours.shape == (3, C * P + C * bias)
    oracle.same_function(ours, truth, head.leaves)


def test_uncentered_always_divides_by_n() -> None:
    head = class_indices()
    both = [head.variance(centered=False, unbiased=unbiased) for unbiased in (True, False)]
    assert torch.equal(*both)


def test_columns_are_the_weight_row_major_then_the_bias() -> None:
    head = class_indices()
    g = head.individual_gradients()
    of_domain = g[DOMAINS == 1]
    v = head.variance()
    torch.testing.assert_close(v[1, 2 * P + 3], of_domain[:, 2 * P + 3].var(), **oracle.VALUE)
    torch.testing.assert_close(v[1, C * P + 2], of_domain[:, C * P + 2].var(), **oracle.VALUE)
    torch.testing.assert_close(v[:, : C * P], head.variance(bias=False), **oracle.VALUE)


def test_equal_domain_sizes_agree_with_the_loop(path: str) -> None:
    head, domains = class_indices(), torch.arange(N) % 3
    truth = oracle.variance(head.individual_gradients(), domains)
    oracle.same_function(head.variance(domains), truth, head.leaves)
    in_order = domains.sort().values
    truth = oracle.variance(head.individual_gradients(), in_order)
    oracle.same_function(head.variance(in_order), truth, head.leaves)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_domain_ids_of_any_integer_type(dtype: torch.dtype, path: str) -> None:
    head = class_indices()
    ours = shoal.head_variance(
        head.features, head.logits(head.features), head.labels.to(dtype), DOMAINS.to(dtype)
    )
    torch.testing.assert_close(ours, head.variance(), **oracle.VALUE)


def test_domains_without_examples_have_rows_of_zeros(path: str) -> None:
    head = class_indices()
    v = head.variance(num_domains=6)
    assert v.shape == (6, C * P + C)
    torch.testing.assert_close(v[:3], head.variance(), **oracle.VALUE)
    assert torch.equal(v[3:], torch.zeros_like(v[3:]))


@pytest.mark.parametrize("centered", [True, False])
def test_a_domain_with_one_example_is_absent(centered: bool, path: str) -> None:
    head = class_indices()
    domains = torch.tensor([0, 3, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2])  # a single one in 3, none in 1
    truth = oracle.variance(head.individual_gradients(), domains, 5, centered)
    v = head.variance(domains, num_domains=5, centered=centered)
    oracle.same_function(v, truth, head.leaves)
    assert torch.equal(v[[1, 3, 4]], torch.zeros_like(v[[1, 3, 4]]))
    (grad,) = torch.autograd.grad(v.sum(), head.features)
    assert torch.equal(grad[1], torch.zeros(P, dtype=torch.float64))
    assert grad.isfinite().all()


def test_a_batch_without_examples_has_rows_of_zeros(path: str) -> None:
    z = torch.zeros(0, P, requires_grad=True)
    nobody = torch.zeros(0, dtype=torch.long)
    v = shoal.head_variance(z, z @ torch.randn(P, C), nobody, nobody, num_domains=2)
    assert torch.equal(v, torch.zeros(2, C * P + C))
    v.sum().backward()


def test_two_examples_give_half_the_squared_gap() -> None:
    head = class_indices()
    domains = torch.tensor([0, 1] + [2] * (N - 2))
    pair = torch.tensor([0, 0] + [1] * (N - 2))
    g = head.individual_gradients()
    v = head.variance(pair)
    torch.testing.assert_close(v[0], (g[0] - g[1]) ** 2 / 2, **oracle.VALUE)
    assert torch.equal(head.variance(domains)[:2], torch.zeros(2, v.shape[1]).double())


def test_order_of_examples_does_not_matter(path: str) -> None:
    head = class_indices()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    z = head.features
    shuffled = shoal.head_variance(
        z[order], head.logits(z)[order], head.labels[order], DOMAINS[order]
    )
    oracle.same_function(shuffled, head.variance(), head.leaves)


def test_sorted_and_masked_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    head = class_indices()
    ours = head.variance(num_domains=4)
    force_masked(monkeypatch)
    oracle.same_function(ours, head.variance(num_domains=4), head.leaves)


def test_gradcheck(path: str) -> None:
    head = class_indices()

    def function(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return Head(features, weight, bias, head.labels).variance(num_domains=4)

    assert torch.autograd.gradcheck(function, head.leaves)


def test_backward_can_be_repeated(path: str) -> None:
    head = class_indices()
    v = head.variance()
    first, second = (
        torch.autograd.grad(v.square().sum(), head.leaves, retain_graph=True) for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("centered", [True, False])
def test_a_second_derivative_is_right_or_refused(centered: bool) -> None:
    head = class_indices()
    cotangent = oracle.random_like(torch.empty(3, C * P + C).double())

    def second(v: Tensor) -> Tensor:
        (first,) = torch.autograd.grad((v * cotangent).sum(), head.features, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), head.features)
        return found

    truth = second(oracle.variance(head.individual_gradients(), DOMAINS, None, centered))
    try:
        ours = second(head.variance(centered=centered))
    except RuntimeError:
        return
    torch.testing.assert_close(ours, truth, **oracle.GRADIENT)


def test_arguments_are_not_changed() -> None:
    head = class_indices()
    logits = head.logits(head.features)
    before = [t.detach().clone() for t in (head.features, logits, head.labels, DOMAINS)]
    v = shoal.head_variance(head.features, logits, head.labels, DOMAINS)
    v.sum().backward()
    for tensor, copy in zip((head.features, logits, head.labels, DOMAINS), before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("make", [class_indices, binary_vector])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_float64_stays_and_the_rest_is_float32(
    make: Callable[[], Head], given: torch.dtype, expected: torch.dtype, path: str
) -> None:
    head = make()
    z = head.features.detach().to(given).requires_grad_()
    logits = head.logits(head.features).detach().to(given).requires_grad_()
    v = shoal.head_variance(z, logits, head.labels, DOMAINS)
    assert v.dtype == expected
    grads = torch.autograd.grad(v.sum(), [z, logits])
    assert [g.dtype for g in grads] == [given, given]
    # Only the arguments are rounded: the same rounded values in float64 give the same rows.
    exact = shoal.head_variance(z.double(), logits.double(), head.labels, DOMAINS)
    torch.testing.assert_close(v.double(), exact, rtol=1e-5, atol=1e-7)


def halves(logits: Tensor, labels: Tensor) -> Tensor:
    """ℓ = ½ ‖logits‖², so that r is the logits themselves."""
    return 0.5 * logits.square().sum(1)


@pytest.mark.parametrize("deviating", ["features", "residuals", "both"])
def test_nearly_constant_gradients_keep_their_variance_in_float32(
    deviating: str, path: str
) -> None:
    torch.manual_seed(0)
    n, scale = 40, 1e-4
    domains = torch.arange(n) % 2
    z = torch.rand(P) + 1 + scale * torch.randn(n, P)
    r = torch.rand(C) + 1 + scale * torch.randn(n, C)
    if deviating == "features":
        r = r[:1].expand(n, -1).clone()
    if deviating == "residuals":
        z = z[:1].expand(n, -1).clone()
    leaves = [z.requires_grad_(), r.requires_grad_()]
    labels = torch.zeros(n)

    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    g = torch.cat([(exact[1][:, :, None] * exact[0][:, None]).flatten(1), exact[1]], 1)
    truth = oracle.variance(g, domains)
    ours = shoal.head_variance(z, r, labels, domains, loss=halves)
    if deviating != "features":
        assert relative(ours, truth) < 1e-3
    else:  # the bias has no variance
        assert relative(ours[:, : C * P], truth[:, : C * P]) < 1e-3

    cotangent = oracle.random_like(truth) / truth.detach().mean()
    mine = torch.autograd.grad(ours, leaves, cotangent.float())
    theirs = torch.autograd.grad(truth, exact, cotangent)
    # |g| / |g − ḡ| is 1e4 here: rounding r and z to float32 alone moves g − ḡ by 6e-4 of itself.
    for a, b in zip(mine, theirs, strict=True):
        assert relative(a, b) < 5e-3

    plain = (r[:, :, None] * z[:, None]).flatten(1).detach()
    rows = [plain[domains == e] for e in (0, 1)]
    naive = torch.stack([m.square().mean(0) - m.mean(0).square() for m in rows])
    assert relative(naive, truth[:, : C * P]) > 1  # so the example is hard


def test_rounding_never_makes_a_variance_negative(path: str) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        r = torch.rand(12, 1) + 0.5
        # r and z vary and their product does not.
        v = shoal.head_variance(1 / r, r, torch.zeros(12), torch.arange(12) % 3, loss=halves)
        assert (v >= 0).all()
        assert (v[:, 0] < 1e-6).all()


def relative(ours: Tensor, truth: Tensor) -> float:
    return float((ours.detach().double() - truth.detach()).norm() / truth.detach().norm())


class Largest(TorchDispatchMode):
    """Remember the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("loss", [None, halves])
def test_no_individual_gradient_is_formed(
    centered: bool, loss: oracle.Loss | None, path: str
) -> None:
    n, classes, p = 64, 50, 300
    z = torch.randn(n, p, requires_grad=True)
    logits = torch.randn(n, classes, requires_grad=True)
    labels, domains = torch.arange(n) % classes, torch.arange(n) % 2
    with Largest() as forward:
        v = shoal.head_variance(z, logits, labels, domains, centered=centered, loss=loss)
    with Largest() as backward:
        v.sum().backward()
    assert 2 * classes * p <= forward.numel <= 4 * classes * p  # the rows, and little else
    assert 2 * classes * p <= backward.numel <= 4 * classes * p


def test_the_recorder_sees_individual_gradients_in_forward_and_backward() -> None:
    n, classes, p = 64, 50, 300
    z, r = torch.randn(n, p, requires_grad=True), torch.randn(n, classes)
    with Largest() as forward:
        v = (r[:, :, None] * z[:, None]).var(0)
    with Largest() as backward:
        v.sum().backward()
    assert min(forward.numel, backward.numel) >= n * classes * p


class AskingTheHost(TorchDispatchMode):
    """Raise at every operation that would wait for a device."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "_unique", "unique", "bincount", "is_nonzero")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(name in func.name() for name in self.FORBIDDEN):
            raise AssertionError(f"{func.name()} asks the host")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [class_indices, soft_targets, binary_vector, smooth_l1])
def test_the_device_path_and_the_spread_never_wait_for_the_host(
    make: Callable[[], Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shoal.checks, "values_visible", lambda *tensors: False)
    force_masked(monkeypatch)
    head = make()
    with AskingTheHost():
        loss = shoal.spread(head.variance(num_domains=4))
        loss.backward()
    assert head.features.grad is not None


@pytest.mark.parametrize(
    ("loss", "came"),
    [
        (F.cross_entropy, r"\[\]"),
        (lambda logits, labels: logits.square(), rf"\[{N}, {C}\]"),
        (lambda logits, labels: logits.sum(1, keepdim=True), rf"\[{N}, 1\]"),
    ],
)
def test_a_loss_must_give_one_value_per_example(loss: oracle.Loss, came: str) -> None:
    head = class_indices()
    head.loss = loss
    with pytest.raises(
        ValueError, match=rf"loss must return one value per example, \[{N}\], got shape {came}"
    ):
        head.variance()


@pytest.mark.parametrize("each", [255, 256, 257])
def test_gradients_of_small_and_large_domains(each: int) -> None:
    """Two ways to compute the same products, against autograd through individual gradients."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2 * each, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2 * each, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.randint(2, (2 * each,), generator=generator)
    c = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    v = shoal.head_variance(z, x, y, torch.arange(2).repeat_interleave(each))
    found = torch.autograd.grad((v * c).sum(), (z, x))
    r = torch.softmax(x, 1) - torch.nn.functional.one_hot(y, 2)
    g = torch.cat([(r[:, :, None] * z[:, None]).flatten(1), r], 1).view(2, each, -1)
    expected = torch.autograd.grad((g.var(1) * c).sum(), (z, x))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
