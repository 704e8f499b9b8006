"""Statistics are float32 under any autocast, float64 in float64; NaN belongs to a loss scaler."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal

E, N, INPUTS, FEATURES, CLASSES = 3, 24, 6, 8, 4
HALVES = [torch.bfloat16, torch.float16]
# Unit roundoff of the half types times the few roundings of a small network: measured 0.5 to
# 1.5 %, and 0.1 to 0.2 %.
TOLERANCE = {torch.bfloat16: 5e-2, torch.float16: 8e-3}

half = pytest.mark.parametrize("dtype", HALVES, ids=["bf16", "fp16"])


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh())
    return nn.Sequential(features, nn.Linear(FEATURES, CLASSES)).to(dtype)


def make_conv(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    ).to(dtype)


def make_batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(N, INPUTS, generator=generator, dtype=dtype)
    labels = torch.randint(CLASSES, (N,), generator=generator)
    return inputs, labels, torch.arange(N) % E


def error(found: Tensor, expected: Tensor) -> float:
    """Return the relative error in the norm."""
    return ((found - expected).norm() / expected.norm()).item()


def gradients(value: Tensor, model: nn.Module) -> Tensor:
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


# The head


def head(model: nn.Sequential, inputs: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
    z = model[0](inputs)
    return shoal.head_variance(z, model[1](z), labels, domains, num_domains=E)


@half
def test_head_variance_under_autocast(dtype: torch.dtype) -> None:
    model, batch = make_model(), make_batch()
    expected = head(model, *batch)
    with torch.autocast("cpu", dtype=dtype):
        assert model(batch[0]).dtype == dtype
        found = head(model, *batch)
        penalty = shoal.spread(found)
    assert found.dtype == penalty.dtype == torch.float32
    # The network did run in half precision, and its error is the only one.
    assert 1e-6 < error(found, expected) < TOLERANCE[dtype]
    ours = gradients(penalty, model)
    theirs = gradients(shoal.spread(expected), model)
    assert error(ours, theirs) < 2 * TOLERANCE[dtype]


def head_in_single_precision() -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """Return features, logits, v and the gradient of its spread, without autocast."""
    inputs, labels, domains = make_batch()
    z, x = inputs.clone().requires_grad_(), (inputs[:, :CLASSES] * 3).clone().requires_grad_()
    v = shoal.head_variance(z, x, labels, domains)
    return z, x, v, torch.autograd.grad(shoal.spread(v), (z, x))


@half
def test_head_variance_itself_loses_nothing_to_autocast(dtype: torch.dtype) -> None:
    z, x, v, expected = head_in_single_precision()
    with torch.autocast("cpu", dtype=dtype):
        found = shoal.head_variance(z, x, *make_batch()[1:])
        penalty = shoal.spread(found)
    assert torch.equal(found, v)
    assert all(map(torch.equal, torch.autograd.grad(penalty, (z, x)), expected))


@half
def test_backward_inside_autocast_is_single_precision_too(dtype: torch.dtype) -> None:
    z, x, _, expected = head_in_single_precision()
    with torch.autocast("cpu", dtype=dtype):
        penalty = shoal.spread(shoal.head_variance(z, x, *make_batch()[1:]))
        found = torch.autograd.grad(penalty, (z, x))
    assert all(map(torch.equal, found, expected))


@half
def test_head_variance_of_half_precision_tensors(dtype: torch.dtype) -> None:
    inputs, labels, domains = make_batch()
    z, x = inputs.to(dtype), (inputs[:, :CLASSES] * 3).to(dtype)
    found = shoal.head_variance(z, x, labels, domains)
    assert found.dtype == torch.float32
    assert torch.equal(found, shoal.head_variance(z.float(), x.float(), labels, domains))


@half
@pytest.mark.parametrize("other", [torch.float32, torch.float64])
def test_mixed_precision_of_features_and_logits(dtype: torch.dtype, other: torch.dtype) -> None:
    inputs, labels, domains = make_batch()
    z, x = inputs.to(dtype), inputs[:, :CLASSES].to(other)
    assert shoal.head_variance(z, x, labels, domains).dtype == other
    assert shoal.head_variance(inputs.to(other), x.to(dtype), labels, domains).dtype == other


@half
def test_nearly_constant_gradients_survive_half_precision_products(dtype: torch.dtype) -> None:
    # E[g²] − E[g]², or any product in half precision, would lose all digits here.
    generator = torch.Generator().manual_seed(0)
    z = 10 + 1e-2 * torch.randn(N, FEATURES, generator=generator, dtype=torch.float64)
    x = 1e-3 * torch.randn(N, CLASSES, generator=generator, dtype=torch.float64)
    labels, domains = torch.zeros(N, dtype=torch.int64), torch.arange(N) % E
    expected = shoal.head_variance(z, x, labels, domains)
    with torch.autocast("cpu", dtype=dtype):
        found = shoal.head_variance(z.float(), x.float(), labels, domains)
    assert error(found.double(), expected) < 1e-3


@half
def test_fishr_under_autocast(dtype: torch.dtype) -> None:
    def run(autocast: bool) -> tuple[shoal.Fishr, Tensor, Tensor]:
        model, (inputs, labels, domains) = make_model(), make_batch()
        fishr = shoal.Fishr(E, 1.0, 0.9, warmup_steps=0)
        for _ in range(3):
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                z = model[0](inputs)
                penalty = fishr(z, model[1](z), labels, domains)
        return fishr, penalty, gradients(penalty, model)

    fishr, penalty, ours = run(True)
    reference, expected, theirs = run(False)
    assert fishr.v_bar.dtype == penalty.dtype == torch.float32
    assert error(fishr.v_bar, reference.v_bar) < TOLERANCE[dtype]
    assert error(penalty, expected) < 2 * TOLERANCE[dtype]
    assert error(ours, theirs) < 2 * TOLERANCE[dtype]


def test_double_precision_all_the_way() -> None:
    model, batch = make_model(torch.float64), make_batch(torch.float64)
    v = head(model, *batch)
    assert v.dtype == shoal.spread(v).dtype == torch.float64
    for chunk_size in (None, 5):
        options = {"chunk_size": chunk_size}
        assert shoal.gradient_variance(model, *batch, **options).dtype == torch.float64
        assert shoal.gradient_mean(model, *batch, **options).dtype == torch.float64
        assert shoal.covariance_spread(model, *batch, **options).dtype == torch.float64


# Any network

STATISTICS = {
    "variance": shoal.gradient_variance,
    "mean": shoal.gradient_mean,
}


@half
@pytest.mark.parametrize("make", [make_model, make_conv], ids=["mlp", "conv"])
@pytest.mark.parametrize("chunk_size", [None, 5])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_of_a_network_under_autocast(
    statistic: str, chunk_size: int | None, make: type, dtype: torch.dtype
) -> None:
    model, batch = make(), make_batch()
    function = STATISTICS[statistic]
    expected = function(model, *batch, chunk_size=chunk_size)
    with torch.autocast("cpu", dtype=dtype):
        found = function(model, *batch, chunk_size=chunk_size)
    assert found.dtype == torch.float32
    assert 1e-6 < error(found, expected) < TOLERANCE[dtype]


@half
def test_covariance_spread_under_autocast(dtype: torch.dtype) -> None:
    model, batch = make_model(), make_batch()
    expected = shoal.covariance_spread(model, *batch)
    with torch.autocast("cpu", dtype=dtype):
        found = shoal.covariance_spread(model, *batch)
    assert found.dtype == torch.float32
    assert error(found, expected) < 2 * TOLERANCE[dtype]


@half
@pytest.mark.parametrize("make", [make_model, make_conv], ids=["mlp", "conv"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_chunked_backward_runs_under_the_autocast_of_its_forward(
    statistic: str, make: type, dtype: torch.dtype
) -> None:
    function, batch = STATISTICS[statistic], make_batch()

    def run(chunk_size: int | None, autocast: bool) -> Tensor:
        model = make()
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            value = shoal.spread(function(model, *batch, chunk_size=chunk_size))
        # The backward runs outside of autocast, as PyTorch recommends.
        return gradients(value, model)

    whole, chunked = run(None, True), run(5, True)
    precise = run(None, False)
    assert chunked.dtype == torch.float32
    # Rounding differs with the chunks, but less than half precision differs from single.
    assert error(chunked, precise) < 2 * TOLERANCE[dtype]
    assert error(chunked, whole) < TOLERANCE[dtype]
    assert error(chunked, precise) > 1e-5


@half
def test_recomputation_sees_the_same_autocast(dtype: torch.dtype) -> None:
    seen: list[torch.dtype] = []
    model = make_model()
    model[1].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    for function in STATISTICS.values():
        seen.clear()
        with torch.autocast("cpu", dtype=dtype):
            value = shoal.spread(function(model, *make_batch(), chunk_size=8))
        forwards = len(seen)
        value.backward()
        assert len(seen) == 2 * forwards
        assert set(seen) == {dtype}


@half
@pytest.mark.parametrize("statistic", STATISTICS)
def test_recomputation_without_autocast_if_the_forward_had_none(
    statistic: str, dtype: torch.dtype
) -> None:
    seen: list[torch.dtype] = []
    model = make_model()
    model[1].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    value = shoal.spread(STATISTICS[statistic](model, *make_batch(), chunk_size=8))
    with torch.autocast("cpu", dtype=dtype):
        value.backward()
    assert set(seen) == {torch.float32}


def test_half_precision_weights() -> None:
    model = make_model().bfloat16()
    inputs, labels, domains = make_batch()
    reference = copy.deepcopy(model).float()
    for function in STATISTICS.values():
        found = function(model, inputs.bfloat16(), labels, domains)
        assert found.dtype == torch.float32
        expected = function(reference, inputs.bfloat16().float(), labels, domains)
        assert error(found, expected) < TOLERANCE[torch.bfloat16]


# NaN


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", ["features", "logits"])
def test_nan_raises_with_the_name_of_its_tensor(place: str, dtype: torch.dtype) -> None:
    inputs, labels, domains = make_batch(dtype)
    tensors = {"features": inputs.clone(), "logits": inputs[:, :CLASSES].clone()}
    tensors[place][3, 1] = torch.nan
    with pytest.raises(ValueError, match=f"{place} holds 1 NaN of {tensors[place].numel()}"):
        shoal.head_variance(*tensors.values(), labels, domains)
    fishr = shoal.Fishr(E)
    with pytest.raises(ValueError, match=f"{place} holds 1 NaN"):
        fishr(*tensors.values(), labels, domains)
    assert fishr.steps.item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_in_rows_and_inputs_raises(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="rows holds 1 NaN of 2"):
        shoal.spread(torch.tensor([1.0, torch.nan], dtype=dtype))
    inputs, labels, domains = make_batch(dtype)
    inputs[0, 0] = torch.nan
    for function in (*STATISTICS.values(), shoal.covariance_spread):
        with pytest.raises(ValueError, match="inputs holds 1 NaN"):
            function(make_model(dtype), inputs, labels, domains)


@pytest.mark.parametrize("place", [0, 1], ids=["features", "logits"])
def test_nan_in_fp16_is_left_to_the_scaler(place: int) -> None:
    inputs, labels, domains = make_batch()
    tensors = [inputs.half().clone(), inputs[:, :CLASSES].half().clone()]
    tensors[place][0, 0] = torch.nan
    z, x = (t.requires_grad_() for t in tensors)
    v = shoal.head_variance(z, x, labels, domains)
    assert v.dtype == torch.float32
    # Example 0 belongs to domain 0; the other domains are not affected.
    assert v[0].isnan().any()
    assert v[1:].isfinite().all()


def test_nan_in_fp16_reaches_the_gradient_that_the_scaler_checks() -> None:
    inputs, labels, domains = make_batch()
    z, x = inputs.half().requires_grad_(), inputs[:, :CLASSES].half().clone()
    x[0, 0] = torch.nan
    fishr = shoal.Fishr(E, 1.0, warmup_steps=0)
    penalty = fishr(z, x.requires_grad_(), labels, domains)
    (F.cross_entropy(x.float(), labels) + penalty).backward()
    assert x.grad.isnan().any()


@pytest.mark.parametrize("visible", [True, False], ids=["on the host", "as on a device"])
def test_a_step_that_the_scaler_skips_does_not_spoil_the_moving_average(
    visible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not visible:
        monkeypatch.setattr("shoal.checks.values_visible", lambda *tensors: False)
    inputs, labels, domains = make_batch()
    z, x = inputs.half(), inputs[:, :CLASSES].half().clone()
    fishr = shoal.Fishr(E, 1.0, warmup_steps=0)
    fishr(z, x, labels, domains)
    broken = x.clone()
    broken[0, 0] = torch.inf
    fishr(z, broken, labels, domains)
    penalty = fishr(z, x, labels, domains)
    assert penalty.isfinite()
    assert fishr.v_bar.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_nan_on_a_device_is_not_checked() -> None:
    inputs, labels, domains = (t.cuda() for t in make_batch())
    inputs[0, 0] = torch.nan
    torch.cuda.set_sync_debug_mode("error")
    try:
        v = shoal.head_variance(inputs, inputs[:, :CLASSES], labels, domains, num_domains=E)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert v[0].isnan().any()
