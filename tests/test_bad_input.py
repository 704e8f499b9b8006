"""Bad input: every error names the argument, what came and what was expected."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal

N, C, P = 6, 3, 4
NAN = float("nan")


def features() -> Tensor:
    return torch.linspace(-1, 1, N * P).reshape(N, P)


def logits() -> Tensor:
    return torch.linspace(-1, 2, N * C).reshape(N, C)


def labels() -> Tensor:
    return torch.arange(N) % C


def domains() -> Tensor:
    return torch.arange(N) % 2


def head(**changed: Any) -> Tensor:
    given = {"features": features(), "logits": logits(), "labels": labels(), "domains": domains()}
    return shoal.head_variance(**{**given, **changed})


def with_nan(tensor: Tensor, count: int = 1) -> Tensor:
    flat = tensor.clone().reshape(-1)
    flat[:count] = NAN
    return flat.reshape(tensor.shape)


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - labels).square().sum(1)


def test_the_unchanged_input_is_good() -> None:
    assert head().shape == (2, C * P + C)


HEAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "3-D features",
        {"features": torch.zeros(N, 2, 2)},
        ValueError,
        r"features must be \[n, p\], one vector per example, got shape \[6, 2, 2\]",
    ),
    (
        "1-D features",
        {"features": torch.zeros(N)},
        ValueError,
        r"features must be \[n, p\].* got shape \[6\]",
    ),
    (
        "scalar features",
        {"features": torch.tensor(1.0)},
        ValueError,
        r"features must be \[n, p\].* got shape \[\]",
    ),
    (
        "integer features",
        {"features": torch.zeros(N, P).long()},
        TypeError,
        r"features must be floating point, got torch.int64",
    ),
    (
        "a list of features",
        {"features": [[1.0]]},
        TypeError,
        r"features must be a tensor, got list",
    ),
    (
        "NaN in features",
        {"features": with_nan(features(), 3)},
        ValueError,
        r"features holds 3 NaN of 24 values",
    ),
    (
        "more logits than features",
        {"logits": torch.zeros(N + 1, C)},
        ValueError,
        r"logits must be \[n, C\].* with n = 6, got shape \[7, 3\]",
    ),
    (
        "3-D logits",
        {"logits": torch.zeros(N, C, 1)},
        ValueError,
        r"logits must be \[n, C\].* got shape \[6, 3, 1\]",
    ),
    (
        "scalar logits",
        {"logits": torch.tensor(0.5)},
        ValueError,
        r"logits must be \[n, C\].* got shape \[\]",
    ),
    (
        "integer logits",
        {"logits": torch.zeros(N, C).int()},
        TypeError,
        r"logits must be floating point, got torch.int32; convert with .float\(\)",
    ),
    (
        "NaN in logits",
        {"logits": with_nan(logits())},
        ValueError,
        r"logits holds 1 NaN of 18 values",
    ),
    ("a list of labels", {"labels": [0] * N}, TypeError, r"labels must be a tensor, got list"),
    (
        "fewer labels than examples",
        {"labels": labels()[1:]},
        ValueError,
        r"labels must have one entry per example \(n = 6\), got shape \[5\]",
    ),
    (
        "a scalar label",
        {"labels": torch.tensor(1)},
        ValueError,
        r"labels must have one entry per example \(n = 6\), got shape \[\]",
    ),
    (
        "a label too large",
        {"labels": labels() + 2},
        ValueError,
        r"labels must be in 0 … 2 \(the logits have 3 classes\), got 4",
    ),
    (
        "a negative label",
        {"labels": labels() - 1},
        ValueError,
        r"labels must be in 0 … 2 .*, got -1",
    ),
    (
        "bool labels",
        {"labels": labels() > 0},
        ValueError,
        r"labels must be integer class indices \[n\].* got torch.bool of shape \[6\]",
    ),
    (
        "a column of class indices",
        {"labels": labels()[:, None]},
        ValueError,
        r"labels must be integer class indices \[n\].* got torch.int64 of shape \[6, 1\]",
    ),
    (
        "soft targets too wide",
        {"labels": torch.zeros(N, C + 1)},
        ValueError,
        r"soft targets and must be \[n, C\] = \[6, 3\], got shape \[6, 4\]",
    ),
    (
        "class indices as floats",
        {"labels": labels().float()},
        ValueError,
        r"\[n, C\] = \[6, 3\], got shape \[6\]; class indices must be integers",
    ),
    (
        "NaN in soft targets",
        {"labels": with_nan(torch.full((N, C), 1 / C))},
        ValueError,
        r"labels holds 1 NaN of 18 values",
    ),
    (
        "a binary label of 2",
        {"logits": logits()[:, :1], "labels": labels()},
        ValueError,
        r"labels of a binary loss .* must be 0 or 1, got values from 0 to 2",
    ),
    (
        "a binary label of 2 on flat logits",
        {"logits": logits()[:, 0], "labels": labels().float()},
        ValueError,
        r"labels of a binary loss .* must be 0 or 1, got values from 0.0 to 2.0",
    ),
    (
        "two columns of binary labels",
        {"logits": logits()[:, 0], "labels": torch.zeros(N, 2)},
        ValueError,
        r"labels of a binary loss must be \[n\] or \[n, 1\] with n = 6, got shape \[6, 2\]",
    ),
    ("a list of domains", {"domains": [0, 1]}, TypeError, r"domains must be a tensor, got list"),
    (
        "float domains",
        {"domains": domains().float()},
        TypeError,
        r"domains must be integer ids, got torch.float32",
    ),
    (
        "bool domains",
        {"domains": domains() > 0},
        TypeError,
        r"domains must be integer ids, got torch.bool",
    ),
    (
        "too few domains",
        {"domains": domains()[1:]},
        ValueError,
        r"domains must be a vector \[n\] with one id per example \(n = 6\), got shape \[5\]",
    ),
    (
        "a column of domains",
        {"domains": domains()[:, None]},
        ValueError,
        r"domains must be a vector \[n\].* got shape \[6, 1\]",
    ),
    (
        "a scalar domain",
        {"domains": torch.tensor(0)},
        ValueError,
        r"domains must be a vector \[n\].* got shape \[\]",
    ),
    (
        "a negative domain",
        {"domains": domains() - 1},
        ValueError,
        r"domains must be 0 or more, got -1",
    ),
    (
        "a negative domain of two",
        {"domains": domains() - 1, "num_domains": 2},
        ValueError,
        r"domains must be in 0 … 1 \(num_domains is 2\), got -1",
    ),
    (
        "a domain too large",
        {"domains": domains() + 1, "num_domains": 2},
        ValueError,
        r"domains must be in 0 … 1 \(num_domains is 2\), got 2",
    ),
    (
        "no domains",
        {"num_domains": 0},
        ValueError,
        r"num_domains must be 1 or more, got 0",
    ),
    (
        "domains that are not counted in whole numbers",
        {"num_domains": 2.0},
        TypeError,
        r"num_domains must be an int, got float",
    ),
    (
        "domains of a type that torch hardly knows",
        {"domains": domains().to(torch.uint16)},
        TypeError,
        r"domains must be integer ids, got torch.uint16; convert with .long\(\)",
    ),
    (
        "labels of a type that torch hardly knows",
        {"labels": labels().to(torch.uint16)},
        ValueError,
        r"labels must be integer class indices .* got torch.uint16",
    ),
    (
        "a label for all, of a loss of one's own",
        {"labels": torch.zeros(1, C), "loss": squared},
        ValueError,
        r"labels must have one entry per example \(n = 6\), got shape \[1, 3\]",
    ),
    (
        "NaN in the labels of a loss of one's own",
        {"labels": with_nan(torch.zeros(N, C)), "loss": squared},
        ValueError,
        r"labels holds 1 NaN of 18 values",
    ),
    (
        "a list of labels for a loss of one's own",
        {"labels": [0] * N, "loss": squared},
        TypeError,
        r"labels must be a tensor, got list",
    ),
    (
        "a loss that is a number",
        {"loss": lambda logits, labels: 1.0},
        TypeError,
        r"loss must return a tensor, got float",
    ),
    (
        "an empty batch",
        {
            "features": torch.zeros(0, P),
            "logits": torch.zeros(0, C),
            "labels": torch.zeros(0).long(),
            "domains": torch.zeros(0).long(),
        },
        ValueError,
        r"num_domains must be given for an empty batch",
    ),
]


@pytest.mark.parametrize(
    ("changed", "error", "text"), [row[1:] for row in HEAD], ids=[row[0] for row in HEAD]
)
def test_head_variance_refuses(changed: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        head(**changed)


STATISTICS = [shoal.gradient_variance, shoal.gradient_mean, shoal.covariance_spread]


def network(outputs: int = C) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(P, outputs)


class WithoutTheLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:-1]


GENERAL: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (
        "inputs of another type",
        {"inputs": "images"},
        TypeError,
        r"inputs must be a tensor, tuple or dict of tensors, got str",
    ),
    (
        "no inputs",
        {"inputs": ()},
        ValueError,
        r"inputs is empty; expected a tensor, a tuple or a dict",
    ),
    (
        "scalar inputs",
        {"inputs": torch.tensor(1.0)},
        ValueError,
        r"inputs must have one entry per example.* got shape \[\]",
    ),
    (
        "inputs of different lengths",
        {"inputs": (features(), features()[1:])},
        ValueError,
        r"inputs\[1\] must have one entry per example \(6 in the first input\), got shape \[5, 4\]",
    ),
    (
        "dict inputs of different lengths",
        {"inputs": {"image": features(), "mask": features()[1:]}},
        ValueError,
        r"inputs\['?mask'?\] must have one entry per example .* got shape \[5, 4\]",
    ),
    (
        "a list among inputs",
        {"inputs": (features(), [1.0])},
        TypeError,
        r"inputs\[1\] must be a tensor, got list",
    ),
    (
        "NaN in inputs",
        {"inputs": with_nan(features(), 2)},
        ValueError,
        r"inputs holds 2 NaN of 24 values",
    ),
    ("a list of labels", {"labels": [0] * N}, TypeError, r"labels must be a tensor, got list"),
    (
        "fewer labels than inputs",
        {"labels": labels()[1:]},
        ValueError,
        r"labels must have one entry per example \(n = 6\), got shape \[5\]",
    ),
    (
        "a scalar label",
        {"labels": torch.tensor(1)},
        ValueError,
        r"labels must have one entry per example \(n = 6\), got shape \[\]",
    ),
    (
        "a label too large",
        {"labels": labels() + 2},
        ValueError,
        r"labels must be in 0 … 2 \(the logits have 3 classes\), got 4",
    ),
    (
        "a negative label",
        {"labels": labels() - 1},
        ValueError,
        r"labels must be in 0 … 2 .*, got -1",
    ),
    (
        "bool labels",
        {"labels": labels() > 0},
        ValueError,
        r"labels must be integer class indices \[n\].* got torch.bool",
    ),
    (
        "soft targets too wide",
        {"labels": torch.zeros(N, C + 1)},
        ValueError,
        r"soft targets and must be \[n, C\] = \[\d, 3\], got shape \[\d, 4\]",
    ),
    (
        "a binary label of 2",
        {"model": network(1)},
        ValueError,
        r"labels of a binary loss .* must be 0 or 1, got values from 0 to 2",
    ),
    (
        "NaN in logits",
        {"model": nn.Sequential(network(), nn.Hardtanh(0, 1), nn.Threshold(2, NAN))},
        ValueError,
        r"logits holds (\d+) NaN of \1 values",
    ),
    (
        "3-D logits",
        {"model": nn.Sequential(network(), nn.Unflatten(1, (C, 1)))},
        ValueError,
        r"logits must be \[n, C\].* got shape \[\d, 3, 1\]",
    ),
    (
        "too few logits",
        {"model": nn.Sequential(network(), WithoutTheLast())},
        ValueError,
        r"logits must be \[n, C\].* with n = \d, got shape \[\d, 3\]",
    ),
    (
        "float domains",
        {"domains": domains().float()},
        TypeError,
        r"domains must be integer ids, got torch.float32",
    ),
    (
        "too few domains",
        {"domains": domains()[1:]},
        ValueError,
        r"domains must be a vector \[n\] with one id per example \(n = 6\), got shape \[5\]",
    ),
    (
        "a negative domain",
        {"domains": domains() - 1},
        ValueError,
        r"domains must be 0 or more, got -1",
    ),
    (
        "a domain too large",
        {"num_domains": 1},
        ValueError,
        r"domains must be in 0 … 0 \(num_domains is 1\), got 1",
    ),
    ("no domains", {"num_domains": 0}, ValueError, r"num_domains must be 1 or more, got 0"),
    ("no chunk", {"chunk_size": 0}, ValueError, r"chunk_size must be 1 or more, got 0"),
    ("half a chunk", {"chunk_size": 2.5}, TypeError, r"chunk_size must be an int, got float"),
    ("a text of domains", {"num_domains": "2"}, TypeError, r"num_domains must be an int, got str"),
    ("no model", {"model": lambda x: x}, TypeError, r"model must be a torch.nn.Module, got func"),
    (
        "no parameters",
        {"parameters": None},
        TypeError,
        r"parameters must be 'all', a module of the model, or names .*, got NoneType",
    ),
    (
        "gradients by the frequency of words",
        {"model": nn.Sequential(nn.Embedding(5, 3, scale_grad_by_freq=True), nn.Linear(3, C))},
        ValueError,
        r"0 divides gradients by how often the batch has a word \(scale_grad_by_freq\)",
    ),
    ("a negative chunk", {"chunk_size": -2}, ValueError, r"chunk_size must be 1 or more, got -2"),
    (
        "a parameter that is none",
        {"parameters": [3]},
        TypeError,
        r"parameters must be 'all', a submodule, or names and prefixes, got 3",
    ),
    (
        "an empty batch",
        {
            "inputs": torch.zeros(0, P),
            "labels": torch.zeros(0).long(),
            "domains": torch.zeros(0).long(),
        },
        ValueError,
        r"num_domains must be given for an empty batch|inputs holds no example",
    ),
]


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("changed", "error", "text"), [row[1:] for row in GENERAL], ids=[row[0] for row in GENERAL]
)
def test_statistics_of_a_network_refuse(
    statistic: Callable[..., Tensor], changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = {
        "model": network(),
        "inputs": features(),
        "labels": labels(),
        "domains": domains(),
    }
    with pytest.raises(error, match=text):
        statistic(**{**given, **changed})


def test_half_precision_infinities_and_nan_are_left_to_the_scaler() -> None:
    v = head(features=with_nan(features()).half(), logits=logits().half())
    assert v.isnan().any()


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_an_empty_batch_is_refused_or_gives_zeros(
    statistic: Callable[..., Tensor], chunk_size: int | None
) -> None:
    nobody = torch.zeros(0, dtype=torch.long)
    model = network()
    try:
        value = statistic(
            model, torch.zeros(0, P), nobody, nobody, num_domains=2, chunk_size=chunk_size
        )
    except ValueError as error:
        assert "inputs holds no example" in str(error)
    else:
        assert torch.equal(value, torch.zeros_like(value))
