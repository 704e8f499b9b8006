"""head_variance and Fishr under torch.func: grad equals autograd, vmap equals a loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, jacrev, stack_module_state, vmap

import shoal
from tests.oracles import autograd as oracle

MEMBERS, E, N, P, C = 3, 3, 11, 4, 3
# Unsorted and imbalanced; domain 2 has one example and is absent.
DOMAINS = torch.tensor([0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 1])
LABELS = torch.arange(N) % C


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


FEATURES, HEADS = normal(MEMBERS, N, P), normal(MEMBERS, C, P, seed=1)
COTANGENT = normal(E, C * (P + 1), seed=7)
# Every member has its own order of the domains.
ORDERS = torch.stack([DOMAINS.roll(k) for k in range(MEMBERS)])


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - F.one_hot(labels, C)).square().sum(1)


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "uncentred": {"centered": False},
    "biased, without a bias": {"unbiased": False, "bias": False},
    "own loss": {"loss": squared_error},
}


def rows(head: Tensor, features: Tensor, domains: Tensor = DOMAINS, **options: Any) -> Tensor:
    logits = features @ head.mT
    return shoal.head_variance(features, logits, LABELS, domains, num_domains=E, **options)


def number(head: Tensor, features: Tensor, domains: Tensor = DOMAINS, **options: Any) -> Tensor:
    """Return a number that depends on every entry of the rows."""
    v = rows(head, features, domains, **options)
    return (v * COTANGENT[:, : v.shape[1]]).sum() + shoal.spread(
        v, torch.tensor([True, True, False])
    )


def by_autograd(function: Callable[..., Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
    leaves = tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)
    return torch.autograd.grad(function(*leaves), leaves)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_grad_equals_autograd(options: dict[str, Any]) -> None:
    def loss(head: Tensor, features: Tensor) -> Tensor:
        return number(head, features, **options)

    gradients, value = grad_and_value(loss, argnums=(0, 1))(HEADS[0], FEATURES[0])
    torch.testing.assert_close(value, loss(HEADS[0], FEATURES[0]), **oracle.VALUE)
    expected = by_autograd(loss, HEADS[0], FEATURES[0])
    torch.testing.assert_close(gradients, expected, **oracle.GRADIENT)


@pytest.mark.parametrize("domains", [DOMAINS, ORDERS], ids=["shared domains", "own domains"])
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_vmap_over_heads_equals_a_loop(options: dict[str, Any], domains: Tensor) -> None:
    own = domains.ndim == 2
    in_dims = (0, 0, 0 if own else None)

    def loss(head: Tensor, features: Tensor, domains: Tensor) -> Tensor:
        return number(head, features, domains, **options)

    found = vmap(lambda *args: rows(*args, **options), in_dims)(HEADS, FEATURES, domains)
    slopes = vmap(grad(loss, argnums=(0, 1)), in_dims)(HEADS, FEATURES, domains)
    total = grad(lambda heads: vmap(loss, in_dims)(heads, FEATURES, domains).sum())(HEADS)
    for k in range(MEMBERS):
        ids = domains[k] if own else domains
        expected = rows(HEADS[k], FEATURES[k], ids, **options)
        torch.testing.assert_close(found[k], expected, **oracle.VALUE)
        one = by_autograd(lambda h, z, ids=ids: loss(h, z, ids), HEADS[k], FEATURES[k])
        for mine, theirs in zip(slopes, one, strict=True):
            torch.testing.assert_close(mine[k], theirs, **oracle.GRADIENT)
        torch.testing.assert_close(total[k], one[0], **oracle.GRADIENT)


def test_vmap_over_one_logit_and_soft_targets() -> None:
    soft = torch.softmax(normal(MEMBERS, N, C, seed=2), -1)
    binary = (LABELS > 0).long()

    def of_soft(z: Tensor, head: Tensor, soft: Tensor) -> Tensor:
        return shoal.head_variance(z, z @ head.mT, soft, DOMAINS, num_domains=E)

    def of_one(z: Tensor, head: Tensor) -> Tensor:
        return shoal.head_variance(z, z @ head[0], binary, DOMAINS)

    found = vmap(of_soft)(FEATURES, HEADS, soft)
    one = vmap(of_one)(FEATURES, HEADS)
    for k in range(MEMBERS):
        expected = of_soft(FEATURES[k], HEADS[k], soft[k])
        torch.testing.assert_close(found[k], expected, **oracle.VALUE)
        torch.testing.assert_close(one[k], of_one(FEATURES[k], HEADS[k]), **oracle.VALUE)


def test_a_jacobian_of_the_rows() -> None:
    found = jacrev(rows)(HEADS[0], FEATURES[0])
    head = HEADS[0].clone().requires_grad_()
    v = rows(head, FEATURES[0])
    for e in range(E):
        (expected,) = torch.autograd.grad(v[e, 1], head, retain_graph=True)
        torch.testing.assert_close(found[e, 1], expected, **oracle.GRADIENT)


def test_values_are_checked_where_they_can_be_read() -> None:
    with pytest.raises(ValueError, match=r"labels must be in 0 … 2"):
        grad(lambda z: shoal.head_variance(z, z @ HEADS[0].mT, LABELS + 1, DOMAINS).sum())(
            FEATURES[0]
        )
    with pytest.raises(ValueError, match="num_domains must be given"):
        vmap(lambda d: shoal.head_variance(FEATURES[0], FEATURES[0] @ HEADS[0].mT, LABELS, d))(
            ORDERS
        )


def make_fishr(weight: float = 2.0, decay: float = 0.7, **options: Any) -> shoal.Fishr:
    fishr = shoal.Fishr(E, weight, decay, warmup_steps=1, normalise=False, **options)
    fishr.allocate(C * (P + 1), torch.float64)
    return fishr


def penalty(fishr: Any, head: Tensor, features: Tensor, domains: Tensor = DOMAINS) -> Tensor:
    found: Tensor = fishr(features, features @ head.mT, LABELS, domains)
    return found


def test_fishr_under_grad_has_the_penalty_gradient_and_state_of_autograd() -> None:
    # The first has no v̄ before its first call.
    inside, outside = shoal.Fishr(E, 2.0, 0.7, 1, normalise=False), make_fishr()
    for k in range(3):
        features, domains = FEATURES[k], ORDERS[k]

        def loss(head: Tensor, features: Tensor = features, domains: Tensor = domains) -> Tensor:
            return penalty(inside, head, features, domains)

        slope, value = grad_and_value(loss)(HEADS[0])
        head = HEADS[0].clone().requires_grad_()
        expected = penalty(outside, head, features, domains)
        torch.testing.assert_close(value, expected.detach(), **oracle.VALUE)
        torch.testing.assert_close(slope, torch.autograd.grad(expected, head)[0], **oracle.GRADIENT)
        assert (float(value) > 0) == (k > 0)  # the first call is the warm-up
        for name, tensor in inside.state_dict().items():
            torch.testing.assert_close(tensor, outside.state_dict()[name], **oracle.VALUE)
    assert inside.updates.tolist() == [3, 3, 0]


@pytest.mark.parametrize("outer", [False, True], ids=["vmap of grad", "grad of vmap"])
def test_an_ensemble_of_fishrs_equals_a_loop(outer: bool) -> None:
    """Each member has its own λ, γ and running variances, stacked, which vmap updates in place."""
    settings = [(2.0, 0.7), (5.0, 0.0), (0.5, 0.9)]
    alone = [make_fishr(*setting) for setting in settings]
    parameters, buffers = stack_module_state([make_fishr(*setting) for setting in settings])  # type: ignore[arg-type]
    skeleton = make_fishr()

    def loss(head: Tensor, buffers: dict[str, Tensor], features: Tensor, ids: Tensor) -> Tensor:
        arguments = (features, features @ head.mT, LABELS, ids)
        found: Tensor = functional_call(skeleton, (parameters, buffers), arguments)
        return found

    for step in range(3):
        domains = ORDERS.roll(step, 0)
        if outer:
            several = vmap(loss)
            slopes = grad(lambda heads, *rest: several(heads, *rest).sum())(  # noqa: B023
                HEADS, buffers, FEATURES, domains
            )
        else:
            slopes, values = vmap(grad_and_value(loss))(HEADS, buffers, FEATURES, domains)
        for k, fishr in enumerate(alone):
            head = HEADS[k].clone().requires_grad_()
            expected = penalty(fishr, head, FEATURES[k], domains[k])
            one = torch.autograd.grad(expected, head)[0]
            torch.testing.assert_close(slopes[k], one, **oracle.GRADIENT)
            if not outer:
                torch.testing.assert_close(values[k], expected.detach(), **oracle.VALUE)
            for name, tensor in fishr.state_dict().items():
                torch.testing.assert_close(buffers[name][k], tensor, **oracle.VALUE)
    assert buffers["steps"].tolist() == [3, 3, 3]


def test_one_fishr_cannot_follow_many_members_but_can_measure_them() -> None:
    fishr = make_fishr(decay=0.0)
    with pytest.raises(RuntimeError, match=r"call \.eval\(\), or give every member its own state"):
        vmap(lambda head, z: penalty(fishr, head, z))(HEADS, FEATURES)
    assert not fishr.v_bar.any()
    fishr.steps.fill_(1)
    fishr.eval()
    found = vmap(lambda head, z: penalty(fishr, head, z))(HEADS, FEATURES)
    expected = [penalty(fishr, head, z) for head, z in zip(HEADS, FEATURES, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), **oracle.VALUE)
    assert found.min() > 0


def test_match_under_grad() -> None:
    """Rows of any statistic, with an absent domain."""
    inside, outside = (shoal.Fishr(E, 2.0, 0.5, 0, normalise=False) for _ in range(2))
    present = torch.tensor([True, True, False])
    for k in range(2):
        v = normal(E, 5, seed=k).square()
        slope = grad(lambda v: inside.match(v, present))(v)
        leaf = v.clone().requires_grad_()
        (expected,) = torch.autograd.grad(outside.match(leaf, present), leaf)
        torch.testing.assert_close(slope, expected, **oracle.GRADIENT)
    torch.testing.assert_close(inside.v_bar, outside.v_bar, **oracle.VALUE)


def test_gradient_share_under_grad() -> None:
    settings = {"warmup_steps": 50, "gradient_share": 0.5, "normalise": False}
    inside, outside = (shoal.Fishr(E, 2.0, 0.5, **settings) for _ in range(2))
    for k in range(51):
        z = normal(N, P, seed=k)
        slope = grad(lambda head, z=z: penalty(inside, head, z))(HEADS[0])
        head = HEADS[0].clone().requires_grad_()
        (expected,) = torch.autograd.grad(penalty(outside, head, z), head)
    assert expected.abs().max() > 0
    torch.testing.assert_close(slope, expected, **oracle.GRADIENT)
    torch.testing.assert_close(inside.ratios, outside.ratios)
