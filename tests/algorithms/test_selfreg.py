"""SelfReg against its loss written out, example by example, with its own batch norm."""

import pytest
import torch
from torch import Tensor

from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import Hparams
from shoal.algorithms.selfreg import SelfReg, projection
from shoal.randomness import Draws

from .plain import FEATURES, Plain, PlainAdam, compare, make, make_batches
from .stepping import asks_nothing


def normalised(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Batch norm of a batch, column by column."""
    columns = []
    for k in range(rows.shape[1]):
        column = rows[:, k]
        mean = sum(column) / len(column)
        variance = sum((one - mean) ** 2 for one in column) / len(column)
        columns.append((column - mean) / (variance + 1e-5) ** 0.5 * weight[k] + bias[k])
    return torch.stack(columns, 1)


def partners(draws: Draws, labels: list[int]) -> list[int]:
    """In every class, its examples in the order of the draw take its places in turn."""
    order = draws.permutation(len(labels)).tolist()
    found = [0] * len(labels)
    for label in set(labels):
        places = [i for i, y in enumerate(labels) if y == label]
        drawn = [i for i in order if labels[i] == label]
        for place, partner in zip(places, drawn, strict=True):
            found[place] = partner
    return found


class WrittenOut:
    """The oracle; the weights of the projection are its own."""

    def __init__(self, algorithm: SelfReg, weight_decay: float) -> None:
        self.algorithm = algorithm
        self.own = {
            name: p.detach().clone().requires_grad_()
            for name, p in algorithm.projection.named_parameters()
        }
        self.adam = PlainAdam(weight_decay=weight_decay)
        self.draws = Draws("selfreg", 0)
        self.weight_decay = weight_decay

    def project(self, z: Tensor) -> Tensor:
        for layer in (0, 3, 6):
            z = z @ self.own[f"{layer}.weight"].T
            z = normalised(z, self.own[f"{layer + 1}.weight"], self.own[f"{layer + 1}.bias"])
            z = torch.where(z > 0, z, 0.0) if layer < 6 else z
        return z

    def __call__(self, plain: Plain, batches: list[Batch], step: int) -> Tensor:
        inputs = torch.cat([x for x, _ in batches])
        labels = torch.cat([y for _, y in batches])
        n = len(labels)
        z = plain.features(inputs)
        logits, projected = plain.classify(z), self.project(z)
        risk = plain.risk((inputs, labels))
        share = float(self.draws.beta(0.5, 1))
        a = partners(self.draws, labels.tolist())
        b = partners(self.draws, labels.tolist())
        total = 0.0
        for i in range(n):
            to_logits = share * logits[a[i]] + (1 - share) * logits[b[i]]
            to_features = share * projected[a[i]] + (1 - share) * projected[b[i]]
            total = total + share * (
                ((logits[i] - logits[a[i]]) ** 2).sum() / logits.numel()
                + 0.3 * ((z[i] - projected[a[i]]) ** 2).sum() / z.numel()
            )
            total = total + (1 - share) * (
                ((logits[i] - to_logits) ** 2).sum() / logits.numel()
                + 0.3 * ((z[i] - to_features) ** 2).sum() / z.numel()
            )
        loss = risk + min(float(risk.detach()), 1.0) * total
        found = torch.autograd.grad(loss, list(self.own.values()), retain_graph=True)
        gradients = plain.gradients(loss)
        self.adam.step(self.own, dict(zip(self.own, found, strict=True)))
        plain.adam(weight_decay=self.weight_decay).step(plain.weights, gradients)
        for name, p in self.algorithm.projection.named_parameters():
            torch.testing.assert_close(p, self.own[name], rtol=1e-7, atol=1e-8)
        return loss


def make_one(num_domains: int = 3, **hparams: float) -> SelfReg:
    algorithm = make("selfreg", num_domains, **hparams)
    assert isinstance(algorithm, SelfReg)
    return algorithm


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 3), (3,), (1, 2, 3, 1, 2, 4), (1, 1)])
def test_selfreg(sizes: tuple[int, ...]) -> None:
    algorithm = make_one(len(sizes), weight_decay=0.1)
    compare(algorithm, WrittenOut(algorithm, 0.1), sizes=sizes, tolerance=1e-7)


@pytest.mark.parametrize(("bias", "below"), [(5.0, True), (-5.0, False)])
def test_the_rest_counts_as_much_as_the_risk_and_once_at_most(bias: float, below: bool) -> None:
    algorithm = make_one()
    with torch.no_grad():
        algorithm.model.classifier.bias[0] = bias  # all examples are of class 0
    plain, oracle = Plain(algorithm), WrittenOut(algorithm, 0.0)
    batches = [(x, torch.zeros_like(y)) for x, y in make_batches(0)]
    terms = algorithm.update(batches)
    expected = oracle(plain, batches, 0)
    assert (terms["risk"] < 1) == below
    torch.testing.assert_close(terms["loss"], expected.detach(), rtol=1e-9, atol=1e-9)
    for name, p in algorithm.model.named_parameters():
        torch.testing.assert_close(p, plain.weights[name], rtol=1e-7, atol=1e-8)


def test_partners_stay_in_their_class_and_any_can_come() -> None:
    algorithm = make_one()
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 1, 0])
    seen = set()
    for _ in range(700):
        found = algorithm._partners(labels)
        assert torch.equal(labels[found], labels)
        assert sorted(found.tolist()) == list(range(8))
        seen.add(tuple(found.tolist()))
    assert len(seen) == 6 * 2 * 6  # all permutations within classes of 3, 2 and 3


def test_the_projection_is_trained() -> None:
    """DomainBed's is not in its optimiser."""
    algorithm = make_one()
    before = [p.detach().clone() for p in algorithm.projection.parameters()]
    algorithm.update(make_batches(0))
    for p, old in zip(algorithm.projection.parameters(), before, strict=True):
        moved = float((p.detach() - old).abs().max())
        assert moved == pytest.approx(0.01, rel=1e-3)  # Adam's first step


@pytest.mark.parametrize(("width", "hidden"), [(2048, 2048), (512, 1024), (FEATURES, 10)])
def test_widths_of_the_projection(width: int, hidden: int) -> None:
    with torch.device("meta"):
        shapes = [tuple(p.shape) for p in projection(width).parameters() if p.ndim == 2]
    assert shapes == [(hidden, width), (hidden, hidden), (width, hidden)]


def test_a_single_example_is_refused() -> None:
    with pytest.raises(ValueError, match=r"two examples or more in an update, .* got 1"):
        make_one(1).update(make_batches(0, (1,)))


def test_it_has_no_hyperparameters_of_its_own() -> None:
    assert SelfReg.Hparams is Hparams


def test_draws_are_its_own_and_new_in_every_step() -> None:
    algorithm = make_one()
    algorithm.update(make_batches(0))
    first = int(algorithm.draws.count)
    algorithm.update(make_batches(0))
    assert int(algorithm.draws.count) == 2 * first > 0


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    asks_nothing(make_one())
