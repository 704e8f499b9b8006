"""Penalties as pure functions of one row per domain: spread (Eq. 3), pairwise, irm, and mmd."""

import re
from collections.abc import Callable
from itertools import combinations
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

import shoal
from shoal import penalties
from tests.oracles import autograd as oracle


def numpy_spread(rows: np.ndarray) -> float:
    """Return Eq. 3, term by term."""
    middle = rows.mean(axis=0)
    return float(np.mean([((row - middle) ** 2).sum() for row in rows]))


def rows_of(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("shape", [(3, 5), (2, 7), (4, 1), (4,), (2,)])
def test_is_equation_3(shape: tuple[int, ...]) -> None:
    rows = rows_of(*shape)
    assert float(shoal.spread(rows)) == pytest.approx(numpy_spread(rows.numpy()), rel=1e-12)


def test_is_a_sum_over_weights_and_a_mean_over_domains() -> None:
    rows = torch.tensor([[1.0, 5.0], [3.0, 1.0]])
    assert float(shoal.spread(rows)) == 1 + 4
    assert float(shoal.spread(torch.tensor([1.0, 2.0, 6.0]))) == pytest.approx((4 + 1 + 9) / 3)


def test_two_domains_give_a_quarter_of_the_squared_distance() -> None:
    rows = rows_of(2, 6)
    quarter = (rows[0] - rows[1]).square().sum() / 4
    torch.testing.assert_close(shoal.spread(rows), quarter, **oracle.VALUE)


@pytest.mark.parametrize("width", [(), (3,)])
def test_rows_of_zeros_are_absent_by_default(width: tuple[int, ...]) -> None:
    rows = rows_of(5, *width)
    rows[1] = 0
    rows[4] = 0
    expected = numpy_spread(rows[[0, 2, 3]].numpy())
    assert float(shoal.spread(rows)) == pytest.approx(expected, rel=1e-12)


def test_a_row_with_some_zeros_is_present() -> None:
    rows = rows_of(3, 4)
    rows[1, :3] = 0
    assert float(shoal.spread(rows)) == pytest.approx(numpy_spread(rows.numpy()), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_present_chooses_the_domains(dtype: torch.dtype) -> None:
    rows = rows_of(4, 3)
    present = torch.tensor([1, 0, 1, 1]).to(dtype)
    expected = numpy_spread(rows[[0, 2, 3]].numpy())
    assert float(shoal.spread(rows, present)) == pytest.approx(expected, rel=1e-12)


def test_present_overrules_a_row_of_zeros() -> None:
    rows = rows_of(3, 2)
    rows[1] = 0
    everyone = torch.ones(3, dtype=torch.bool)
    expected = numpy_spread(rows.numpy())
    assert float(shoal.spread(rows, everyone)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("present", [None, torch.tensor([False, True, False])])
@pytest.mark.parametrize("shape", [(3, 4), (3,)])
def test_fewer_than_two_domains_give_zero_with_a_graph(
    shape: tuple[int, ...], present: Tensor | None
) -> None:
    base = rows_of(*shape)
    if present is None:
        base[0] = 0
        base[2] = 0
    base.requires_grad_()
    loss = shoal.spread(base * 1.0, present)
    assert loss == 0
    loss.backward()
    assert torch.equal(base.grad, torch.zeros_like(base))


def test_no_domain_present_gives_zero_with_a_graph() -> None:
    rows = torch.zeros(3, 4, requires_grad=True)
    loss = shoal.spread(rows)
    assert loss == 0
    loss.backward()
    assert torch.equal(rows.grad, torch.zeros(3, 4))


def test_absent_domains_get_no_gradient() -> None:
    rows = rows_of(4, 3).requires_grad_()
    shoal.spread(rows, torch.tensor([True, True, False, True])).backward()
    assert torch.equal(rows.grad[2], torch.zeros(3, dtype=torch.float64))
    assert (rows.grad[[0, 1, 3]] != 0).all()


@pytest.mark.parametrize("shape", [(4, 3), (4,)])
@pytest.mark.parametrize("present", [None, torch.tensor([True, False, True, True])])
def test_gradcheck(shape: tuple[int, ...], present: Tensor | None) -> None:
    rows = rows_of(*shape).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: shoal.spread(rows, present), rows)
    assert torch.autograd.gradgradcheck(lambda rows: shoal.spread(rows, present), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_shape(dtype: torch.dtype) -> None:
    loss = shoal.spread(rows_of(3, 2).to(dtype))
    assert loss.dtype == dtype
    assert loss.shape == ()


def test_rows_are_not_changed() -> None:
    rows = rows_of(3, 2)
    before = rows.clone()
    shoal.spread(rows)
    assert torch.equal(rows, before)


def test_a_large_common_value_costs_no_accuracy_in_float32() -> None:
    rows = 1000 + rows_of(3, 50).float()
    expected = numpy_spread(rows.double().numpy())
    assert float(shoal.spread(rows)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        (torch.ones(2, 3, 4), ValueError, r"rows must be \[E, P\] or \[E\].* got \[2, 3, 4\]"),
        (torch.tensor(1.0), ValueError, r"rows must be \[E, P\] or \[E\].* got \[\]"),
        (torch.ones(2, 3).long(), TypeError, r"rows must be floating point, got torch.int64"),
        ([[1.0], [2.0]], TypeError, r"rows must be a tensor, got list"),
        (torch.ones(0, 3), ValueError, r"rows must be \[E, P\] or \[E\].* got \[0, 3\]"),
        (torch.tensor([1.0, float("nan")]), ValueError, r"rows holds 1 NaN of 2 values"),
    ],
)
def test_bad_rows_are_refused(rows: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        shoal.spread(rows)


@pytest.mark.parametrize("shape", [[3], [2, 1], []])
def test_present_of_another_shape_is_refused(shape: list[int]) -> None:
    text = f"present must have one entry per row, [2], got {shape}"
    with pytest.raises(ValueError, match=re.escape(text)):
        shoal.spread(torch.ones(2, 3), torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("present", [[True, False], True])
def test_present_must_be_a_tensor(present: object) -> None:
    with pytest.raises(TypeError, match=r"present must be a bool tensor \[E\], got"):
        shoal.spread(torch.ones(2, 3), present)


def test_values_of_an_absent_row_do_not_matter() -> None:
    rows = torch.tensor([[1.0], [2.0], [float("inf")]], requires_grad=True)
    value = shoal.spread(rows, torch.tensor([True, True, False]))
    assert value.item() == 0.25
    assert torch.autograd.grad(value, rows)[0].flatten().tolist() == [-0.5, 0.5, 0.0]


# pairwise


def numpy_pairwise(rows: np.ndarray) -> float:
    """Return the mean of the squared distance over pairs, one pair at a time."""
    pairs = list(combinations(rows, 2))
    return float(np.mean([((one - other) ** 2).sum() for one, other in pairs])) if pairs else 0.0


@pytest.mark.parametrize("shape", [(3, 5), (2, 7), (6, 1), (1, 4), (4,), (1,)])
def test_pairwise_is_a_mean_over_pairs(shape: tuple[int, ...]) -> None:
    rows = rows_of(*shape)
    expected = numpy_pairwise(rows.numpy())
    assert float(penalties.pairwise(rows)) == pytest.approx(expected, rel=1e-12)


def test_pairwise_counts_a_row_of_zeros() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert float(penalties.pairwise(rows)) == 25


@pytest.mark.parametrize("shape", [(4, 3), (4,), (1, 3)])
def test_pairwise_gradcheck(shape: tuple[int, ...]) -> None:
    rows = rows_of(*shape).requires_grad_()
    assert torch.autograd.gradcheck(penalties.pairwise, rows)
    assert torch.autograd.gradgradcheck(penalties.pairwise, rows)


def test_pairwise_of_one_domain_is_zero_with_a_graph() -> None:
    rows = rows_of(1, 3).requires_grad_()
    loss = penalties.pairwise(rows)
    assert loss == 0
    loss.backward()
    assert torch.equal(rows.grad, torch.zeros(1, 3, dtype=torch.float64))


def test_pairwise_with_a_large_common_value_is_accurate_in_float32() -> None:
    rows = 1000 + rows_of(3, 50).float()
    expected = numpy_pairwise(rows.double().numpy())
    assert float(penalties.pairwise(rows)) == pytest.approx(expected, rel=1e-3)


# irm


def test_irm_is_the_mean_product() -> None:
    slopes = torch.tensor([[1.0, 2.0], [-3.0, 4.0], [5.0, 0.0]])
    assert float(penalties.irm(slopes)) == pytest.approx((2 - 12 + 0) / 3)


def test_irm_gradcheck() -> None:
    slopes = rows_of(3, 2).requires_grad_()
    assert torch.autograd.gradcheck(penalties.irm, slopes)
    assert torch.autograd.gradgradcheck(penalties.irm, slopes)


# mmd


def loop_mmd(features: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the penalty by loops over pairs of domains, examples and kernels."""

    def kernel(one: Tensor, other: Tensor) -> Tensor:
        square = (one - other).square().sum()
        return sum(torch.exp(-gamma * square) for gamma in (1e-3, 1e-2, 0.1, 1, 10, 100, 1000))

    def mean(one: Tensor, other: Tensor) -> Tensor:
        return sum(kernel(x, y) for x in one for y in other) / (len(one) * len(other))

    pairs = list(combinations(features.split(sizes), 2))
    values = [mean(a, a) + mean(b, b) - 2 * mean(a, b) for a, b in pairs]
    return sum(values, 0 * features.sum()) / max(len(pairs), 1)


# From far apart, so that the widest kernel acts, to close together, so that the narrowest does.
@pytest.mark.parametrize("scale", [20.0, 1.0, 0.02])
@pytest.mark.parametrize("sizes", [(3, 3), (4, 2, 3), (1, 1, 2), (5,), (1,)])
def test_mmd_and_its_gradient(sizes: tuple[int, ...], scale: float) -> None:
    features = (scale * rows_of(sum(sizes), 3)).requires_grad_()
    found, expected = penalties.mmd(features, sizes), loop_mmd(features, sizes)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    one, other = (torch.autograd.grad(value, features)[0] for value in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_mmd_gradcheck() -> None:
    features = rows_of(6, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: penalties.mmd(z, (3, 1, 2)), features)


def test_mmd_of_examples_that_are_the_same() -> None:
    # A zero distance has no gradient, and nothing divides by it.
    features = torch.ones(4, 3, requires_grad=True)
    loss = penalties.mmd(features, (1, 3))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert torch.equal(features.grad, torch.zeros(4, 3))


def test_mmd_survives_distances_that_round_below_zero() -> None:
    # Pairs of almost equal examples, far from all others, so that squares cancel: with γ = 1000 the
    # kernel of a negative distance would explode.
    base = 30 * rows_of(32, 64)
    close = base + 1e-4 * rows_of(32, 64).flip(0)
    found = penalties.mmd(torch.cat([base, close]).float(), (32, 32))
    assert 0 <= float(found) <= 2 * 7 / 32


def test_mmd_with_a_large_common_value_is_accurate_in_float32() -> None:
    close = rows_of(8, 4) / 10
    far = (close + 300).float()
    expected = float(loop_mmd(far.double(), (4, 4)))
    assert float(penalties.mmd(far, (4, 4))) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_mmd_is_float32_or_float64_under_autocast(dtype: torch.dtype) -> None:
    features = rows_of(7, 4).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = penalties.mmd(features, (4, 3))
    assert found.dtype == (dtype if dtype == torch.float64 else torch.float32)
    expected = float(loop_mmd(features.double(), (4, 3)))
    assert float(found) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sizes", [(2, 3), (4, 0), (5, -1), ()])
def test_mmd_refuses_sizes_that_do_not_fit(sizes: tuple[int, ...]) -> None:
    text = (
        f"sizes must be 1 or more for each domain and add up to the 4 examples, got {list(sizes)}"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        penalties.mmd(torch.ones(4, 3), sizes)


@pytest.mark.parametrize(
    ("penalty", "argument", "error", "text"),
    [
        (penalties.pairwise, torch.ones(2, 3, 4), ValueError, r"rows must be \[E, P\] or \[E\]"),
        (penalties.pairwise, torch.ones(2, 3).long(), TypeError, r"rows must be floating point"),
        (penalties.irm, torch.ones(3, 3), ValueError, r"slopes must be \[E, 2\].* got \[3, 3\]"),
        (penalties.irm, torch.ones(2), ValueError, r"slopes must be \[E, 2\].* got \[2\]"),
        (penalties.irm, torch.ones(3, 2).long(), TypeError, r"slopes must be floating point"),
        (lambda z: penalties.mmd(z, (2,)), torch.ones(2), ValueError, r"features must be \[n, p\]"),
    ],
)
def test_bad_arguments_are_refused(
    penalty: Callable[[Tensor], Tensor], argument: Tensor, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        penalty(argument)


# Properties. Numbers of moderate size: squares neither overflow nor vanish.
some_rows = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.floats(-1e3, 1e3, allow_subnormal=False),
)
some_slopes = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.just(2)), elements=st.floats(-1e3, 1e3)
)
moderate = settings(max_examples=60, deadline=None, derandomize=True)


def single(rows: Tensor) -> Tensor:
    """Return mmd with one example in each domain."""
    return penalties.mmd(rows, (1,) * len(rows))


SPREADS = [shoal.spread, penalties.pairwise, single]
spreads = pytest.mark.parametrize("penalty", SPREADS)
Penalty = Callable[[Tensor], Tensor]


@spreads
@moderate
@given(rows=some_rows)
def test_never_negative(penalty: Penalty, rows: np.ndarray) -> None:
    roundoff = 1e-12 if penalty is single else 0
    assert float(penalty(torch.from_numpy(rows))) >= -roundoff


@spreads
@moderate
@given(rows=some_rows, domains=st.integers(1, 6))
def test_zero_for_equal_rows(penalty: Penalty, rows: np.ndarray, domains: int) -> None:
    same = torch.from_numpy(rows[:1].repeat(domains, axis=0))
    assert float(penalty(same)) <= 1e-20 * float((same**2).sum())


@moderate
@given(some_rows, st.integers(1, 4))
def test_mmd_is_zero_for_domains_with_the_same_examples(rows: np.ndarray, domains: int) -> None:
    features, sizes = torch.from_numpy(rows).repeat(domains, 1), (len(rows),) * domains
    assert float(penalties.mmd(features, sizes)) == pytest.approx(0, abs=1e-6)


@moderate
@given(some_rows, st.data())
def test_mmd_of_larger_domains_is_not_negative(rows: np.ndarray, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(rows) - 1))
    sizes = (cut, len(rows) - cut) if cut else (len(rows),)
    assert float(penalties.mmd(torch.from_numpy(rows), sizes)) >= -1e-12


@moderate
@given(some_slopes, some_slopes)
def test_irm_is_zero_if_one_half_has_no_slope(one: np.ndarray, other: np.ndarray) -> None:
    slopes = np.concatenate([one, other])
    slopes[: len(one), 0] = 0
    slopes[len(one) :, 1] = 0
    assert float(penalties.irm(torch.from_numpy(slopes))) == 0


@moderate
@given(some_slopes)
def test_irm_of_equal_halves_is_a_mean_square(slopes: np.ndarray) -> None:
    both = torch.from_numpy(slopes[:, [0, 0]])
    expected = float(np.mean(slopes[:, 0] ** 2))
    assert float(penalties.irm(both)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("penalty", [*SPREADS, penalties.irm])
@moderate
@given(data=st.data(), random=st.randoms(use_true_random=False))
def test_order_of_domains_and_of_columns_does_not_matter(
    penalty: Penalty, data: st.DataObject, random: Random
) -> None:
    rows = data.draw(some_slopes if penalty is penalties.irm else some_rows)
    domains, columns = list(range(rows.shape[0])), list(range(rows.shape[1]))
    random.shuffle(domains)
    random.shuffle(columns)
    one = float(penalty(torch.from_numpy(rows)))
    other = float(penalty(torch.from_numpy(rows[domains][:, columns])))
    assert other == pytest.approx(one, rel=1e-9, abs=1e-9)


@moderate
@given(some_rows, st.data(), st.randoms(use_true_random=False))
def test_order_of_larger_domains_does_not_matter_to_mmd(
    rows: np.ndarray, data: st.DataObject, random: Random
) -> None:
    cut = data.draw(st.integers(0, len(rows) - 1))
    parts = [part for part in np.split(rows, [cut]) if len(part)]
    values = []
    for _ in range(2):
        features = torch.from_numpy(np.concatenate(parts))
        values.append(float(penalties.mmd(features, [len(part) for part in parts])))
        parts = [part[random.sample(range(len(part)), len(part))] for part in reversed(parts)]
    assert values[1] == pytest.approx(values[0], rel=1e-6, abs=1e-6)


@spreads
@moderate
@given(rows=some_rows, shift=st.floats(-10, 10))
def test_a_common_shift_does_not_matter(penalty: Penalty, rows: np.ndarray, shift: float) -> None:
    rows = torch.from_numpy(rows)
    if penalty is shoal.spread:
        everyone = torch.ones(len(rows), dtype=torch.bool)
        one, other = (float(shoal.spread(r, everyone)) for r in (rows, rows + shift))
    else:
        one, other = (float(penalty(r)) for r in (rows, rows + shift))
    assert other == pytest.approx(one, rel=1e-9, abs=1e-6 if penalty is single else 1e-9)


two_rows = arrays.arrays(
    np.float64, st.tuples(st.just(2), st.integers(1, 5)), elements=st.floats(-1e3, 1e3)
)


@moderate
@given(two_rows)
def test_two_domains(rows: np.ndarray) -> None:
    square = float(((rows[0] - rows[1]) ** 2).sum())
    rows = torch.from_numpy(rows)
    everyone = torch.ones(2, dtype=torch.bool)
    assert float(shoal.spread(rows, everyone)) == pytest.approx(square / 4, rel=1e-9, abs=1e-9)
    assert float(penalties.pairwise(rows)) == pytest.approx(square, rel=1e-9, abs=1e-9)
    kernel = sum(np.exp(-(10.0**k) * square) for k in range(-3, 4))
    assert float(single(rows)) == pytest.approx(2 * (7 - kernel), rel=1e-9, abs=1e-6)


@moderate
@given(some_rows)
def test_agrees_with_equation_3(rows: np.ndarray) -> None:
    kept = rows[(rows != 0).any(axis=1)]
    expected = numpy_spread(kept) if len(kept) else 0.0
    ours = float(shoal.spread(torch.from_numpy(rows)))
    assert ours == pytest.approx(expected, rel=1e-9, abs=1e-9)


@moderate
@given(some_rows)
def test_pairwise_is_a_multiple_of_the_spread(rows: np.ndarray) -> None:
    domains = len(rows)
    factor = 2 * domains / (domains - 1) if domains > 1 else 0
    expected = factor * numpy_spread(rows)
    ours = float(penalties.pairwise(torch.from_numpy(rows)))
    assert ours == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert ours == pytest.approx(numpy_pairwise(rows), rel=1e-9, abs=1e-9)
