"""A whole residual network with frozen batch norm: all options give the variances of the loop."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import shoal
from shoal.gradients import collect, materialised
from shoal.gradients.materialised import moments_over
from shoal.gradients.memory import _in_two_passes, chunk_within
from shoal.gradients.vmap import individual_gradients
from shoal.internals import trace_memory
from shoal.networks.base import Dropout
from shoal.randomness import stream
from tests.oracles import autograd as oracle

E, N, CLASSES = 3, 9, 3
# In any order; one domain has a single example, so it is absent.
DOMAINS = torch.tensor([2, 0, 1, 0, 0, 2, 2, 0, 2])


class Block(nn.Module):
    """A bottleneck: 1 × 1, 3 × 3 with a stride, depthwise 3 × 3, 1 × 1, and a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for conv in (
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False),
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.Conv2d(width, outputs, 1, bias=False),
        ):
            layers += [conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers[:-1])
        self.around = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.around(x), inplace=True)


def make_network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 5, stride=2, padding=2),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Block(4, 3, 6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        Dropout(dropout, stream("dropout")),
        nn.Linear(6, CLASSES),
    ).double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            for tensor in (module.running_mean, module.bias):
                nn.init.normal_(tensor, std=0.3)
            for tensor in (module.running_var, module.weight):
                nn.init.uniform_(tensor, 0.5, 2.0)
    return model


def make_batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(N, 3, 15, 14, generator=generator, dtype=torch.float64)
    return images, torch.randint(CLASSES, (N,), generator=generator)


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable torch.func, so that it cannot hide wrong gradients of a layer."""
    monkeypatch.setattr(collect, "individual_gradients", None)


def step(rows: Tensor, losses: Tensor) -> Tensor:
    return losses.mean() + 3 * shoal.spread(rows)


def expected(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    g = oracle.individual_gradients(model, images, labels)
    return oracle.variance(g, DOMAINS), F.cross_entropy(model(images), labels, reduction="none")


def same(model: nn.Module, images: Tensor, labels: Tensor, **options: Any) -> None:
    """Assert the rows, the losses and the gradient of risk plus penalty of the loop."""
    losses, rows = shoal.losses_and_variance(model, images, labels, DOMAINS, **options)
    true_rows, true_losses = expected(model, images, labels)
    leaves = list(model.parameters())
    oracle.same_function(losses, true_losses, leaves)
    oracle.same_function(rows, true_rows, leaves)
    oracle.same_function(step(rows, losses), step(true_rows, true_losses), leaves)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_losses_rows_and_gradients_equal_the_loop(layout: str, chunk_size: int | None) -> None:
    model, (images, labels) = make_network(), make_batch()
    if layout == "channels last":
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    same(model, images, labels, chunk_size=chunk_size)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("highest", 1e-5), ("high", 0.01), ("bf16", 0.1)]
)
def test_rows_and_gradients_on_a_gpu_equal_the_loop(
    precision: str, tolerance: float, layout: str, chunk_size: int | None
) -> None:
    model, (images, labels) = make_network(), make_batch()
    true_rows, true_losses = expected(model, images, labels)
    truth = [true_rows, *torch.autograd.grad(step(true_rows, true_losses), [*model.parameters()])]
    memory = torch.channels_last if layout == "channels last" else torch.contiguous_format
    model = model.float().cuda().to(memory_format=memory)
    images = images.float().cuda().contiguous(memory_format=memory)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "highest" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "highest"
    try:
        with torch.autocast("cuda", torch.bfloat16, precision == "bf16", cache_enabled=False):
            losses, rows = shoal.losses_and_variance(
                model, images, labels.cuda(), DOMAINS, chunk_size=chunk_size
            )
        found = [rows, *torch.autograd.grad(step(rows, losses), [*model.parameters()])]
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
    for ours, true in zip(found, truth, strict=True):
        assert (ours.cpu().double() - true).norm() <= tolerance * true.norm()


@pytest.mark.parametrize("numbers", [1, 500, 2000])
def test_chunks_of_a_layer_of_any_size_equal_the_loop(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks of a layer's gradients end in the middle of domains, down to one example each.
    monkeypatch.setattr(materialised, "BUDGET", numbers)
    same(make_network(), *make_batch())


def test_gradients_reach_the_images() -> None:
    model, (images, labels) = make_network(), make_batch()
    for chunk_size in (None, 2):
        leaf = images.clone().requires_grad_()
        losses, rows = shoal.losses_and_variance(
            model, leaf, labels, DOMAINS, chunk_size=chunk_size
        )
        true_rows, true_losses = expected(model, leaf, labels)
        oracle.same_function(step(rows, losses), step(true_rows, true_losses), [leaf])


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_variances_alone_are_the_same(chunk_size: int | None) -> None:
    model, (images, labels) = make_network(), make_batch()
    rows = shoal.gradient_variance(model, images, labels, DOMAINS, chunk_size=chunk_size)
    oracle.same_function(rows, expected(model, images, labels)[0], list(model.parameters()))


def test_one_pass_over_a_domains_gradients_gives_its_moments() -> None:
    """The code path of a GPU, called directly."""
    g = torch.randn(5, 7, dtype=torch.float64) + 10
    variance, mean = torch.var_mean(g, 0, correction=0)
    ours = moments_over(g.clone(), 0, centered=True)
    torch.testing.assert_close((mean, variance * 5), ours)


def test_draws_of_a_network_are_repeated_in_the_second_pass() -> None:
    """The gradient must use the masks that the value was computed with."""
    images, labels = make_batch()
    model = make_network(dropout=0.5)
    count = model[7].draws.count

    def ours() -> Tensor:
        count.fill_(5)
        losses, rows = shoal.losses_and_variance(model, images, labels, DOMAINS, chunk_size=4)
        return step(rows, losses)

    exact, differences = oracle.directional(ours, list(model.parameters()))
    assert exact == pytest.approx(differences, **oracle.DIFFERENCES)
    ours().backward()
    assert int(count) == 5 + 1  # as after a whole batch


@pytest.mark.parametrize("function", [shoal.gradient_variance, shoal.gradient_mean])
@pytest.mark.parametrize("kind", ["torch's", "its own"])
def test_chunks_have_the_masks_of_the_whole(kind: str, function: Any) -> None:
    images, labels = make_batch()
    model = make_network(dropout=0.5 if kind == "its own" else 0.0)
    if kind == "torch's":
        model[6] = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))
    found = []
    for chunk_size in (None, 4, 2):
        torch.manual_seed(7)
        model[7].draws.count.fill_(5)
        rows = function(model, images, labels, DOMAINS, chunk_size=chunk_size)
        gradients = torch.autograd.grad(shoal.spread(rows), list(model.parameters()))
        found.append([rows, *gradients, model[7].draws.count.clone(), torch.get_rng_state()])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return a list that collects every chunk size chosen for a memory budget."""
    found: list[int | None] = []

    def noting(*arguments: Any) -> int | None:
        found.append(chunk_within(*arguments))
        return found[-1]

    monkeypatch.setattr("shoal.statistics.network.chunk_within", noting)
    return found


def peaked() -> nn.Module:
    """Return a network whose memory peaks in weights for few examples, in activations for many."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3), nn.ReLU())
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 300), nn.ReLU()])
    return model.append(nn.Linear(300, CLASSES)).double()


@pytest.mark.parametrize("make", [make_network, peaked])
@pytest.mark.parametrize("sizes", [(9,), (3, 3, 3), (5, 0, 1, 3)])
def test_a_step_stays_within_its_budget(
    make: Callable[[], nn.Module], sizes: tuple[int, ...], chosen: list[int | None]
) -> None:
    model, (images, labels) = make(), make_batch()
    domains = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    memory, chunks = 10**9, []
    with pytest.raises(ValueError, match=r"is too little .* at least [\d,]+ bytes") as error:
        while True:  # less and less, always less than the step before took
            options = {"num_domains": len(sizes), "memory": memory}
            shoal.losses_and_variance(model, images, labels, domains, **options)  # tries it
            with trace_memory() as living:
                losses, rows = shoal.losses_and_variance(model, images, labels, domains, **options)
                step(rows, losses).backward()
            # Not counted: the step's own tensors, and torch's random state before each chunk.
            beside = 4 * rows.nbytes + 9 * torch.get_rng_state().nbytes
            assert living.peak <= memory + beside
            chunks += chosen[-1:]
            memory = int(0.8 * living.peak)
    assert chunks[0] is None and None not in chunks[1:]
    assert chunks[1:] == sorted(chunks[1:], reverse=True)
    enough = int(str(error.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    shoal.gradient_variance(model, images, labels, domains, num_domains=len(sizes), memory=enough)
    assert chosen[-1] == 1


def test_a_budget_gives_the_results_of_the_loop(chosen: list[int | None]) -> None:
    model, (images, labels) = make_network(), make_batch()
    for memory in (10**9, 330_000, 220_000):
        same(model, images, labels, memory=memory)
    assert chosen[0] is None and len(set(chosen)) == 3


def test_a_budget_is_measured_once_and_draws_nothing() -> None:
    images, labels = make_batch()
    plain = shoal.gradient_variance(make_network(0.5), images, labels, DOMAINS)
    model = make_network(0.5)
    with trace_memory() as first:
        rows = shoal.gradient_variance(model, images, labels, DOMAINS, memory=10**9)
    torch.testing.assert_close(rows, plain)
    with trace_memory() as second:
        shoal.gradient_variance(model, images, labels, DOMAINS, memory=10**9)
    assert len(second.trace) < len(first.trace) / 3


def test_sizes_that_ran_out_of_memory_are_not_tried_again(
    chosen: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (images, labels) = make_network(), make_batch()
    tried = []

    def at_once(job: Any) -> None:
        tried.append(None)
        if len(job.examples) > 2:
            raise torch.OutOfMemoryError("made up")

    def in_two_passes(job: Any) -> None:
        tried.append(job.chunk_size)
        if job.chunk_size > 4:
            raise torch.OutOfMemoryError("made up")
        _in_two_passes(job)

    monkeypatch.setattr("shoal.gradients.memory._at_once", at_once)
    monkeypatch.setattr("shoal.gradients.memory._in_two_passes", in_two_passes)
    for _ in range(2):
        rows = shoal.gradient_variance(model, images, labels, DOMAINS, memory=10**9)
        torch.testing.assert_close(rows, expected(model, images, labels)[0])
    assert chosen[0] == chosen[1] and chosen[0] in (3, 4)
    assert len(tried) == len(set(tried)) + 2  # at once with one, two and all


def test_memory_and_chunk_size_exclude_each_other() -> None:
    images, labels = make_batch()
    with pytest.raises(ValueError, match="give chunk_size or memory"):
        shoal.gradient_variance(make_network(), images, labels, DOMAINS, chunk_size=2, memory=10**9)


class Rounding(TorchDispatchMode):
    """Products as on tensor cores: ten bits of each factor, cut off or rounded by the kernel."""

    CUT = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)
    ROUNDED = (torch.ops.aten.bmm, torch.ops.aten.mm, torch.ops.aten.addmm)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet in self.CUT + self.ROUNDED:
            half = 0 if packet in self.CUT else 2**12
            args = tuple(ten_bits(a, half) if isinstance(a, Tensor) else a for a in args)
        return func(*args, **(kwargs or {}))


def ten_bits(x: Tensor, half: int) -> Tensor:
    bits = x.contiguous().view(torch.int32) + half
    return (bits & ~(2**13 - 1)).view(torch.float32)


@pytest.mark.parametrize("known", [True, False])
def test_rounded_products_do_not_fail_the_check_of_layers(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits that a kernel cuts off must not look like a weight that its layer misses."""
    monkeypatch.setattr(collect, "individual_gradients", individual_gradients)
    monkeypatch.setattr(collect, "rounding", lambda _: "tf32" if known else None)
    torch.manual_seed(0)
    blocks = [Block(8, 8, 8) for _ in range(3)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(8, CLASSES)).eval()
    # Nearly the same image many times: the gradients add up, and so do their errors.
    images = torch.randn(1, 3, 32, 32) + 0.1 * torch.randn(32, 3, 32, 32)
    labels, domains = torch.zeros(32, dtype=torch.long), torch.arange(32) % 2
    with warnings.catch_warnings(record=True) as told, Rounding():
        warnings.simplefilter("always")
        for _ in range(4):
            shoal.gradient_variance(model, images, labels, domains)
    assert known == (not told)
