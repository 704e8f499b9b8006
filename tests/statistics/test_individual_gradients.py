"""gradient_norms, fisher_diagonal, gradient_noise_scale, gradient_similarity: against loops."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from shoal.gradients import layers, materialised, streaming
from shoal.internals import trace_memory
from shoal.networks.resnets import resnet
from tests.oracles import autograd as oracle
from tests.statistics.test_gradient_variance import (
    CASES,
    DOMAINS,
    LABELS,
    Case,
    N,
    Positions,
    SequenceFirst,
    build,
    normal,
)

C = 3


def flat(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in found.values()])


class Vit(nn.Module):
    """A class token, positions, attention and an MLP; the tokens' means and a tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 6, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.positions = nn.Parameter(torch.randn(1, 5, 6) / 5)
        self.before, self.after = nn.LayerNorm(6), nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))
        self.words = nn.Embedding(C, 6)
        self.head = nn.Linear(6, C, bias=False)
        self.head.weight = self.words.weight

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.after(x))
        return self.head(x[:, 0] + self.words(words).mean(1))


def vit() -> Case:
    words = torch.arange(2 * N).reshape(N, 2) % C
    return Case(Vit(), (normal(2, 4, 4), words), rules=False)


def small_resnet() -> Case:
    """Train a part only: the oracle is a loop, and there are 11 million weights."""
    model = resnet(18, 3, C, generator=torch.Generator().manual_seed(0)).eval()
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    model.requires_grad_(False)
    for module in (*convolutions[:4], *norms, model.classifier):
        module.requires_grad_()
    return Case(model, normal(3, 32, 32))


def frozen_weights() -> Case:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, C))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return Case(model, normal(4))


def late_layers() -> Case:
    """Convolutions with few positions and many channels: products of positions are cheaper."""
    first, second = nn.Conv2d(2, 16, 2), nn.Conv2d(16, 24, 2, groups=2)
    return Case(
        nn.Sequential(first, nn.Tanh(), second, nn.Flatten(), nn.Linear(24, C)), normal(2, 3, 3)
    )


EVERY = [*CASES, vit, small_resnet, frozen_weights, late_layers]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def on(device: str, case: Case) -> tuple[Case, Tensor]:
    """Return a case and its labels on a device, whose kernels can ask for other arguments."""
    many = isinstance(case.inputs, tuple)
    inputs: Any = tuple(t.to(device) for t in case.inputs) if many else case.inputs.to(device)
    return replace(case, model=case.model.to(device), inputs=inputs), LABELS.to(device)


@pytest.mark.filterwarnings("ignore:.*torch.func.*:RuntimeWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
def test_every_layer_agrees_with_a_loop(
    make: Callable[[], Case], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and "weight_norm" in make.__name__:
        pytest.skip("no GPU has this to 1e-9: torch's weight norm there is off by 1e-8")
    case, labels = on(device, build(make))
    if case.rules:  # otherwise the fallback would hide a wrong rule
        monkeypatch.setattr(shoal.gradients.collect, "individual_gradients", None)
        monkeypatch.setattr(streaming, "individual_gradients", None)
    g = oracle.individual_gradients(case.model, case.inputs, labels).detach()
    trainable = {name: p for name, p in case.model.named_parameters() if p.requires_grad}
    pieces = dict(zip(trainable, g.split([p.numel() for p in trainable.values()], 1), strict=True))
    norms = {name.rpartition(".")[0]: g.new_zeros(N) for name in pieces}
    for name, piece in pieces.items():
        norms[name.rpartition(".")[0]] += piece.square().sum(1)
    for chunk_size in (None, 3):
        options: Any = {"chunk_size": chunk_size}
        ours = shoal.gradient_norms(case.model, case.inputs, labels, **options)
        torch.testing.assert_close(ours, g.norm(dim=1), **oracle.VALUE)
        found = shoal.gradient_norms(case.model, case.inputs, labels, by_layer=True, **options)
        assert list(found) == list(norms)
        for layer, one in found.items():
            torch.testing.assert_close(one, norms[layer].sqrt(), rtol=1e-8, atol=1e-9)
        fisher = shoal.fisher_diagonal(case.model, case.inputs, labels, **options)
        assert {name: f.shape for name, f in fisher.items()} == {
            name: p.shape for name, p in trainable.items()
        }
        torch.testing.assert_close(flat(fisher), g.square().mean(0), **oracle.VALUE)
        scale = shoal.gradient_noise_scale(case.model, case.inputs, labels, **options)
        torch.testing.assert_close(scale.trace, g.var(0).sum(), **oracle.VALUE)
        torch.testing.assert_close(
            scale.squared_norm, g.mean(0).square().sum() - g.var(0).sum() / N, **oracle.VALUE
        )


@pytest.mark.parametrize("cheaper", [True, False])
@pytest.mark.parametrize(
    "make", [make for make in CASES if "conv" in make.__name__ or "sequences" in make.__name__]
)
def test_norms_by_products_of_positions_and_by_gradients(
    make: Callable[[], Case], cheaper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = build(make)
    for module in (materialised, layers, shoal.gradients.convolutions):
        monkeypatch.setattr(module, "gram_is_cheaper", lambda *_: cheaper)
    g = oracle.individual_gradients(case.model, case.inputs, LABELS).detach()
    ours = shoal.gradient_norms(case.model, case.inputs, LABELS)
    torch.testing.assert_close(ours, g.norm(dim=1), **oracle.VALUE)


def test_the_cheaper_form_of_a_norm() -> None:
    """A ResNet's stem and first stage form gradients; its last stage multiplies positions."""
    assert not materialised.gram_is_cheaper(112 * 112, 64 * 147, 64 + 147)
    assert not materialised.gram_is_cheaper(56 * 56, 64 * 576, 64 + 576)
    assert materialised.gram_is_cheaper(7 * 7, 512 * 4608, 512 + 4608)
    assert materialised.gram_is_cheaper(197, 1536 * 384, 1536 + 384)


def test_class_tokens_and_positions_take_no_torch_func(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build(vit)
    case.model.attention = Mixed()
    case.model.double()
    monkeypatch.setattr(streaming, "individual_gradients", None)
    g = oracle.individual_gradients(case.model, case.inputs, LABELS).detach()
    ours = shoal.gradient_norms(case.model, case.inputs, LABELS)
    torch.testing.assert_close(ours, g.norm(dim=1), **oracle.VALUE)


class Mixed(nn.Module):
    """Attention made of linear layers, as timm has it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x: Tensor, *_: Tensor, need_weights: bool) -> tuple[Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (self.out(F.scaled_dot_product_attention(q, k, v)),)


class Shared(nn.Module):
    """Weights of shape [1, ...] that a copy for each example would change the meaning of."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Parameter(torch.randn(1, 4))
        self.row = nn.Parameter(torch.randn(1, 4))
        self.matrix = nn.Parameter(torch.randn(1, 4))
        self.shift = nn.Parameter(torch.randn(1, 4))
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.total.sum() + self.row[0] + (x @ self.matrix.mT).sum(1, keepdim=True)
        return self.classifier(torch.tanh(x + self.shift))


def test_copies_are_used_only_where_they_mean_the_same() -> None:
    torch.manual_seed(0)
    model = Shared().double()
    x = normal(4)
    g = oracle.individual_gradients(model, x, LABELS).detach()
    ours = shoal.gradient_norms(model, x, LABELS)
    torch.testing.assert_close(ours, g.norm(dim=1), **oracle.VALUE)
    (check,) = streaming._checks[model].values()
    assert check.routes.copied == ("shift",)
    assert check.routes.rest == ("total", "row", "matrix")


@pytest.mark.filterwarnings("ignore:.*torch.func.*:RuntimeWarning")
@pytest.mark.parametrize("kind", ["linear", "sequence first", "positions", "copies"])
def test_routes_found_on_a_few_examples_hold_for_many(kind: str) -> None:
    """More examples than are verified; sequences as long as those few, so no shape tells them."""
    torch.manual_seed(0)
    n, t = 20, streaming.FEW
    models = {
        "linear": lambda: nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(4 * t, C)),
        "sequence first": SequenceFirst,
        "positions": Positions,
        "copies": lambda: nn.Sequential(Copied(), nn.Flatten(), nn.Linear(4 * t, C)),
    }
    model = models[kind]().double()
    x = torch.randn(n, t, 4, dtype=torch.float64)
    labels = torch.arange(n) % C
    g = oracle.individual_gradients(model, x, labels).detach()
    for chunk_size in (None, 7):
        ours = shoal.gradient_norms(model, x, labels, chunk_size=chunk_size)
        torch.testing.assert_close(ours, g.norm(dim=1), **oracle.VALUE)


class Copied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(1, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.shift)


def mlp(outputs: int = C) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def fisher_by_hand(model: nn.Module, x: Tensor) -> Tensor:
    """Return 1/n Σ_i Σ_y p(y|x_i) (∂ log p(y|x_i))², one gradient after the other."""
    weights = list(model.parameters())
    total = torch.zeros(sum(w.numel() for w in weights), dtype=torch.float64)
    for i in range(len(x)):
        logits = model(x[i : i + 1])[0]
        if logits.numel() == 1:
            logits = torch.cat([torch.zeros(1, dtype=logits.dtype), logits])
        log_p = logits - logits.exp().sum().log()
        for y in range(len(log_p)):
            g = oracle.gradient_of(log_p[y], weights).detach()
            total += log_p[y].detach().exp() * g.square()
    return total / len(x)


@pytest.mark.parametrize("chunk_size", [None, 1, 4])
@pytest.mark.parametrize("outputs", [C, 1])
def test_the_fisher_matrix_of_the_models_own_labels(outputs: int, chunk_size: int | None) -> None:
    model, x = mlp(outputs), normal(4)
    found = shoal.fisher_diagonal(model, x, chunk_size=chunk_size)
    torch.testing.assert_close(flat(found), fisher_by_hand(model, x), **oracle.VALUE)


@pytest.mark.filterwarnings("ignore:.*torch.func.*:RuntimeWarning")
@pytest.mark.parametrize("make", ["called_twice", "multihead_attention", "conv2d"])
def test_the_exact_fisher_matrix_runs_several_backwards(make: str) -> None:
    case = build(next(case for case in CASES if case.__name__ == make))
    found = shoal.fisher_diagonal(case.model, case.inputs, chunk_size=3)
    expected = fisher_by_hand(case.model, case.inputs)
    torch.testing.assert_close(flat(found), expected, **oracle.VALUE)


def test_sampled_labels() -> None:
    """Labels follow the generator and not the chunks; many of them give the Fisher matrix."""
    model, x = mlp(), normal(4)

    def drawn(samples: int, chunk_size: int | None, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        options: Any = {"samples": samples, "generator": generator, "chunk_size": chunk_size}
        return flat(shoal.fisher_diagonal(model, x, **options))

    torch.testing.assert_close(drawn(2, None), drawn(2, 3), **oracle.VALUE)
    assert not torch.equal(drawn(2, None), drawn(2, None, seed=1))
    exact = fisher_by_hand(model, x)
    few, many = ((drawn(k, None) - exact).norm() / exact.norm() for k in (4, 400))
    assert many < 0.05 < few


def test_labels_at_follow_the_distribution() -> None:
    numbers = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    logits = torch.tensor([0.2, 0.5, 0.3]).log().expand(1000, 3)
    found = shoal.statistics.individual.labels_at(logits, numbers)
    assert torch.bincount(found).tolist() == [200, 500, 300]
    assert shoal.statistics.individual.labels_at(logits[:1], torch.ones(1)).tolist() == [2]
    one = shoal.statistics.individual.labels_at(torch.full((1000,), 0.25).logit(), numbers)
    assert int(one.sum()) == 250


def test_elastic_weight_consolidation_needs_squares_of_single_gradients() -> None:
    """At a minimum the batch's gradient vanishes, and its square with it; the mean square stays."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2, dtype=torch.float64)
    # Every point has both labels, so that no weights are perfect.
    x, labels = normal(2).repeat(3, 1), (torch.arange(3 * N) % 2)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=100, tolerance_grad=1e-12)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    fisher = flat(shoal.fisher_diagonal(model, x, labels))
    squared = torch.cat([p.grad.flatten() for p in model.parameters()]).square()
    assert squared.max() < 1e-6 * fisher.min()
    g = oracle.individual_gradients(model, x, labels).detach()
    torch.testing.assert_close(fisher, g.square().mean(0), **oracle.VALUE)


def test_the_noise_scale_in_numpy() -> None:
    model, x = mlp(), normal(4)
    labels = torch.zeros_like(LABELS)  # their gradients agree, so that |G|² is positive
    found = shoal.gradient_noise_scale(model, x, labels)
    g = oracle.individual_gradients(model, x, labels).detach().numpy()
    trace = np.trace(np.cov(g, rowvar=False))
    squared_norm = (g.mean(0) ** 2).sum() - trace / N
    assert float(found.trace) == pytest.approx(trace, rel=1e-10)
    assert float(found.squared_norm) == pytest.approx(squared_norm, rel=1e-10)
    assert float(found.scale) == pytest.approx(trace / squared_norm, rel=1e-10)


def test_the_estimates_of_the_noise_scale_are_unbiased() -> None:
    """Their means over all pairs of examples are those of the population of examples."""
    model, x = mlp(), normal(4)
    g = oracle.individual_gradients(model, x, LABELS).detach()
    pairs = [(i, j) for i in range(N) for j in range(N)]
    found = [
        shoal.gradient_noise_scale(model, x[[i, j]], LABELS[[i, j]], chunk_size=2) for i, j in pairs
    ]
    trace = torch.stack([one.trace for one in found]).mean()
    squared_norm = torch.stack([one.squared_norm for one in found]).mean()
    torch.testing.assert_close(trace, g.var(0, correction=0).sum(), **oracle.VALUE)
    torch.testing.assert_close(squared_norm, g.mean(0).square().sum(), **oracle.VALUE)


def test_a_gradient_hidden_by_noise_has_an_infinite_scale() -> None:
    model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    model.weight.data.zero_()
    x = torch.ones(2, 1, dtype=torch.float64)
    found = shoal.gradient_noise_scale(model, x, torch.tensor([0, 1]))
    assert found.squared_norm < 0
    assert found.scale == torch.inf


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_similarity_of_domains(chunk_size: int | None) -> None:
    case = build(CASES[6])  # a convolution
    leaves = list(case.model.parameters())
    # Domain 2 has one example, and is absent.
    domains = DOMAINS.clone()
    domains[4] = 2
    g = oracle.mean(oracle.individual_gradients(case.model, case.inputs, LABELS), domains)
    unit = g / g.norm(dim=1, keepdim=True).clamp(min=1e-30)
    args = (case.model, case.inputs, LABELS, domains)
    options: Any = {"chunk_size": chunk_size}
    ours = shoal.gradient_similarity(*args, **options)
    assert ours[2].tolist() == [0, 0, 0]
    torch.testing.assert_close(ours.diagonal()[:2], torch.ones(2, dtype=torch.float64))
    oracle.same_function(ours[:2, :2], (unit @ unit.mT)[:2, :2], leaves)
    inner = shoal.gradient_similarity(*args, cosine=False, **options)
    oracle.same_function(inner, g @ g.mT, leaves)


def test_parameters_and_losses_are_chosen_as_everywhere() -> None:
    model, x = mlp(), normal(4)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - F.one_hot(labels, C)).square().sum(1)

    last = list(model[2].parameters())
    g = oracle.individual_gradients(model, x, LABELS, last, loss).detach()
    for parameters in ("2", model[2], ["2.weight", "2.bias"]):
        norms = shoal.gradient_norms(model, x, LABELS, parameters, loss=loss)
        torch.testing.assert_close(norms, g.norm(dim=1), **oracle.VALUE)
        fisher = shoal.fisher_diagonal(model, x, LABELS, parameters, loss=loss)
        assert list(fisher) == ["2.weight", "2.bias"]
        torch.testing.assert_close(flat(fisher), g.square().mean(0), **oracle.VALUE)
    assert not any(p.grad is not None for p in model.parameters())


def test_nothing_keeps_a_graph_and_precision_is_that_of_statistics() -> None:
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        model, x = mlp().to(dtype), normal(4).to(dtype)
        norms = shoal.gradient_norms(model, x, LABELS)
        fisher = shoal.fisher_diagonal(model, x)
        scale = shoal.gradient_noise_scale(model, x, LABELS)
        for found in (norms, *fisher.values(), *scale):
            assert found.dtype == expected
            assert not found.requires_grad


@pytest.mark.filterwarnings("ignore:.*torch.func.*:RuntimeWarning")
def test_without_gradients_the_values_are_the_same() -> None:
    """Layers, copies and torch.func, and domains."""
    case = build(vit)
    g = oracle.individual_gradients(case.model, case.inputs, LABELS).detach()
    with torch.no_grad():
        norms = shoal.gradient_norms(case.model, case.inputs, LABELS)
        fisher = shoal.fisher_diagonal(case.model, case.inputs, LABELS)
        similarity = shoal.gradient_similarity(case.model, case.inputs, LABELS, DOMAINS)
    torch.testing.assert_close(norms, g.norm(dim=1), **oracle.VALUE)
    torch.testing.assert_close(flat(fisher), g.square().mean(0), **oracle.VALUE)
    mean = oracle.mean(g, DOMAINS)
    expected = torch.cosine_similarity(mean[0], mean[1], dim=0)
    torch.testing.assert_close(similarity[0, 1], expected, **oracle.VALUE)
    assert not similarity.requires_grad


def test_autocast_leaves_the_statistics_in_float32() -> None:
    model, x = mlp().float(), normal(4).float()
    exact = shoal.gradient_norms(model, x, LABELS)
    with torch.autocast("cpu", torch.bfloat16):
        found = shoal.gradient_norms(model, x, LABELS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0.1, atol=0.05)
    assert not torch.equal(found, exact)


def test_dropout_uses_the_masks_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, C)).double()
    x = normal(4)
    found = []
    for chunk_size in (N, 2):
        torch.manual_seed(3)
        found.append(shoal.gradient_norms(model, x, LABELS, chunk_size=chunk_size))
    torch.testing.assert_close(found[1], found[0], **oracle.VALUE)


def test_verifying_layers_leaves_the_random_state_alone() -> None:
    """Calls 1, 2 and 4 verify, call 3 does not; the masks that follow are the same."""
    torch.manual_seed(0)
    layers = [Copied(), nn.Dropout(0.5), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, C)]
    model, x = nn.Sequential(*layers).double(), normal(3, 4)
    found, after = [], []
    for _ in range(4):
        torch.manual_seed(3)
        found.append(shoal.gradient_norms(model, x, LABELS))
        after.append(float(torch.rand(1)))
    assert len(set(after)) == 1
    assert all(torch.equal(one, found[0]) for one in found)
    (check,) = streaming._checks[model].values()
    assert check.routes.copied == ("0.shift",)


def test_dropout_that_begins_later_uses_the_masks_of_the_whole_batch() -> None:
    """Call 3 verifies nothing, and the two before it drew nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, C)).double().eval()
    x = normal(4)
    for _ in range(2):
        shoal.gradient_norms(model, x, LABELS, chunk_size=2)
    (check,) = streaming._checks[model].values()
    assert not check.routes.draws
    model[1].train()
    found = []
    for chunk_size in (2, N):
        torch.manual_seed(3)
        found.append(shoal.gradient_norms(model, x, LABELS, chunk_size=chunk_size))
    torch.testing.assert_close(found[0], found[1], **oracle.VALUE)


class Repeated(nn.Module):
    """One layer, as often as each example's first number says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        h, times = x[:, 1:], x[:, :1]
        for k in range(int(times.max())):
            h = torch.where(k < times, torch.tanh(self.layer(h)), h)
        return self.head(h)


@pytest.mark.parametrize("times", [[1, 1, 3, 2, 1, 1], [2, 1, 1, 1, 3, 3]])
def test_a_layer_is_used_more_often_in_some_chunks(times: list[int]) -> None:
    torch.manual_seed(0)
    model, labels = Repeated().double(), LABELS[:6]
    x = torch.cat([torch.tensor(times)[:, None], normal(4)[:6]], 1)
    expected = oracle.individual_gradients(model, x, labels).norm(dim=1)
    for chunk_size in (2, 6):
        found = shoal.gradient_norms(model, x, labels, chunk_size=chunk_size)
        torch.testing.assert_close(found, expected, **oracle.VALUE)


def wide() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(12)]
    model = nn.Sequential(*blocks, nn.Linear(128, C))
    return model, torch.randn(64, 3, 128), torch.arange(64 * 3).reshape(64, 3) % C


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.mT, labels, reduction="none").mean(1)


def test_memory_holds_the_gradients_of_one_layer() -> None:
    """Of 12 layers of equal size: far from [n, P], and bounded by chunks and by ``memory``."""
    model, x, labels = wide()
    size = sum(p.numel() for p in model.parameters())
    whole = 4 * len(x) * size  # [n, P]

    def peak(function: Any, **options: Any) -> float:
        function(model, x, labels, loss=mean_loss, **options)  # the first call verifies layers
        function(model, x, labels, loss=mean_loss, **options)
        function(model, x, labels, loss=mean_loss, **options)
        with trace_memory() as trace:
            function(model, x, labels, loss=mean_loss, **options)
        return trace.peak

    assert peak(shoal.gradient_norms, chunk_size=64) < whole / 20  # by products of positions
    at_once = peak(shoal.fisher_diagonal, chunk_size=64)
    assert at_once < whole / 4
    assert peak(shoal.fisher_diagonal, chunk_size=8) < at_once / 2
    bounded = 3_500_000
    assert peak(shoal.fisher_diagonal, memory=bounded) < bounded < at_once


def test_activations_are_freed_as_the_backward_goes() -> None:
    """Each layer's input and output gradient live until the backward has passed them."""
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)], nn.Linear(8, C))
    x, labels = torch.randn(4000, 8), torch.arange(4000) % C
    for _ in range(3):
        shoal.gradient_norms(model, x, labels, chunk_size=4000)
    with trace_memory() as trace:
        shoal.gradient_norms(model, x, labels, chunk_size=4000)
    layer = 4 * x.numel()
    assert trace.peak < 27 * layer  # 20 activations and a few; every r as well would be 40


def test_a_weight_that_nothing_uses_has_no_gradient() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, C), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    torch.manual_seed(0)
    model = Unused().double()
    found = shoal.gradient_norms(model, normal(4), LABELS, by_layer=True)
    assert found["idle"].tolist() == [0.0] * N
    assert found["used"].min() > 0
    fisher = shoal.fisher_diagonal(model, normal(4), LABELS)
    assert not fisher["idle.weight"].any()


def test_no_examples() -> None:
    model, none = mlp(), torch.zeros(0, 4, dtype=torch.float64)
    labels = torch.zeros(0, dtype=torch.long)
    assert shoal.gradient_norms(model, none, labels).shape == (0,)
    with pytest.raises(ValueError, match="needs examples, got none"):
        shoal.fisher_diagonal(model, none)
    with pytest.raises(ValueError, match="two examples or more, to see the noise, got 1"):
        shoal.gradient_noise_scale(model, normal(4)[:1], LABELS[:1])


def test_messages() -> None:
    model, x = mlp(), normal(4)
    with_norm = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, C)).double()
    for function in (shoal.gradient_norms, shoal.fisher_diagonal, shoal.gradient_noise_scale):
        with pytest.raises(ValueError, match="put batch norm in eval mode"):
            function(with_norm, x, LABELS)
        with pytest.raises(ValueError, match="labels must have one entry per example"):
            function(model, x, LABELS[:-1])
        with pytest.raises(ValueError, match="give chunk_size or memory"):
            function(model, x, LABELS, chunk_size=2, memory=10**9)
        with pytest.raises(ValueError, match="unknown parameter 'head'"):
            function(model, x, LABELS, "head")
    with pytest.raises(TypeError, match="labels must be a tensor, got list"):
        shoal.gradient_norms(model, x, [0] * N)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="for labels from the model: leave out labels"):
        shoal.fisher_diagonal(model, x, LABELS, samples=2)
    with pytest.raises(ValueError, match="give labels, or leave out loss"):
        shoal.fisher_diagonal(model, x, loss=lambda logits, labels: logits.sum(1))
    with pytest.raises(ValueError, match="samples must be 1 or more, got 0"):
        shoal.fisher_diagonal(model, x, samples=0)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"torch\.no_grad\(\)"):
        shoal.gradient_norms(model, x, LABELS)


def test_a_layer_used_outside_its_call_warns_once_and_is_right() -> None:
    case = build(next(case for case in CASES if case.__name__ == "functional_use"))
    g = oracle.individual_gradients(case.model, case.inputs, LABELS).detach()
    with pytest.warns(RuntimeWarning, match=r"come from torch\.func instead"):
        shoal.gradient_norms(case.model, case.inputs, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = shoal.gradient_norms(case.model, case.inputs, LABELS)
    torch.testing.assert_close(ours, g.norm(dim=1), **oracle.VALUE)
