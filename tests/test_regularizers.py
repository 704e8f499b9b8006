"""Fishr: its moving average, warm-up and state, and their effect on penalty and gradient."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import shoal
import shoal.regularizers

E, N, FEATURES, CLASSES = 3, 24, 5, 4
P = CLASSES * FEATURES + CLASSES
# float32 cannot represent this γ: if it is rounded anywhere, an error of 1e-8 shows.
WEIGHT, DECAY = 1.25, 0.9
EXACT = {"rtol": 1e-12, "atol": 1e-14}

Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def make_batch(seed: int, domains: list[int] | None = None, dtype: torch.dtype = torch.float64):
    """Return features, logits, labels, domains; each domain has its own scale."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor(domains) if domains is not None else torch.arange(N) % E
    scale = (1.0 + ids)[:, None].to(dtype)
    n = len(ids)
    features = torch.randn(n, FEATURES, generator=generator, dtype=dtype) * scale
    logits = torch.randn(n, CLASSES, generator=generator, dtype=dtype) * 2
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return features.requires_grad_(), logits.requires_grad_(), labels, ids


def make_rows(seed: int, columns: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(E, columns, generator=generator, dtype=torch.float64) + 0.1


def numpy_spread(rows: np.ndarray) -> float:
    return float(((rows - rows.mean(0)) ** 2).sum(1).mean())


def snapshot(fishr: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in fishr.state_dict().items()}


def same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# The moving average


def test_moving_average_starts_at_zero_and_is_matched_over_one_minus_decay() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0, normalise=False)
    v_bar = np.zeros((E, P))
    for step in range(4):
        batch = make_batch(step)
        penalty = fishr(*batch)
        v = shoal.head_variance(*batch).detach().numpy()
        v_bar = DECAY * v_bar + (1 - DECAY) * v
        np.testing.assert_allclose(fishr.v_bar.numpy(), v_bar, **EXACT)
        expected = WEIGHT * numpy_spread(v_bar / (1 - DECAY))
        np.testing.assert_allclose(penalty.item(), expected, **EXACT)
        assert fishr.steps.item() == step + 1
        assert fishr.updates.tolist() == [step + 1] * E


def test_normalise_divides_by_the_number_of_weights() -> None:
    penalties = {}
    for normalise in (True, False):
        fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0, normalise=normalise)
        for step in range(2):
            penalties[normalise] = fishr(*make_batch(step)).item()
    np.testing.assert_allclose(penalties[True] * P, penalties[False], **EXACT)


def test_normalise_is_the_default() -> None:
    batch = make_batch(0)
    expected = shoal.spread(shoal.head_variance(*batch)).item() / P
    penalty = shoal.Fishr(E, 1.0, warmup_steps=0)(*batch).item()
    np.testing.assert_allclose(penalty, expected, **EXACT)


def test_weight_is_not_rounded_in_double_precision() -> None:
    batch = make_batch(0)
    fishr = shoal.Fishr(E, 0.1, 0.0, warmup_steps=0, normalise=False)
    expected = 0.1 * shoal.spread(shoal.head_variance(*batch)).item()
    assert math.isclose(fishr(*batch).item(), expected, rel_tol=1e-14)


def test_no_decay_matches_the_batch_alone() -> None:
    fishr = shoal.Fishr(E, WEIGHT, 0.0, warmup_steps=0, normalise=False)
    for step in range(3):
        batch = make_batch(step)
        v = shoal.head_variance(*batch)
        penalty = fishr(*batch)
        np.testing.assert_allclose(penalty.item(), WEIGHT * shoal.spread(v).item(), **EXACT)
        np.testing.assert_allclose(fishr.v_bar.numpy(), v.detach().numpy(), **EXACT)


def test_no_decay_with_a_domain_that_comes_and_goes() -> None:
    fishr = shoal.Fishr(E, WEIGHT, 0.0, warmup_steps=0, normalise=False)
    rows = make_rows(0)
    fishr.match(rows, torch.tensor([True, True, False]))
    penalty = fishr.match(rows)
    np.testing.assert_allclose(penalty.item(), WEIGHT * numpy_spread(rows.numpy()), **EXACT)


@pytest.mark.parametrize(
    "options",
    [
        {"centered": False},
        {"unbiased": False},
        {"bias": False},
        {"loss": lambda x, y: F.cross_entropy(x, y, reduction="none").square()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_reach_the_statistic(options: dict[str, object]) -> None:
    batch = make_batch(0)
    v = shoal.head_variance(*batch, **options)
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0, **options)
    expected = WEIGHT * shoal.spread(v).item() / v.shape[1]
    assert not torch.allclose(shoal.spread(v), shoal.spread(shoal.head_variance(*batch)))
    np.testing.assert_allclose(fishr(*batch).item(), expected, **EXACT)


def test_defaults() -> None:
    fishr = shoal.Fishr(num_domains=E)
    assert (fishr.penalty_weight, fishr.ema_decay, fishr.warmup_steps) == (1000.0, 0.95, 1500)


# Absent domains and unequal counts


def test_an_absent_domain_neither_decays_nor_takes_part() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0, normalise=False)
    fishr(*make_batch(0))
    before = fishr.v_bar.clone()
    # Domain 1 has one example, too few for a variance.
    batch = make_batch(1, [0] * 6 + [1] + [2] * 6)
    penalty = fishr(*batch)
    assert torch.equal(fishr.v_bar[1], before[1])
    assert fishr.updates.tolist() == [2, 1, 2]
    v = shoal.head_variance(*batch, num_domains=E).detach()
    for e in (0, 2):
        assert torch.allclose(fishr.v_bar[e], DECAY * before[e] + (1 - DECAY) * v[e], **EXACT)
    u = fishr.v_bar[[0, 2]].numpy() / (1 - DECAY)
    np.testing.assert_allclose(penalty.item(), WEIGHT * numpy_spread(u), **EXACT)


def test_fewer_than_two_domains_give_zero_with_a_graph() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0)
    features, logits, labels, domains = make_batch(0, [1] * 8)
    penalty = fishr(features, logits, labels, domains)
    assert penalty.item() == 0
    penalty.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))
    assert fishr.updates.tolist() == [0, 1, 0]


@pytest.mark.parametrize("present", [None, True])
def test_one_domain_alone_gives_exactly_zero(present: bool | None) -> None:
    rows = (1e4 * make_rows(0, columns=40)[:1]).float().requires_grad_()
    fishr = shoal.Fishr(1, 1e6, DECAY, warmup_steps=0)
    for _ in range(3):
        penalty = fishr.match(rows, present)
        assert penalty.item() == 0
        assert torch.autograd.grad(penalty, rows)[0].count_nonzero() == 0


@pytest.mark.parametrize("present", [None, True])
def test_values_that_are_not_finite_do_not_enter_the_average(present: bool | None) -> None:
    match = shoal.Fishr(1, WEIGHT, DECAY, warmup_steps=0)
    match.match(torch.ones(1, 2), present)
    before = snapshot(match)
    match.match(torch.tensor([[math.inf, 1.0]]), present)
    assert torch.equal(match.v_bar, before["v_bar"]) and match.updates.tolist() == [1]


def test_a_second_derivative_is_refused() -> None:
    rows = make_rows(0).requires_grad_()
    penalty = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0).match(rows.square())
    with pytest.raises(RuntimeError, match="differentiated once, not twice"):
        torch.autograd.grad(penalty, rows, create_graph=True)


def test_a_decay_near_one_in_single_precision() -> None:
    """γ = 1 − 10⁻⁸ is 1 in float32; v̄/(1 − γ) after the first call is v for any γ."""
    rows = make_rows(0)
    expected = WEIGHT * numpy_spread(rows.numpy())
    fishr = shoal.Fishr(E, WEIGHT, 1 - 1e-8, warmup_steps=0, normalise=False)
    np.testing.assert_allclose(fishr.match(rows.float()).item(), expected, rtol=1e-5)


def test_empty_batch_changes_no_average() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0)
    fishr(*make_batch(0))
    before = fishr.v_bar.clone()
    empty = torch.zeros(0, FEATURES, dtype=torch.float64)
    labels = torch.zeros(0, dtype=torch.int64)
    assert fishr(empty, empty[:, :CLASSES], labels, labels).item() == 0
    assert torch.equal(fishr.v_bar, before)
    assert fishr.updates.tolist() == [1] * E


def numpy_fishr(steps: list[tuple[np.ndarray, list[bool]]], decay: float) -> list[float]:
    """Return spread(u) of every step by a plain loop over domains."""
    domains, columns = steps[0][0].shape
    v_bar, counts, found = np.zeros((domains, columns)), [0] * domains, []
    for rows, present in steps:
        for e in range(domains):
            if present[e]:
                v_bar[e] = decay * v_bar[e] + (1 - decay) * rows[e]
                counts[e] += 1
        longest = max(counts)
        u = [
            v_bar[e] / (1 - decay) * (1 - decay**longest) / (1 - decay ** counts[e])
            for e in range(domains)
            if present[e]
        ]
        found.append(numpy_spread(np.array(u)))
    return found


@pytest.mark.parametrize("decay", [0.3, 0.9, 0.999])
def test_unequal_counts_are_scaled_to_the_longest(decay: float) -> None:
    pattern = [
        [True, True, True],
        [True, False, True],
        [False, True, True],
        [True, True, False],
        [True, False, True],
        [True, True, True],
    ]
    rows = [make_rows(seed) for seed in range(len(pattern))]
    steps = [(r.numpy(), present) for r, present in zip(rows, pattern, strict=True)]
    fishr = shoal.Fishr(E, WEIGHT, decay, warmup_steps=0, normalise=False)
    for one, (_, present), expected in zip(rows, steps, numpy_fishr(steps, decay), strict=True):
        penalty = fishr.match(one, torch.tensor(present)).item()
        np.testing.assert_allclose(penalty, WEIGHT * expected, rtol=1e-9)
    assert fishr.updates.tolist() == [5, 4, 5]


def test_equal_rows_stay_matched_for_any_counts() -> None:
    fishr = shoal.Fishr(E, WEIGHT, 0.99, warmup_steps=0, normalise=False)
    row = make_rows(0)[:1].expand(E, -1)
    for _ in range(20):
        fishr.match(row, torch.tensor([True, True, False]))
    assert fishr.match(row).item() < 1e-20


def test_absent_rows_can_hold_anything() -> None:
    rows = make_rows(0)
    rows[1] = math.nan
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=5)
    fishr.match(rows.nan_to_num(0.0), torch.tensor([True, False, True]))
    assert fishr.v_bar[1].eq(0).all()


# Warm-up


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_calls_before_warmup_return_exactly_zero(warmup: int) -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup, normalise=False)
    always = shoal.Fishr(E, WEIGHT, DECAY, 0, normalise=False)
    for call in range(warmup + 3):
        batch = make_batch(call)
        assert fishr.active.dtype == torch.bool
        assert fishr.active.item() is (call >= warmup)
        penalty, full = fishr(*batch), always(*batch)
        if call < warmup:
            assert penalty.item() == 0
            gradients = torch.autograd.grad(penalty, batch[:2])
            assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)
        else:
            assert torch.equal(penalty, full)
        # The moving average runs from the first call.
        assert torch.equal(fishr.v_bar, always.v_bar)


def test_warmup_zero_survives_an_overflow() -> None:
    rows = torch.tensor([[1e25], [2e25], [4e25]], requires_grad=True)
    penalty = shoal.Fishr(E, warmup_steps=1).match(rows)
    assert penalty.item() == 0


# The ramp


@pytest.mark.parametrize("warmup", [0, 2])
def test_the_weight_rises_linearly_after_the_warmup(warmup: int) -> None:
    ramp = 4
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup, ramp_steps=ramp, normalise=False)
    always = shoal.Fishr(E, WEIGHT, DECAY, 0, normalise=False)
    for call in range(warmup + ramp + 2):
        batch = make_batch(call)
        share = min(max(call - warmup, 0) / ramp, 1)
        torch.testing.assert_close(fishr(*batch), share * always(*batch), **EXACT)
    assert torch.equal(fishr(*make_batch(9)), always(*make_batch(9)))


def test_a_ramp_between_two_weights() -> None:
    match = shoal.regularizers.Match(E, 5.0, warmup_steps=1, warmup_weight=1.0, ramp_steps=2)
    rows = make_rows(0)
    found = [match.match(rows).item() / numpy_spread(rows.numpy()) for _ in range(5)]
    assert found == pytest.approx([1, 1, 3, 5, 5])


# λ in units of the gradients


def plain_ratio(head: nn.Linear, seen: list[Tensor], batch: Batch) -> float:
    """‖∇R‖ / ‖∇penalty‖ in the classifier, the penalty of λ = 1; adds the rows to ``seen``."""
    features, _, labels, ids = batch
    logits = head(features.detach())
    risk = F.cross_entropy(logits, labels)
    rows = shoal.head_variance(features.detach(), logits, labels, ids, num_domains=E)
    u = sum(DECAY**k * old for k, old in enumerate(reversed(seen), 1)) + rows
    seen.append(rows.detach())
    weights = list(head.parameters())
    norms = []
    for value in (risk, shoal.spread(u) / P):
        grads = torch.autograd.grad(value, weights, retain_graph=True)
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())
    return norms[0] / norms[1]


def batch_of(head: nn.Linear, seed: int) -> Batch:
    features, _, labels, ids = make_batch(seed)
    return features, head(features), labels, ids


@pytest.mark.parametrize(("share", "limit"), [(0.5, None), (1e9, 100.0), (1e-9, 0.01)])
def test_gradient_share_is_the_median_ratio_of_the_warmup(
    share: float, limit: float | None
) -> None:
    torch.manual_seed(0)
    head = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=60, gradient_share=share)
    plain = shoal.Fishr(E, 1.0, DECAY, warmup_steps=0)
    seen: list[Tensor] = []
    ratios = []
    for call in range(64):
        batch = batch_of(head, call)
        ratios.append(plain_ratio(head, seen, batch))
        found, unit = fishr(*batch).item(), plain(*batch).item()
        if call < 60:
            assert found == 0
            continue
        # The last fifty of the warm-up; of an even number, the lower middle.
        weight = share * sorted(ratios[10:60])[24]
        if limit is not None:
            weight = limit * WEIGHT
        assert found == pytest.approx(weight * unit, rel=1e-5)


def test_gradient_share_continues_and_keeps_its_addresses() -> None:
    torch.manual_seed(0)
    head = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    one, other = (
        shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=50, gradient_share=1.0) for _ in range(2)
    )
    for call in range(55):
        batch = batch_of(head, call)
        if call == 40:
            other.load_state_dict(one.state_dict())
            address = other.ratios.data_ptr()
        penalty = one(*batch)
        if call >= 40:
            assert torch.equal(other(*batch), penalty)
            assert other.ratios.data_ptr() == address
    assert penalty.item() > 0


def test_gradient_share_changes_nothing_in_eval_mode() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=50, gradient_share=1.0)
    fishr(*make_batch(0))
    before = snapshot(fishr)
    fishr.eval()
    assert fishr(*make_batch(1)).item() == 0
    assert all(
        torch.equal(before[key].nan_to_num(), value.nan_to_num())
        for key, value in snapshot(fishr).items()
    )


def test_gradient_share_needs_a_warmup_and_the_default_loss() -> None:
    with pytest.raises(ValueError, match="a warm-up of 50 calls or more"):
        shoal.Fishr(E, warmup_steps=49, gradient_share=1.0)
    with pytest.raises(ValueError, match="the default loss"):
        shoal.Fishr(E, gradient_share=1.0, loss=F.cross_entropy)


# Train and eval mode


def test_eval_mode_changes_nothing() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0, normalise=False)
    fishr(*make_batch(0))
    before = snapshot(fishr)
    batch = make_batch(1)
    fishr.eval()
    first, second = fishr(*batch), fishr(*batch)
    assert same_state(before, fishr.state_dict())
    assert torch.equal(first, second)
    # It returns the same as in training mode.
    fishr.train()
    assert torch.equal(fishr(*batch), first)
    assert not same_state(before, fishr.state_dict())


def test_eval_mode_before_the_first_call_changes_nothing() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0).eval()
    before = snapshot(fishr)
    fishr(*make_batch(0))
    assert same_state(before, fishr.state_dict())


def test_training_continues_after_an_evaluation_in_inference_mode() -> None:
    batch = make_batch(0)
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0)
    with torch.inference_mode():
        fishr.eval()(*batch)
    expected = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0)(*batch)
    assert torch.equal(fishr.train()(*batch), expected)


# Gradients


def test_gradient_flows_through_the_current_batch_only() -> None:
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0, normalise=False)
    old, new = make_rows(0).requires_grad_(), make_rows(1).requires_grad_()
    fishr.match(old)
    assert not fishr.v_bar.requires_grad
    fishr.match(new).backward()
    assert old.grad is None
    # d/dv of λ/E Σ‖u_e − ū‖² at u = v̄/(1−γ): ∂u/∂v is one.
    u = (DECAY * (1 - DECAY) * old + (1 - DECAY) * new).detach() / (1 - DECAY)
    expected = WEIGHT * 2 / E * (u - u.mean(0))
    assert torch.allclose(new.grad, expected, **EXACT)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_decay_does_not_change_the_gradient_of_u(decay: float) -> None:
    """\\label{appendix:domainbeddetails}: gradients' strength is independent of γ."""
    fishr = shoal.Fishr(E, WEIGHT, decay, warmup_steps=0, normalise=False)
    rows = make_rows(0).requires_grad_()
    fishr.match(rows).backward()
    plain = make_rows(0).requires_grad_()
    (WEIGHT * shoal.spread(plain)).backward()
    assert torch.allclose(rows.grad, plain.grad, **EXACT)


def test_gradient_in_features_and_logits_by_differences() -> None:
    first, (features, logits, labels, domains) = make_batch(0), make_batch(1)
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0)
    fishr(*first)
    fishr.eval()
    assert torch.autograd.gradcheck(
        lambda z, x: fishr(z, x, labels, domains), (features, logits), atol=1e-6
    )


def test_backward_after_the_next_call() -> None:
    # The buffers are written in place, which must not affect an earlier graph.
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0)
    twin = copy.deepcopy(fishr)
    batch = make_batch(0)
    late = fishr(*batch)
    fishr(*make_batch(1))
    now = torch.autograd.grad(twin(*batch), batch[:2])
    assert all(map(torch.equal, torch.autograd.grad(late, batch[:2]), now))


# State


def through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("passed_on", [dict, through_a_file], ids=["dict", "file"])
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_continuing_equals_never_stopping(calls: int, passed_on: Callable) -> None:
    def make() -> shoal.Fishr:
        return shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=3)

    fishr = make()
    for step in range(calls):
        fishr(*make_batch(step, [0] * 6 + [2] * 6 + [1] * (step % 4)))
    resumed = make()
    assert str(resumed.load_state_dict(passed_on(fishr.state_dict()))) == str(
        nn.Module().load_state_dict({})
    )
    assert same_state(fishr.state_dict(), resumed.state_dict())
    for step in range(calls, calls + 4):
        a, b = make_batch(step), make_batch(step)
        one, two = fishr(*a), resumed(*b)
        assert torch.equal(one, two)
        assert all(
            map(torch.equal, torch.autograd.grad(one, a[:2]), torch.autograd.grad(two, b[:2]))
        )
        assert same_state(fishr.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("calls", [0, 2])
def test_strict_loading_in_a_parent(calls: int) -> None:
    def make() -> nn.ModuleDict:
        return nn.ModuleDict({"net": nn.Linear(2, 2), "fishr": shoal.Fishr(E, WEIGHT)})

    parent, other = make(), make()
    for step in range(calls):
        parent["fishr"](*make_batch(step))
    other.load_state_dict(parent.state_dict(), strict=True)
    assert same_state(parent.state_dict(), other.state_dict())
    assert ("fishr.v_bar" in other.state_dict()) is (calls > 0)


def test_state_dict_names() -> None:
    fishr = shoal.Fishr(E)
    assert set(fishr.state_dict()) == {"steps", "updates"}
    fishr(*make_batch(0))
    assert set(fishr.state_dict()) == {"steps", "updates", "v_bar"}
    assert not list(fishr.parameters())


def test_loading_into_a_used_module_replaces_its_state_in_place() -> None:
    source, target = shoal.Fishr(E, WEIGHT), shoal.Fishr(E, WEIGHT)
    for step in range(3):
        source(*make_batch(step))
    target(*make_batch(9))
    addresses = {name: b.data_ptr() for name, b in target.named_buffers()}
    target.load_state_dict(source.state_dict())
    assert same_state(source.state_dict(), target.state_dict())
    assert addresses == {name: b.data_ptr() for name, b in target.named_buffers()}


def test_state_from_before_the_first_call_resets_a_used_module() -> None:
    used, fresh = shoal.Fishr(E), shoal.Fishr(E)
    used(*make_batch(0))
    used.load_state_dict(fresh.state_dict())
    assert used.v_bar is None and used.steps == 0 and used.updates.sum() == 0
    assert torch.equal(used(*make_batch(1)), fresh(*make_batch(1)))
    assert torch.equal(used.v_bar, fresh.v_bar)


def test_state_of_another_shape_is_refused() -> None:
    used, other = shoal.Fishr(E), shoal.Fishr(E)
    used(*make_batch(0))
    other.match(make_rows(0, columns=2))
    with pytest.raises(RuntimeError, match=r"size mismatch for v_bar"):
        used.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match=r"size mismatch for updates"):
        shoal.Fishr(E + 1).load_state_dict(shoal.Fishr(E).state_dict())


def test_a_loaded_state_keeps_its_shape() -> None:
    source, target = shoal.Fishr(E), shoal.Fishr(E)
    source.match(make_rows(0, columns=2))
    target.load_state_dict(source.state_dict())
    with pytest.raises(ValueError, match="shape of the first call"):
        target.match(make_rows(0, columns=3))


def test_buffers_keep_their_addresses() -> None:
    fishr = shoal.Fishr(E, warmup_steps=2)
    fishr(*make_batch(0))
    addresses = {name: b.data_ptr() for name, b in fishr.named_buffers()}
    assert set(addresses) == {"v_bar", "steps", "updates", "scalars.values"}
    for step in range(1, 5):
        fishr(*make_batch(step, [0, 0, 1, 1, 1, 2][: 6 - step % 2]))
        fishr.eval()(*make_batch(step))
        fishr.train()
    assert addresses == {name: b.data_ptr() for name, b in fishr.named_buffers()}


def test_deepcopy_is_independent() -> None:
    fishr = shoal.Fishr(E, WEIGHT, warmup_steps=0)
    fishr(*make_batch(0))
    before = snapshot(fishr)
    twin = copy.deepcopy(fishr)
    assert same_state(before, twin.state_dict())
    expected = twin(*make_batch(1))
    assert same_state(before, fishr.state_dict())
    assert torch.equal(fishr(*make_batch(1)), expected)


def test_single_precision_state_follows_the_rows() -> None:
    fishr = shoal.Fishr(E, WEIGHT, warmup_steps=0)
    assert fishr(*make_batch(0, dtype=torch.float32)).dtype == torch.float32
    assert fishr.v_bar.dtype == torch.float32
    assert shoal.Fishr(E)(*make_batch(0)).dtype == torch.float64


def test_to_double_keeps_values_and_address_afterwards() -> None:
    fishr = shoal.Fishr(E, WEIGHT, warmup_steps=0)
    fishr(*make_batch(0, dtype=torch.float32))
    before = fishr.v_bar.clone()
    fishr.double()
    assert fishr.v_bar.dtype == torch.float64
    assert fishr.steps.dtype == fishr.updates.dtype == torch.int64
    assert torch.equal(fishr.v_bar, before.double())
    address = fishr.v_bar.data_ptr()
    assert fishr(*make_batch(1)).dtype == torch.float64
    assert fishr.v_bar.data_ptr() == address


def test_counters_stay_whole_numbers_and_average_precise_in_a_half_precision_parent() -> None:
    parent = nn.ModuleDict({"fishr": shoal.Fishr(E, WEIGHT, warmup_steps=0)})
    fishr = parent["fishr"]
    fishr(*make_batch(0, dtype=torch.float32))
    before = fishr.v_bar.clone()
    parent.bfloat16()
    assert fishr.steps.dtype == fishr.updates.dtype == torch.int64
    # Statistics are float32 under any precision of the network.
    assert torch.equal(fishr.v_bar, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("loaded", [False, True])
def test_follows_the_features_to_a_device(loaded: bool) -> None:
    fishr = shoal.Fishr(E, WEIGHT, warmup_steps=0)
    if loaded:
        source = shoal.Fishr(E, WEIGHT, warmup_steps=0)
        source(*make_batch(0))
        fishr.load_state_dict(source.state_dict())
    penalty = fishr(*(t.detach().cuda() for t in make_batch(1)))
    assert {b.device.type for b in fishr.buffers()} == {"cuda"}
    assert penalty.device.type == "cuda"


# λ = 0


def train(steps: int, fishr: shoal.Fishr | None) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights and the losses of a few steps of Adam on a small network."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(6, FEATURES), nn.Tanh())
    classifier = nn.Linear(FEATURES, CLASSES)
    model = nn.Sequential(features, classifier)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        inputs = torch.randn(N, 6, generator=torch.Generator().manual_seed(step))
        _, _, labels, domains = make_batch(step)
        z = features(inputs)
        logits = classifier(z)
        loss = F.cross_entropy(logits, labels)
        if fishr is not None:
            loss = loss + fishr(z, logits, labels, domains)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return [p.detach() for p in model.parameters()], losses


@pytest.mark.parametrize("fishr", [(0.0, 0), (1000.0, 5)], ids=["no weight", "warm-up"])
def test_without_a_penalty_is_erm_bit_for_bit(fishr: tuple[float, int]) -> None:
    weight, warmup = fishr
    penalised = train(5, shoal.Fishr(E, weight, DECAY, warmup))
    plain = train(5, None)
    for ours, theirs in zip(penalised, plain, strict=True):
        assert all(map(torch.equal, ours, theirs))
    # And the penalty does change the weights once it acts.
    active, _ = train(5, shoal.Fishr(E, 1000.0, DECAY, 4))
    assert not any(map(torch.equal, active, plain[0]))


# match


def test_match_on_risks_is_v_rex() -> None:
    risks = torch.tensor([0.2, 0.5, 1.1], dtype=torch.float64, requires_grad=True)
    for normalise in (True, False):
        fishr = shoal.Fishr(E, WEIGHT, 0.0, warmup_steps=0, normalise=normalise)
        penalty = fishr.match(risks)
        assert torch.allclose(penalty, WEIGHT * risks.var(unbiased=False), **EXACT)


def test_match_moves_risks_and_rows_alike() -> None:
    on_risks = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=1)
    on_rows = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=1)
    for step in range(4):
        risks = make_rows(step, columns=1)
        assert torch.equal(on_risks.match(risks[:, 0]), on_rows.match(risks))


def test_match_takes_rows_of_zeros_as_absent() -> None:
    rows = make_rows(0)
    rows[1] = 0
    by_rows, by_word = (shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0) for _ in range(2))
    expected = by_word.match(rows, torch.tensor([True, False, True]))
    assert torch.equal(by_rows.match(rows), expected)
    assert by_rows.updates.tolist() == by_word.updates.tolist() == [1, 0, 1]
    assert expected.item() > 0


def test_match_on_all_weights_of_a_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    fishr = shoal.Fishr(E, WEIGHT, DECAY, warmup_steps=0)
    v_bar = torch.zeros((), dtype=torch.float64)
    for step in range(3):
        inputs = torch.randn(N, 6, dtype=torch.float64)
        _, _, labels, domains = make_batch(step)
        v = shoal.gradient_variance(model, inputs, labels, domains, num_domains=E)
        penalty = fishr.match(v)
        v_bar = (DECAY * v_bar + (1 - DECAY) * v).detach()
    expected = WEIGHT * numpy_spread(v_bar.numpy() / (1 - DECAY)) / v.shape[1]
    np.testing.assert_allclose(penalty.item(), expected, **EXACT)
    penalty.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_head_and_match_agree_on_the_classifier() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, FEATURES), nn.Tanh(), nn.Linear(FEATURES, CLASSES))
    model = model.double()
    inputs = torch.randn(N, 6, dtype=torch.float64)
    _, _, labels, domains = make_batch(0)
    z = model[:2](inputs)
    head = shoal.Fishr(E, WEIGHT, DECAY, 0)(z, model[2](z), labels, domains)
    v = shoal.gradient_variance(model, inputs, labels, domains, parameters=model[2])
    general = shoal.Fishr(E, WEIGHT, DECAY, 0).match(v)
    assert torch.allclose(head, general, **EXACT)
    ours = torch.autograd.grad(head, list(model.parameters()))
    theirs = torch.autograd.grad(general, list(model.parameters()))
    assert all(
        torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(ours, theirs, strict=True)
    )


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_domains": 0}, "num_domains must be 1 or more, got 0"),
        ({"num_domains": -2}, "num_domains must be 1 or more, got -2"),
        ({"ema_decay": 1.0}, r"ema_decay must be in \[0, 1\), got 1.0"),
        ({"ema_decay": -0.1}, r"ema_decay must be in \[0, 1\), got -0.1"),
        ({"ema_decay": math.nan}, r"ema_decay must be in \[0, 1\), got nan"),
        ({"penalty_weight": -1.0}, "penalty_weight must be finite and 0 or more, got -1.0"),
        ({"penalty_weight": math.inf}, "penalty_weight must be finite and 0 or more, got inf"),
        ({"penalty_weight": math.nan}, "penalty_weight must be finite and 0 or more, got nan"),
        ({"warmup_steps": -1}, "warmup_steps must be 0 or more, got -1"),
    ],
)
def test_constructor_errors(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shoal.Fishr(**{"num_domains": E, **arguments})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("ema_decay", 1.0, ValueError),
        ("ema_decay", "0.9", TypeError),
        ("penalty_weight", math.nan, ValueError),
        ("penalty_weight", -1.0, ValueError),
        ("penalty_weight", None, TypeError),
        ("penalty_weight", torch.tensor(-2.0), ValueError),
        ("warmup_steps", -1, ValueError),
        ("warmup_steps", 1.5, TypeError),
    ],
)
def test_values_that_the_constructor_refuses_cannot_be_set(
    name: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"{name} must be"):
        shoal.Fishr(**{"num_domains": E, name: value})
    fishr = shoal.Fishr(E)
    before = getattr(fishr, name)
    with pytest.raises(error, match=f"{name} must be"):
        setattr(fishr, name, value)
    assert getattr(fishr, name) == before


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    fishr = shoal.Fishr(np.int64(E), torch.tensor(3.0), np.float32(0.5), np.int64(2))
    fishr.warmup_steps = 1e3
    fishr.penalty_weight = torch.tensor(2.0)
    assert (fishr.warmup_steps, float(fishr.penalty_weight), fishr.ema_decay) == (1000, 2.0, 0.5)
    given = make_batch(0)
    for number in (np.int64(E), torch.tensor(E)):
        assert shoal.head_variance(*given, num_domains=number).shape == (E, P)


def test_rows_of_another_shape_are_refused_without_a_change_of_state() -> None:
    fishr = shoal.Fishr(E)
    fishr.match(make_rows(0))
    before = snapshot(fishr)
    with pytest.raises(ValueError, match=r"first call, \[3, 6\], got \[3, 7\]"):
        fishr.match(make_rows(0, columns=7))
    with pytest.raises(ValueError, match=r"num_domains = 3, got \[2, 6\]"):
        fishr.match(make_rows(0)[:2])
    with pytest.raises(ValueError, match=r"got \[3, 2, 3\]"):
        fishr.match(make_rows(0).reshape(3, 2, 3))
    with pytest.raises(ValueError, match=r"one entry per row, \[3\], got \[2\]"):
        fishr.match(make_rows(0), torch.tensor([True, True]))
    assert same_state(before, fishr.state_dict())


def test_domain_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"domains must be in 0 … 2"):
        shoal.Fishr(E)(*make_batch(0, [0, 0, 1, 1, 3, 3]))


def test_repr_names_the_settings() -> None:
    assert repr(shoal.Fishr(3, 10.0, 0.5, 7)) == (
        "Fishr(num_domains=3, penalty_weight=10.0, ema_decay=0.5, warmup_steps=7)"
    )


def test_its_numbers_can_be_changed_during_training() -> None:
    first, second = shoal.Fishr(3, 10.0, 0.5, 0), shoal.Fishr(3, 30.0, 0.5, 0)
    batch = make_batch(0)
    one, three = first(*batch), second(*batch)
    assert torch.allclose(three, 3 * one, **EXACT)
    first.penalty_weight, first.ema_decay = 30.0, 0.9
    second.ema_decay = 0.9
    assert torch.equal(first(*make_batch(1)), second(*make_batch(1)))
    assert torch.equal(first.v_bar, second.v_bar)
    first.warmup_steps = 5
    assert first(*batch) == 0 < second(*batch)
    assert not first.active


@pytest.mark.parametrize("bias", [True, False])
def test_prepared_for_a_classifier_its_first_call_is_like_all_others(bias: bool) -> None:
    head = nn.Linear(FEATURES, CLASSES, bias=bias)
    waiting, ready = shoal.Fishr(E, WEIGHT, DECAY, 0, bias=bias), shoal.Fishr(E, WEIGHT, DECAY, 0)
    assert ready.prepare_for(head) is ready
    assert ready.v_bar.dtype == torch.float32
    assert ready.prepare_for(head.bfloat16()).v_bar.dtype == torch.float32
    assert ready.prepare_for(head.double()).v_bar.dtype == torch.float64
    address = ready.v_bar.data_ptr()
    for step in range(2):
        assert torch.equal(ready(*make_batch(step)), waiting(*make_batch(step)))
    assert same_state(ready.state_dict(), waiting.state_dict())
    assert ready.v_bar.data_ptr() == address


@pytest.mark.parametrize("normed", [weight_norm, spectral_norm])
def test_prepared_for_a_classifier_whose_weight_is_made_of_others(normed: Any) -> None:
    ready = shoal.Fishr(E).prepare_for(normed(nn.Linear(FEATURES, CLASSES)))
    assert ready.v_bar.shape == (E, CLASSES * (FEATURES + 1))


def test_values_that_are_not_finite_are_not_counted_as_an_update() -> None:
    fishr = shoal.Fishr(2, 1.0, warmup_steps=0)
    fishr.match(torch.tensor([[1.0], [2.0]]), present=True)
    fishr.match(torch.tensor([[1.0], [float("inf")]]), present=True)
    assert fishr.updates.tolist() == [1, 1]
    assert fishr.steps == 2


def test_matching_is_as_precise_under_autocast() -> None:
    rows = torch.tensor([[1.0, 1000.0], [1.001, 1000.1], [1.002, 1000.2]])
    plain, cast = (shoal.Fishr(3, 1.0, warmup_steps=0, normalise=False) for _ in range(2))
    expected = plain.match(rows, present=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert cast.match(rows, present=True) == expected
