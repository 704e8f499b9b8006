"""The linear example: its data, its objectives against single gradients, and its window."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal
from shoal.experiments import linear
from shoal.experiments.linear import STEPS, STRENGTHS, LinearData, data, objective, train
from tests.oracles.autograd import individual_gradients, mean, same_function, spread, variance


def examples(domains: LinearData, which: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the 100 examples of each of these domains, one after the other."""
    counts = domains.counts.long()
    inputs = [domains.inputs[e].repeat_interleave(counts, 0) for e in which]
    labels = domains.labels.repeat_interleave(counts)[:, None]
    ids = torch.arange(len(which)).repeat_interleave(len(labels))
    return torch.cat(inputs), labels.repeat(len(which), 1), ids


@pytest.mark.parametrize(
    ("feature", "percent"),
    [(0, (93, 93, 93)), (1, (97, 57, 57)), (2, (57, 97, 57)), (3, (57, 57, 97))],
)
def test_what_each_feature_predicts(feature: int, percent: tuple[int, ...]) -> None:
    inputs, labels, ids = examples(data(), [0, 1, 2])
    assert len(inputs) == 300 and bool((inputs[:, 4] == 1).all())
    right = (inputs[:, feature] > 0.5) == (labels[:, 0] > 0.5)
    found = [100 * right[ids == e].double().mean().item() for e in range(3)]
    assert found == pytest.approx(percent)


def plain(method: str, weights: Tensor, strength: float) -> Tensor:
    """Return the objective from every example's own gradient."""
    inputs, labels, ids = examples(data(), [0, 1])
    model = nn.Linear(5, 1, bias=False).double()
    del model.weight
    model.weight = weights[None]  # type: ignore[assignment]
    risk = F.binary_cross_entropy_with_logits(model(inputs), labels)
    g = individual_gradients(model, inputs, labels, [weights])
    if method == "fish":
        rows = mean(g, ids)
        return risk - strength * (rows[0] * rows[1]).sum()
    if method == "erm":
        return risk
    return risk + strength * spread(list(variance(g, ids, centered=method == "fishr")))


@pytest.mark.parametrize("method", STRENGTHS)
def test_objectives(method: str) -> None:
    weights = torch.tensor([0.7, -0.4, 1.3, 0.2, -0.5], dtype=torch.float64, requires_grad=True)
    strength = torch.tensor([2.5], dtype=torch.float64)
    ours = objective(method, weights[None], strength, data())[0]
    same_function(ours, plain(method, weights, 2.5), [weights])


def test_the_penalty_is_the_librarys() -> None:
    weights = torch.tensor([0.7, -0.4, 1.3, 0.2, -0.5], dtype=torch.float64)
    one, none = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    inputs, labels, ids = examples(data(), [0, 1])
    logits = (inputs @ weights)[:, None]
    for method, centered in (("fishr", True), ("fishr-uncentered", False)):
        v = shoal.head_variance(inputs, logits, labels, ids, centered=centered, bias=False)
        ours = objective(method, weights[None], one, data())
        risk = objective(method, weights[None], none, data())
        torch.testing.assert_close((ours - risk)[0], shoal.spread(v))


def test_the_table() -> None:
    """With one optimiser and one number of steps for all methods."""
    for method, strength in STRENGTHS.items():
        path = train(method, [strength], STEPS)
        expected = [97, 97, 57] if method == "erm" else [93, 93, 93]
        assert path.accuracies[0, -1].tolist() == pytest.approx(expected), method
        w1, w2, w3, w4, _ = path.weights[0, -1].tolist()
        assert w4 == 0 and w2 == pytest.approx(w3) and w1 > 0


def test_models_in_one_tensor_are_independent() -> None:
    together = train("fishr", [30.0, 3000.0], 40)
    for k, strength in enumerate((30.0, 3000.0)):
        alone = train("fishr", [strength], 40)
        torch.testing.assert_close(together.weights[k], alone.weights[0], rtol=1e-9, atol=1e-12)


def test_a_window_is_a_list_of_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "GRIDS", dict.fromkeys(linear.GRIDS, (100.0, 1000.0, 3)))
    monkeypatch.setattr(linear, "STEPS", 150)
    # The default of an argument is evaluated only once.
    monkeypatch.setattr(train, "__defaults__", (200,))
    result = linear.run()
    erm, fish, fishr, _ = result["table"]
    assert erm["spans"] == [("invariant", 1, 1), ("shortcut", 2, 200)]
    assert fish["paper"]["weights"] == [0.4, 0.2, 0.2, 0.0]
    assert [span[0] for span in fishr["spans"]] == ["neither", "invariant"]
    assert [row["lambda"] for row in result["window"]["fishr"]] == pytest.approx(
        [100, 316.2278, 1000]
    )
    for row in result["window"]["fishr"]:
        path = train("fishr", [row["lambda"]], 200)
        (states,) = path.states()
        spelled = [state for state, first, last in row["spans"] for _ in range(first, last + 1)]
        assert spelled == states
    low, high = result["at_steps"]["fishr"]
    assert (low, high) == pytest.approx((100, 316.2278))
    assert result["at_steps"]["fish"] is None


@pytest.mark.parametrize(
    ("states", "spans"),
    [("aab", [("a", 1, 2), ("b", 3, 3)]), ("abba", [("a", 1, 1), ("b", 2, 3), ("a", 4, 4)])],
)
def test_spans(states: str, spans: list[tuple[str, int, int]]) -> None:
    assert linear._spans(list(states)) == spans
