"""gradient_variance: Eq. 2 in any weights of any network, against a loop over examples."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import register_parametrization

import shoal
import shoal.gradients.collect
from tests.oracles import autograd as oracle

# Unsorted and imbalanced: three and four examples, chunks of three cut through both domains.
DOMAINS = torch.tensor([1, 0, 1, 0, 1, 1, 0])
N, C = len(DOMAINS), 3
LABELS = torch.arange(N) % C


@dataclass
class Case:
    """A network whose weights have rules (or not) and its inputs."""

    model: nn.Module
    inputs: Any
    rules: bool = True
    warns: str | None = None
    loop: bool = True  # whether torch's own second derivative can be trusted
    differences: bool = True  # whether autograd's derivative is the true one


def normal(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, *shape, generator=generator, dtype=torch.float64)


def tokens(*shape: int, size: int) -> Tensor:
    return torch.randint(size, (N, *shape), generator=torch.Generator().manual_seed(1))


class Pooled(nn.Module):
    """Classify the mean over all axes but the first and the last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(width, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(x.flatten(1, -2).mean(1)))


class PooledChannels(nn.Module):
    """Classify the mean over all positions, ``[n, channels, *positions]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(width, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(x.flatten(2).mean(2)))


def on_sequence(layer: nn.Module, width: int, *shape: int, rules: bool = True) -> Case:
    """A layer on ``[n, *shape]`` with ``width`` outputs last, behind another layer."""
    first = nn.Linear(shape[-1], shape[-1])
    return Case(nn.Sequential(first, nn.Tanh(), layer, Pooled(width)), normal(*shape), rules)


def on_channels(layer: nn.Module, width: int, *shape: int, after: nn.Module | None = None) -> Case:
    """A layer on ``[n, channels, *positions]`` with ``width`` output channels."""
    first = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}[len(shape)](shape[0], shape[0], 1)
    middle = [first, nn.Tanh(), layer, nn.Tanh() if after is None else after]
    return Case(nn.Sequential(*middle, PooledChannels(width)), normal(*shape))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, C))


def linear_on_vectors() -> Case:
    return Case(mlp(), normal(4))


def linear_without_bias() -> Case:
    return Case(nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, C)), normal(4))


def linear_on_sequences() -> Case:
    return on_sequence(nn.Linear(3, 4), 4, 5, 3)


def linear_on_sequences_of_sequences() -> Case:
    return on_sequence(nn.Linear(3, 4, bias=False), 4, 2, 3, 3)


def conv1d() -> Case:
    return on_channels(nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2), 4, 2, 9)


def conv1d_circular() -> Case:
    layer = nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular", bias=False)
    return on_channels(layer, 3, 2, 6)


def conv2d() -> Case:
    return on_channels(nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)), 4, 2, 6, 5)


def conv2d_with_leftover_pixels() -> Case:
    return on_channels(nn.Conv2d(2, 3, 3, stride=3, dilation=(1, 2)), 3, 2, 7, 8)


def conv2d_same() -> Case:
    return on_channels(nn.Conv2d(2, 3, (2, 3), padding="same", dilation=(1, 2)), 3, 2, 4, 5)


def conv2d_valid() -> Case:
    return on_channels(nn.Conv2d(2, 3, 2, padding="valid"), 3, 2, 3, 4)


def conv2d_reflect() -> Case:
    return on_channels(nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), 3, 2, 4, 5)


def conv2d_replicate_strided() -> Case:
    layer = nn.Conv2d(2, 3, 3, padding=1, stride=2, padding_mode="replicate")
    return on_channels(layer, 3, 2, 5, 4)


def conv2d_groups() -> Case:
    return on_channels(nn.Conv2d(4, 6, 3, groups=2, padding=1), 6, 4, 3, 3)


def conv2d_depthwise_without_bias() -> Case:
    return on_channels(nn.Conv2d(3, 6, 2, groups=3, bias=False), 6, 3, 3, 3)


def conv3d() -> Case:
    return on_channels(nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=(0, 1, 0)), 3, 2, 3, 3, 2)


def layer_norm_on_vectors() -> Case:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, C))
    return Case(scaled(model), normal(4))


def layer_norm_on_sequences() -> Case:
    case = on_sequence(nn.LayerNorm(3), 3, 4, 3)
    return Case(scaled(case.model), case.inputs)


def layer_norm_over_two_axes() -> Case:
    case = on_sequence(nn.LayerNorm((4, 3)), 3, 2, 4, 3)
    return Case(scaled(case.model), case.inputs)


def group_norm() -> Case:
    case = on_channels(nn.GroupNorm(2, 4, eps=0.1), 4, 4, 3, 2)
    return Case(scaled(case.model), case.inputs)


def batch_norm_1d() -> Case:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, C))
    return Case(scaled(model).eval(), normal(4))


def batch_norm_2d() -> Case:
    case = on_channels(nn.BatchNorm2d(3, eps=0.1), 3, 3, 2, 3)
    return Case(scaled(case.model).eval(), case.inputs)


def instance_norm() -> Case:
    case = on_channels(nn.InstanceNorm2d(3, affine=True), 3, 3, 2, 3)
    return Case(scaled(case.model), case.inputs)


def instance_norm_with_running_statistics() -> Case:
    layer = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    case = on_channels(layer, 3, 3, 4)
    return Case(scaled(case.model).eval(), case.inputs)


def scaled(model: nn.Module) -> nn.Module:
    """Move norms away from weight 1, bias 0, mean 0 and variance 1, which hide mistakes."""
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for tensor in [*module.parameters(), *module.buffers()]:
                if tensor.is_floating_point():
                    noise = torch.rand(tensor.shape, generator=generator)
                    tensor.data.copy_(tensor.data + 0.5 * noise)
    return model


def embedding() -> Case:
    return Case(nn.Sequential(nn.Embedding(6, 3), Pooled(3)), tokens(4, size=6))


def embedding_of_one_token() -> Case:
    model = nn.Sequential(nn.Embedding(6, 3), nn.Tanh(), nn.Linear(3, C))
    return Case(model, tokens(size=6))


def embedding_with_padding() -> Case:
    # The padding's row has no gradient by definition, so finite differences would not agree.
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=2), Pooled(3))
    return Case(model, tokens(4, size=6), differences=False)


class Twice(nn.Module):
    """One layer called twice; its gradients are added before they are squared."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def called_twice() -> Case:
    return Case(Twice(), normal(4))


class Tied(nn.Module):
    """Tied weights, as in language models: the embedding is also the last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(C, 4)
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C, bias=False)
        self.classifier.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.layer(self.embedding(x).mean(1))))


def tied_between_two_modules() -> Case:
    return Case(Tied(), tokens(4, size=C))


class Functional(nn.Module):
    """A layer's weight is used once by the layer and once more outside of its call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(F.linear(torch.tanh(self.layer(x)), self.layer.weight)))


def functional_use() -> Case:
    return Case(Functional(), normal(4), rules=False, warns="layer.weight")


class OnlyFunctional(nn.Module):
    """The layer is never called, only its weights are used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(F.linear(x, self.layer.weight, self.layer.bias)))


def only_functional_use() -> Case:
    return Case(OnlyFunctional(), normal(4), rules=False, warns="layer.bias, layer.weight")


class Bare(nn.Module):
    """Parameters that belong to no layer: a scale, and a class token with an example's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.classifier(torch.tanh(self.layer(x * self.scale)).mean(1))


def bare_parameter() -> Case:
    return Case(Bare(), normal(3, 4), rules=False)


class Temperature(nn.Module):
    """A weight without axes."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x) / self.temperature


def scalar_parameter() -> Case:
    return Case(Temperature(), normal(4), rules=False)


def prelu() -> Case:
    model = nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, C))
    return Case(model, normal(4), rules=False)


def rms_norm() -> Case:
    case = on_sequence(nn.RMSNorm(3, eps=0.1), 3, 4, 3)
    return Case(scaled(case.model), case.inputs, rules=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.attention(x, x, x, need_weights=False)[0].mean(1))


def multihead_attention() -> Case:
    return Case(Attention(), normal(3, 4), rules=False)


def transformer(dropout: float = 0.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        4, 2, 5, dropout, activation=torch.tanh, batch_first=True, norm_first=True
    )
    return scaled(nn.Sequential(layer, Pooled(4)))


def transformer_layer_in_eval_mode() -> Case:
    return Case(transformer(0.5).eval(), normal(3, 4), rules=False)


def transformer_layer_without_dropout() -> Case:
    return Case(transformer(0.0).train(), normal(3, 4), rules=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 4, batch_first=True)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.rnn(x)[0][:, -1])


def gru() -> Case:
    return Case(Recurrent(), normal(3, 3), rules=False)


class Rescaled(nn.Module):
    """A parametrisation: every row of the weight has norm one."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight / weight.norm(dim=1, keepdim=True)


def parametrised_weight() -> Case:
    layer = nn.Linear(4, 5)
    register_parametrization(layer, "weight", Rescaled())
    return Case(nn.Sequential(layer, nn.Tanh(), nn.Linear(5, C)), normal(4), rules=False)


def weight_norm() -> Case:
    # Differentiating torch._weight_norm twice gives a wrong result (torch 2.13), so the gradient
    # is compared with finite differences only.
    layer = parametrizations.weight_norm(nn.Linear(4, 5))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, C))
    return Case(model, normal(4), rules=False, loop=False)


def weight_norm_by_hook() -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.utils.weight_norm(nn.Linear(4, 5))
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, C))
    return Case(model, normal(4), rules=False, loop=False)


def linear_with_a_weight_of_its_own() -> Case:
    layer = nn.Linear(4, 5)
    layer.scale = nn.Parameter(torch.rand(5) + 0.5)
    layer.register_forward_hook(lambda module, args, output: output * module.scale)
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, C))
    return Case(model, normal(4), rules=False)


class Extra(nn.Linear):
    """A subclass can do anything in its forward."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(x.square(), self.weight)


def subclass_of_linear() -> Case:
    model = nn.Sequential(Extra(4, 5), nn.Tanh(), nn.Linear(5, C))
    return Case(model, normal(4), rules=False)


def relu_in_place() -> Case:
    return on_channels(nn.Conv2d(2, 4, 2), 4, 2, 3, 3, after=nn.ReLU(inplace=True))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(torch.tanh(self.first(x)))
        out += x
        return self.classifier(torch.tanh(out))


def residual_in_place() -> Case:
    return Case(Residual(), normal(4))


class ByKeyword(nn.Module):
    """The layer's input never appears among its positional arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.layer(input=x)))


def layer_called_by_keyword() -> Case:
    return Case(ByKeyword(), normal(4), rules=False)


class SequenceFirst(nn.Module):
    """Layers see ``[t, n, p]``; t = n, so no shape reveals it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.layer(x.transpose(0, 1))))
        return self.classifier(torch.tanh(x[0] + x.mean(0)))


def sequence_first_as_long_as_the_batch() -> Case:
    return Case(SequenceFirst(), normal(N, 4), rules=False)


def sequence_first_shorter_than_the_batch() -> Case:
    return Case(SequenceFirst(), normal(3, 4), rules=False)


def sequence_first_longer_than_the_batch() -> Case:
    return Case(SequenceFirst(), normal(N + 2, 4), rules=False)


class Positions(nn.Module):
    """A position embedding is looked up once for the whole batch, not once per example."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(9, 4)
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.position(torch.arange(x.shape[1], device=x.device))
        return self.classifier(torch.tanh(self.layer(x)).mean(1))


def positions_as_many_as_examples() -> Case:
    return Case(Positions(), normal(N, 4), rules=False)


def positions_fewer_than_examples() -> Case:
    return Case(Positions(), normal(3, 4), rules=False)


class Folded(nn.Module):
    """Positions are folded into the batch axis before a layer, as windows and frames are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        n, t, p = x.shape
        y = torch.tanh(self.layer(x.reshape(n * t, p))).reshape(n, t, p)
        return self.classifier(y.mean(1))


def positions_folded_into_the_batch() -> Case:
    return Case(Folded(), normal(3, 4), rules=False)


class Reversed(nn.Module):
    """A branch sees the examples in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.layer(x.flip(0))).flip(0))


def examples_reordered_inside() -> Case:
    return Case(Reversed(), normal(4), rules=False)


CASES: list[Callable[[], Case]] = [
    linear_on_vectors,
    linear_without_bias,
    linear_on_sequences,
    linear_on_sequences_of_sequences,
    conv1d,
    conv1d_circular,
    conv2d,
    conv2d_with_leftover_pixels,
    conv2d_same,
    conv2d_valid,
    conv2d_reflect,
    conv2d_replicate_strided,
    conv2d_groups,
    conv2d_depthwise_without_bias,
    conv3d,
    layer_norm_on_vectors,
    layer_norm_on_sequences,
    layer_norm_over_two_axes,
    group_norm,
    batch_norm_1d,
    batch_norm_2d,
    instance_norm,
    instance_norm_with_running_statistics,
    embedding,
    embedding_of_one_token,
    embedding_with_padding,
    called_twice,
    tied_between_two_modules,
    functional_use,
    only_functional_use,
    bare_parameter,
    scalar_parameter,
    prelu,
    rms_norm,
    multihead_attention,
    transformer_layer_in_eval_mode,
    transformer_layer_without_dropout,
    gru,
    parametrised_weight,
    weight_norm,
    weight_norm_by_hook,
    linear_with_a_weight_of_its_own,
    subclass_of_linear,
    relu_in_place,
    residual_in_place,
    layer_called_by_keyword,
    sequence_first_as_long_as_the_batch,
    sequence_first_shorter_than_the_batch,
    sequence_first_longer_than_the_batch,
    positions_as_many_as_examples,
    positions_fewer_than_examples,
    positions_folded_into_the_batch,
    examples_reordered_inside,
]


def build(make: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    case = make()
    case.model.double()
    return case


def leaves_of(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.filterwarnings("ignore:.*torch.func.*:RuntimeWarning")
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_every_layer_agrees_with_the_loop_and_with_finite_differences(
    make: Callable[[], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = build(make)
    if case.rules:  # otherwise the fallback would hide a wrong rule
        monkeypatch.setattr(shoal.gradients.collect, "individual_gradients", None)
    g = oracle.individual_gradients(case.model, case.inputs, LABELS)
    leaves = leaves_of(case.model)
    cotangent = oracle.random_like(torch.empty(2, g.shape[1], dtype=torch.float64))
    for centered in (True, False):
        truth = oracle.variance(g, DOMAINS, None, centered)
        for chunk_size in (None, 3):

            def ours(centered: bool = centered, chunk_size: int | None = chunk_size) -> Tensor:
                return shoal.gradient_variance(
                    case.model,
                    case.inputs,
                    LABELS,
                    DOMAINS,
                    centered=centered,
                    chunk_size=chunk_size,
                )

            oracle.same_function(ours(), truth, leaves if case.loop else [])
            if centered and case.differences:
                exact, differences = oracle.directional(
                    lambda ours=ours: (ours() * cotangent).sum(), leaves
                )
                assert exact == pytest.approx(differences, **oracle.DIFFERENCES)


def variance_of(case: Case, **options: Any) -> Tensor:
    return shoal.gradient_variance(case.model, case.inputs, LABELS, DOMAINS, **options)


@pytest.mark.parametrize("make", [functional_use, only_functional_use])
def test_the_fallback_warning_names_the_parameter(make: Callable[[], Case]) -> None:
    case = build(make)
    with pytest.warns(RuntimeWarning, match=rf"the layers that own .*{case.warns} do not account"):
        variance_of(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variance_of(case)  # warns only once


def test_rules_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (linear_on_vectors, conv2d, layer_norm_on_sequences, embedding, bare_parameter):
            variance_of(build(make))


class Gated(nn.Module):
    """A second use of a weight behind a gate that is closed at initialisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.zeros(1))
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        return self.classifier(h + self.gate * torch.tanh(F.linear(h, self.layer.weight)))


@pytest.mark.filterwarnings("ignore:.*torch.func.*:RuntimeWarning")
def test_a_use_that_opens_later_is_not_missed() -> None:
    torch.manual_seed(0)
    model, x = Gated().double(), normal(4)
    shoal.gradient_variance(model, x, LABELS, DOMAINS)
    with torch.no_grad():
        model.gate.fill_(1.0)
    truth = oracle.variance(oracle.individual_gradients(model, x, LABELS), DOMAINS)
    ours = shoal.gradient_variance(model, x, LABELS, DOMAINS)
    oracle.same_function(ours, truth, leaves_of(model))


class OnlyInTraining(nn.Module):
    """A weight that takes part in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.classifier = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x * self.scale if self.training else x)


def test_another_mode_is_checked_again() -> None:
    torch.manual_seed(0)
    model, x = OnlyInTraining().double(), normal(4)
    model.eval()
    v = shoal.gradient_variance(model, x, LABELS, DOMAINS)
    assert torch.equal(v[:, :4], torch.zeros_like(v[:, :4]))
    model.train()
    truth = oracle.variance(oracle.individual_gradients(model, x, LABELS), DOMAINS)
    ours = shoal.gradient_variance(model, x, LABELS, DOMAINS)
    oracle.same_function(ours, truth, leaves_of(model))


# Labels and losses


def smooth_l1(logits: Tensor, labels: Tensor) -> Tensor:
    return F.smooth_l1_loss(logits, labels, reduction="none").sum(1)


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize(
    ("classes", "labels", "loss"),
    [
        (C, normal(C).softmax(1), None),
        (1, torch.arange(N) % 2, None),
        (1, (torch.arange(N) % 2)[:, None].double(), None),
        (C, normal(C), smooth_l1),
    ],
    ids=["soft targets", "binary", "binary column", "custom"],
)
def test_every_loss_agrees_with_the_loop(
    classes: int, labels: Tensor, loss: oracle.Loss | None, chunk_size: int | None
) -> None:
    torch.manual_seed(0)
    # The PReLU has no rule, so the labels also go through torch.func.
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU(), nn.Linear(3, classes)).double()
    x = normal(4)
    g = oracle.individual_gradients(model, x, labels, loss=loss)
    ours = shoal.gradient_variance(model, x, labels, DOMAINS, loss=loss, chunk_size=chunk_size)
    oracle.same_function(ours, oracle.variance(g, DOMAINS), leaves_of(model))


@pytest.mark.parametrize("flat", [True, False])
def test_one_logit_per_example(flat: bool) -> None:
    torch.manual_seed(0)
    last = nn.Flatten(0) if flat else nn.Identity()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), last).double()
    labels = torch.arange(N) % 2
    g = oracle.individual_gradients(model, normal(4), labels)
    ours = shoal.gradient_variance(model, normal(4), labels, DOMAINS)
    oracle.same_function(ours, oracle.variance(g, DOMAINS), leaves_of(model))


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_constant_residual_gives_a_zero_gradient(chunk_size: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, C).double()

    def linear_loss(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits * torch.arange(1.0, C + 1).double()).sum(1)

    x = normal(4)
    g = oracle.individual_gradients(model, x, LABELS, loss=linear_loss)
    v = shoal.gradient_variance(model, x, LABELS, DOMAINS, loss=linear_loss, chunk_size=chunk_size)
    torch.testing.assert_close(v.detach(), oracle.variance(g, DOMAINS).detach(), **oracle.VALUE)
    total = v.sum() + 0 * model.weight.sum()
    total.backward()
    assert torch.equal(model.weight.grad, torch.zeros_like(model.weight))


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_a_loss_must_give_one_value_per_example(chunk_size: int | None) -> None:
    case = build(linear_on_vectors)
    n = chunk_size or N
    with pytest.raises(
        ValueError, match=rf"loss must return one value per example, \[{n}\], got shape \[\]"
    ):
        variance_of(case, loss=F.cross_entropy, chunk_size=chunk_size)


# Rows and normalisation


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize(
    ("centered", "unbiased"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_every_normalisation_agrees_with_the_loop(
    centered: bool, unbiased: bool, chunk_size: int | None
) -> None:
    for make in (linear_on_vectors, linear_on_sequences):
        case = build(make)
        g = oracle.individual_gradients(case.model, case.inputs, LABELS)
        truth = oracle.variance(g, DOMAINS, None, centered, unbiased)
        ours = variance_of(case, centered=centered, unbiased=unbiased, chunk_size=chunk_size)
        oracle.same_function(ours, truth, leaves_of(case.model))


@pytest.mark.filterwarnings("ignore:.*torch.func.*:RuntimeWarning")
@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("make", [linear_on_vectors, conv2d, bare_parameter])
def test_absent_domains_have_rows_of_zeros(
    make: Callable[[], Case], chunk_size: int | None
) -> None:
    case = build(make)
    domains = torch.tensor([2, 0, 2, 0, 2, 3, 0])  # none in 1 and 4, a single one in 3
    g = oracle.individual_gradients(case.model, case.inputs, LABELS)
    truth = oracle.variance(g, domains, 5)
    ours = shoal.gradient_variance(
        case.model, case.inputs, LABELS, domains, num_domains=5, chunk_size=chunk_size
    )
    oracle.same_function(ours, truth, leaves_of(case.model))
    assert torch.equal(ours[[1, 3, 4]], torch.zeros_like(ours[[1, 3, 4]]))


@pytest.mark.parametrize("make", [linear_on_vectors, conv2d, transformer_layer_in_eval_mode])
@pytest.mark.parametrize("centered", [True, False])
def test_chunk_sizes_agree(make: Callable[[], Case], centered: bool) -> None:
    case = build(make)
    whole = variance_of(case, centered=centered)
    for chunk_size in (1, 2, N, N + 5):
        ours = variance_of(case, centered=centered, chunk_size=chunk_size)
        close = {"rtol": 1e-10, "atol": 1e-14}
        oracle.same_function(ours, whole, leaves_of(case.model), close, close)


def test_chunks_of_one_layer_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build(conv2d)
    whole = variance_of(case)
    # Two examples of the largest layer.
    monkeypatch.setattr(shoal.gradients.materialised, "BUDGET", 60)
    oracle.same_function(variance_of(case), whole, leaves_of(case.model))
    oracle.same_function(variance_of(case, chunk_size=3), whole, leaves_of(case.model))


@pytest.mark.parametrize("chunk_size", [None, 1, 5])
@pytest.mark.parametrize("positions", [(), (2,)], ids=["vectors", "sequences"])
def test_nearly_constant_gradients_keep_their_variance_in_float32(
    positions: tuple[int, ...], chunk_size: int | None
) -> None:
    torch.manual_seed(0)
    n = 40
    domains = torch.arange(n) % 2
    x = torch.rand(*positions, 4) + 1 + 1e-4 * torch.randn(n, *positions, 4)
    model = nn.Linear(4, C)
    with torch.no_grad():
        model.weight.abs_()

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * logits.reshape(len(logits), -1).square().sum(1)

    labels = torch.zeros(n)
    ours = shoal.gradient_variance(model, x, labels, domains, loss=loss, chunk_size=chunk_size)
    exact = nn.Linear(4, C).double()
    exact.load_state_dict(model.state_dict())
    g = oracle.individual_gradients(exact, x.double(), labels, loss=loss)
    truth = oracle.variance(g, domains)
    # r itself is rounded to float32 here, 1e-3 of its deviations; the plain formula is 100 % off.
    assert float((ours.detach() - truth.detach()).norm() / truth.detach().norm()) < 5e-3
    plain = g.detach().float()[domains == 0]
    naive = plain.square().mean(0) - plain.mean(0).square()
    assert float((naive - truth[0]).norm() / truth[0].norm()) > 1


# Precision and modes


@pytest.mark.parametrize("chunk_size", [None, 3])
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
    torch.manual_seed(0)
    model = mlp().to(given)
    v = shoal.gradient_variance(model, normal(4).to(given), LABELS, DOMAINS, chunk_size=chunk_size)
    assert v.dtype == expected
    v.sum().backward()
    assert all(p.grad.dtype == given for p in model.parameters())


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_without_grad_the_value_is_the_same_and_no_graph_is_left(chunk_size: int | None) -> None:
    for make in (linear_on_vectors, bare_parameter):
        case = build(make)
        expected = variance_of(case).detach()
        with torch.no_grad():
            v = variance_of(case, chunk_size=chunk_size)
        assert not v.requires_grad
        torch.testing.assert_close(v, expected, **oracle.VALUE)


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_the_network_is_not_changed(chunk_size: int | None) -> None:
    case = build(conv2d)
    before = {name: p.detach().clone() for name, p in case.model.named_parameters()}
    variance_of(case, chunk_size=chunk_size)
    for name, p in case.model.named_parameters():
        assert p.grad is None
        assert torch.equal(p, before[name])
    assert not any(module._forward_hooks for module in case.model.modules())


def test_hooks_are_removed_after_an_error() -> None:
    case = build(linear_on_vectors)
    with pytest.raises(RuntimeError):
        shoal.gradient_variance(case.model, normal(9), LABELS, DOMAINS)
    assert not any(module._forward_hooks for module in case.model.modules())


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("make", [linear_on_vectors, conv2d, bare_parameter, multihead_attention])
def test_gradient_in_inputs_that_require_it(
    make: Callable[[], Case], chunk_size: int | None
) -> None:
    case = build(make)
    case.inputs.requires_grad_()
    g = oracle.individual_gradients(case.model, case.inputs, LABELS)
    ours = variance_of(case, chunk_size=chunk_size)
    leaves = [case.inputs, *leaves_of(case.model)]
    oracle.same_function(ours, oracle.variance(g, DOMAINS), leaves)


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_inputs_can_come_from_another_network(chunk_size: int | None) -> None:
    case = build(linear_on_vectors)
    before = nn.Linear(4, 4).double()
    g = oracle.individual_gradients(case.model, torch.tanh(before(case.inputs)), LABELS)
    ours = shoal.gradient_variance(
        case.model, torch.tanh(before(case.inputs)), LABELS, DOMAINS, chunk_size=chunk_size
    )
    leaves = [*before.parameters(), *leaves_of(case.model)]
    oracle.same_function(ours, oracle.variance(g, DOMAINS), leaves)


class Dropped(nn.Module):
    """Dropout between layers; ``bare`` adds a weight that only torch.func can reach."""

    def __init__(self, bare: bool) -> None:
        super().__init__()
        self.layer, self.classifier = nn.Linear(4, 6), nn.Linear(6, C)
        self.scale = nn.Parameter(torch.rand(6) + 0.5) if bare else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(torch.tanh(self.layer(x)), 0.5, self.training)
        return self.classifier(h if self.scale is None else h * self.scale)


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("bare", [False, True], ids=["rules", "torch.func"])
def test_the_backward_repeats_the_masks_of_active_dropout(
    bare: bool, chunk_size: int | None
) -> None:
    torch.manual_seed(0)
    model, x = Dropped(bare).double().train(), normal(4)
    size = sum(p.numel() for p in model.parameters())
    cotangent = oracle.random_like(torch.empty(2, size, dtype=torch.float64))

    def function() -> Tensor:
        torch.manual_seed(3)
        v = shoal.gradient_variance(model, x, LABELS, DOMAINS, chunk_size=chunk_size)
        torch.manual_seed(11)  # whatever happens between forward and backward
        return (v * cotangent).sum()

    exact, differences = oracle.directional(function, leaves_of(model))
    assert exact == pytest.approx(differences, **oracle.DIFFERENCES)


def test_the_second_pass_does_not_change_the_random_state() -> None:
    torch.manual_seed(0)
    model = Dropped(False).double().train()
    v = shoal.gradient_variance(model, normal(4), LABELS, DOMAINS, chunk_size=3)
    before = torch.get_rng_state()
    v.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_follows_the_mode() -> None:
    torch.manual_seed(0)
    model, x = Dropped(False).double(), normal(4)
    model.eval()
    assert torch.equal(*(shoal.gradient_variance(model, x, LABELS, DOMAINS) for _ in range(2)))
    model.train()
    assert not torch.equal(*(shoal.gradient_variance(model, x, LABELS, DOMAINS) for _ in range(2)))


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("layer", [0, -1])
def test_a_second_derivative_is_right_or_refused(layer: int, chunk_size: int | None) -> None:
    case = build(linear_on_vectors)
    weight = case.model[layer].weight

    def second(v: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(v.square().sum(), weight, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), weight)
        return found

    g = oracle.individual_gradients(case.model, case.inputs, LABELS)
    truth = second(oracle.variance(g, DOMAINS))
    try:
        ours = second(variance_of(case, chunk_size=chunk_size))
    except RuntimeError:
        return
    torch.testing.assert_close(ours, truth, **oracle.GRADIENT)


# The meaning of P


class Net(nn.Module):
    """Φ and w, so that ω, φ and θ can be chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh())
        self.classifier = nn.Linear(3, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def columns(model: nn.Module, names: Sequence[str]) -> Tensor:
    weights = dict(model.named_parameters())
    return oracle.individual_gradients(model, normal(4), LABELS, [weights[name] for name in names])


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("classifier", ["classifier.weight", "classifier.bias"]),
        ("classifier.", ["classifier.weight", "classifier.bias"]),
        ("features.2.bias", ["features.2.bias"]),
        (["classifier.bias"], ["classifier.bias"]),
        # However they are chosen, the order is that of named_parameters().
        (
            ["classifier.bias", "features.0"],
            ["features.0.weight", "features.0.bias", "classifier.bias"],
        ),
        (("features.2", "features.2.bias"), ["features.2.weight", "features.2.bias"]),
    ],
)
def test_names_and_prefixes(
    net: Net, parameters: Any, names: list[str], chunk_size: int | None
) -> None:
    truth = oracle.variance(columns(net, names), DOMAINS)
    ours = shoal.gradient_variance(
        net, normal(4), LABELS, DOMAINS, parameters, chunk_size=chunk_size
    )
    oracle.same_function(ours, truth, leaves_of(net))


def test_a_prefix_ends_at_a_dot() -> None:
    torch.manual_seed(0)
    model = nn.Sequential()
    for name in ("layer", "layer2"):
        model.add_module(name, nn.Linear(C, C))
    model.double()
    v = shoal.gradient_variance(model, normal(C), LABELS, DOMAINS, "layer")
    truth = oracle.individual_gradients(model, normal(C), LABELS, list(model[0].parameters()))
    oracle.same_function(v, oracle.variance(truth, DOMAINS), leaves_of(model))


def test_a_generator_of_names(net: Net) -> None:
    names = (name for name in ("classifier",))
    ours = shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, names)
    truth = shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, net.classifier)
    oracle.same_function(ours, truth, leaves_of(net))


def test_all_is_every_weight_in_the_order_of_named_parameters(net: Net) -> None:
    names = [name for name, _ in net.named_parameters()]
    truth = oracle.variance(columns(net, names), DOMAINS)
    ours = shoal.gradient_variance(net, normal(4), LABELS, DOMAINS)
    oracle.same_function(ours, truth, leaves_of(net))


def test_head_and_features_together_are_all(net: Net) -> None:
    φ, ω, θ = (
        shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, parameters)
        for parameters in (net.features, net.classifier, "all")
    )
    oracle.same_function(torch.cat([φ, ω], 1), θ, leaves_of(net))


def test_the_head_alone_is_head_variance(net: Net) -> None:
    z = net.features(normal(4))
    closed = shoal.head_variance(z, net.classifier(z), LABELS, DOMAINS)
    ours = shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, net.classifier)
    oracle.same_function(ours, closed, leaves_of(net))


def test_a_fallback_in_the_middle_keeps_its_columns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 3), nn.PReLU(3), nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, C)
    ).double()
    names = ["1.weight", "2.weight", "3.weight", "4.bias"]
    truth = oracle.variance(columns(model, names), DOMAINS)
    for chunk_size in (None, 3):
        ours = shoal.gradient_variance(
            model, normal(4), LABELS, DOMAINS, names, chunk_size=chunk_size
        )
        oracle.same_function(ours, truth, leaves_of(model))


def test_a_tied_weight_has_its_columns_once_under_any_of_its_names() -> None:
    case = build(tied_between_two_modules)
    assert variance_of(case).shape[1] == 12 + 16 + 4
    first, second = (
        variance_of(case, parameters=f"{name}.weight") for name in ("embedding", "classifier")
    )
    assert first.shape[1] == 12
    oracle.same_function(first, second, leaves_of(case.model))


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_frozen_weights_are_not_in_p(net: Net, chunk_size: int | None) -> None:
    net.features[0].weight.requires_grad_(False)
    net.classifier.bias.requires_grad_(False)
    names = ["features.0.bias", "features.2.weight", "features.2.bias", "classifier.weight"]
    truth = oracle.variance(columns(net, names), DOMAINS)
    ours = shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, chunk_size=chunk_size)
    oracle.same_function(ours, truth, leaves_of(net))


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_a_weight_that_is_never_used_has_zeros(net: Net, chunk_size: int | None) -> None:
    net.spare = nn.Linear(2, 2).double()
    net.lost = nn.Parameter(torch.ones(3, dtype=torch.float64))
    names = [name for name, _ in net.named_parameters()]
    truth = oracle.variance(columns(net, names), DOMAINS)
    ours = shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, chunk_size=chunk_size)
    oracle.same_function(ours, truth, leaves_of(net))


def test_an_unknown_name_raises_with_the_nearest(net: Net) -> None:
    with pytest.raises(
        ValueError, match=r"unknown parameter 'clasifier'; did you mean 'classifier'\? One of: "
    ):
        shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, "clasifier")
    with pytest.raises(ValueError, match=r"did you mean 'features\.2\.weight'"):
        shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, ["features.2.weigth"])


def test_a_selection_without_trainable_weights_is_refused(net: Net) -> None:
    net.classifier.requires_grad_(False)
    with pytest.raises(ValueError, match="'classifier' selects no trainable weight of Net"):
        shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, "classifier")
    with pytest.raises(ValueError, match="Linear selects no trainable weight of Net"):
        shoal.gradient_variance(net, normal(4), LABELS, DOMAINS, nn.Linear(1, 1))


# Inputs and outputs of the network


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)
        self.scale = nn.Parameter(torch.rand(3) + 0.5)
        self.classifier = nn.Linear(3, C)

    def forward(self, left: Tensor, right: Tensor) -> SimpleNamespace:
        h = torch.tanh(self.left(left) - self.right(right)) * self.scale
        return SimpleNamespace(logits=self.classifier(h))


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("form", ["tuple", "list", "dict", "dict in another order"])
def test_tuples_and_dicts_of_inputs_and_an_output_with_logits(
    form: str, chunk_size: int | None
) -> None:
    torch.manual_seed(0)
    model = TwoInputs().double()
    left, right = normal(4), normal(2, seed=2)
    inputs = {
        "tuple": (left, right),
        "list": [left, right],
        "dict": {"left": left, "right": right},
        "dict in another order": {"right": right, "left": left},
    }[form]
    g = oracle.individual_gradients(model, inputs, LABELS)
    ours = shoal.gradient_variance(model, inputs, LABELS, DOMAINS, chunk_size=chunk_size)
    oracle.same_function(ours, oracle.variance(g, DOMAINS), leaves_of(model))


def test_an_output_without_logits_is_refused() -> None:
    model = nn.GRU(3, C, batch_first=True).double()
    with pytest.raises(TypeError, match=r"must return its logits as a tensor .* got tuple"):
        shoal.gradient_variance(model, normal(2, 3), LABELS, DOMAINS)


# Networks without per-example gradients


@pytest.mark.parametrize("statistic", ["gradient_variance", "gradient_mean", "covariance_spread"])
@pytest.mark.parametrize("track", [True, False])
def test_batch_norm_with_the_statistics_of_the_batch_is_refused(
    statistic: str, track: bool
) -> None:
    norm = nn.BatchNorm1d(4, track_running_stats=track)
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, C)).double()
    model.train(track)  # without running statistics, eval mode does not help
    function = getattr(shoal, statistic)
    with pytest.raises(
        ValueError,
        match=r"^1 normalises with the statistics of the batch, so each example's loss depends on "
        r"all others .* put batch norm in eval mode",
    ):
        function(model, normal(4), LABELS, DOMAINS)


@pytest.mark.parametrize("statistic", ["gradient_variance", "gradient_mean", "covariance_spread"])
@pytest.mark.parametrize("where", ["whole", "part", "in place"])
def test_a_compiled_network_is_refused(net: Net, statistic: str, where: str) -> None:
    model: Any = net
    if where == "whole":
        model = torch.compile(net, backend="aot_eager")
    elif where == "part":
        net.features = torch.compile(net.features, backend="aot_eager")
    else:
        net.compile(backend="aot_eager")
    with pytest.raises(
        RuntimeError, match="differentiate twice, which a compiled network does not"
    ):
        getattr(shoal, statistic)(model, normal(4), LABELS, DOMAINS)


# Against BackPACK


def backpack_network(kind: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    if kind == "mlp":
        layers = [nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, C)]
        return nn.Sequential(*layers).double(), normal(4)
    layers = [
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(8, C),
    ]
    return nn.Sequential(*layers).double(), normal(2, 5, 6)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_backpack_agrees(backpack: Any, kind: str) -> None:
    from backpack.extensions import BatchGrad, Variance

    model, x = backpack_network(kind)
    ours = shoal.gradient_variance(model, x, LABELS, DOMAINS)
    together = torch.zeros_like(DOMAINS)
    biased = shoal.gradient_variance(model, x, LABELS, together, unbiased=False)
    # A sum, so that individual gradients are not divided by n; a plain backward(), because its
    # hooks do not fire when only weights are named as inputs.
    backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    with backpack.backpack(BatchGrad(), Variance()):
        loss(model(x), LABELS).backward()
    g = torch.cat([p.grad_batch.flatten(1) for p in model.parameters()], 1)
    torch.testing.assert_close(ours, oracle.variance(g, DOMAINS), **oracle.VALUE)
    theirs = torch.cat([p.variance.flatten() for p in model.parameters()])
    torch.testing.assert_close(biased[0], theirs, **oracle.GRADIENT)


@pytest.mark.parametrize(
    "statistic",
    [shoal.gradient_variance, shoal.gradient_mean, shoal.covariance_spread],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_an_embedding_with_sparse_gradients_agrees_with_a_dense_one(
    statistic: Callable[..., Tensor], chunk_size: int | None
) -> None:
    """Its gradients hold only the words of the batch."""
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(6, 3, sparse=sparse), Pooled(3)).double()
        words, labels = torch.randint(6, (10, 4)), torch.randint(C, (10,))
        domains = torch.arange(10) % 2
        value = statistic(model, words, labels, domains, chunk_size=chunk_size)
        slope = torch.autograd.grad(value.square().sum(), list(model[1].parameters()))
        found.append([value, *slope])
    for one, other in zip(*found, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other)
