"""spread: Eq. 3 as a pure function of one row per domain."""

import re
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

import shoal
from tests.oracles import autograd as oracle


def numpy_spread(rows: np.ndarray) -> float:
    """Eq. 3, read aloud."""
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
def test_present_says_who_takes_part(dtype: torch.dtype) -> None:
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


def test_nobody_present_gives_zero_with_a_graph() -> None:
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


def test_rows_are_left_as_they_were() -> None:
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


# Properties. Numbers of moderate size: squares neither overflow nor vanish.
some_rows = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 5)),
    elements=st.floats(-1e3, 1e3, allow_subnormal=False),
)
moderate = settings(max_examples=60, deadline=None, derandomize=True)


@moderate
@given(some_rows)
def test_never_negative(rows: np.ndarray) -> None:
    assert float(shoal.spread(torch.from_numpy(rows))) >= 0


@moderate
@given(some_rows, st.integers(2, 6))
def test_zero_for_equal_rows(rows: np.ndarray, domains: int) -> None:
    same = torch.from_numpy(rows[:1].repeat(domains, axis=0))
    assert float(shoal.spread(same)) <= 1e-20 * float((same**2).sum())


@moderate
@given(some_rows, st.randoms(use_true_random=False))
def test_order_of_domains_and_of_weights_does_not_matter(rows: np.ndarray, random: Random) -> None:
    domains, weights = list(range(rows.shape[0])), list(range(rows.shape[1]))
    random.shuffle(domains)
    random.shuffle(weights)
    one = float(shoal.spread(torch.from_numpy(rows)))
    other = float(shoal.spread(torch.from_numpy(rows[domains][:, weights])))
    assert other == pytest.approx(one, rel=1e-9, abs=1e-9)


@moderate
@given(some_rows, st.floats(-10, 10))
def test_a_common_shift_does_not_matter(rows: np.ndarray, shift: float) -> None:
    rows = torch.from_numpy(rows)
    everyone = torch.ones(len(rows), dtype=torch.bool)
    one, other = (float(shoal.spread(r, everyone)) for r in (rows, rows + shift))
    assert other == pytest.approx(one, rel=1e-9, abs=1e-9)


@moderate
@given(some_rows)
def test_agrees_with_equation_3(rows: np.ndarray) -> None:
    kept = rows[(rows != 0).any(axis=1)]
    expected = numpy_spread(kept) if len(kept) else 0.0
    ours = float(shoal.spread(torch.from_numpy(rows)))
    assert ours == pytest.approx(expected, rel=1e-9, abs=1e-9)
