"""Two logits on Colored MNIST: measurements during training, compared with dense Hessians."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.experiments import hessian
from shoal.experiments.colored_mnist import L2_WEIGHT, METHODS, PENALTY_WEIGHT, Setup, Training
from shoal.experiments.restarts import RestartFolder
from tests.oracles.autograd import individual_gradients
from tests.oracles.autograd import variance as variance_of
from tests.oracles.curvature import hessian as dense_hessian
from tests.oracles.curvature import risk

CPU = torch.device("cpu")
TINY = Setup(examples=5, hidden=3, jump_step=2, updates=4)


def quiet(*_: object) -> None:
    return None


def in_double(key: str, outputs: int = 2) -> Training:
    """Return a training in float64 on twelve of its pixels: dense Hessians must be small."""
    training = Training(METHODS[key], TINY, CPU, outputs)
    training.model = training.model.double()
    training.inputs = training.inputs.double()
    training.weight = training.weight.double()
    training.optimiser = torch.optim.Adam(training.model.parameters(), lr=0.0004898536566546834)
    return training


@pytest.mark.parametrize("key", ["erm", "fishr-theta", "fishr-omega", "vrex"])
def test_training_with_two_logits(key: str) -> None:
    """Compared with a loop of single gradients; the penalty's weight jumps during training."""
    training, plain = in_double(key), in_double(key).model
    adam = torch.optim.Adam(plain.parameters(), lr=0.0004898536566546834)
    labels = training.labels
    assert labels.dtype == torch.int64 and labels.shape == (10,)
    for step in range(4):
        training.step()
        adam.zero_grad()
        losses = F.cross_entropy(plain(training.inputs), labels, reduction="none").reshape(2, 5)
        loss = losses.mean() + L2_WEIGHT * sum(p.square().sum() for p in plain.parameters())
        if key != "erm":
            weight = PENALTY_WEIGHT if step >= 2 else 1.0
            loss = (loss + weight * penalty(key, plain, training, losses)) / weight
        loss.backward()
        adam.step()
    for mine, theirs in zip(training.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-11)


def penalty(key: str, model: Any, training: Training, losses: Tensor) -> Tensor:
    if key == "vrex":
        risks = losses.mean(1)
        return (risks[0] - risks[1]).square()
    weights = list(model.parameters())[4 if key == "fishr-omega" else 0 :]
    g = individual_gradients(model, training.inputs, training.labels, weights)
    rows = variance_of(g, training.domain_ids(), unbiased=False)
    return (rows[0] - rows[1]).square().sum() / 2


def test_accuracies_of_two_logits() -> None:
    training = in_double("erm")
    with torch.no_grad():
        training.model.classifier.weight.zero_()
        training.model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
    training.domains = {
        name: type(domain)(domain.inputs.double(), domain.labels, domain.digits)
        for name, domain in training.domains.items()
    }
    ones = training.domains["10%"].labels.double().mean().item()
    assert training.accuracies()["test"] == pytest.approx(ones)


def test_irm_has_one_logit() -> None:
    with pytest.raises(ValueError, match="IRM's slope is defined for one logit"):
        Training(METHODS["irm"], TINY, CPU, outputs=2)


def test_a_measurement_agrees_with_dense_hessians(monkeypatch: pytest.MonkeyPatch) -> None:
    training = in_double("erm")
    # Few inputs: the dense Hessian of 392 would be large.
    few = torch.nn.Linear(6, training.model.features[0].out_features).double()
    training.model.features[0] = few
    training.inputs = training.inputs[:, 200:206] + torch.linspace(0.1, 1, 10)[:, None].double()
    monkeypatch.setattr(training, "accuracies", lambda: {"train": 0.5, "test": 0.25})
    weights = list(training.model.parameters())
    rows, risks = [], []
    for part in (slice(0, 5), slice(5, 10)):
        value = risk(training.model, training.inputs[part], training.labels[part])
        rows.append(dense_hessian(value, weights).diagonal())
        risks.append(value.detach())
    v = variance_of(
        individual_gradients(training.model, training.inputs, training.labels),
        training.domain_ids(),
    ).detach()
    found = hessian.measure(training)
    a, b = rows
    expected = {
        "step": 0,
        "train": 0.5,
        "test": 0.25,
        "risk_gap": float((risks[0] - risks[1]) ** 2),
        "variance_gap": float((v[0] - v[1]).square().sum()),
        "hessian_gap": float((a - b).square().sum()),
        "hessian_cosine": float(a @ b / (a.norm() * b.norm())),
        "hessian_norm_gap": float((a @ a - b @ b) ** 2),
        "hessian_norm": float((a @ a + b @ b) / 2),
    }
    assert tuple(found) == hessian.CURVES
    assert found == pytest.approx(expected, rel=1e-7)
    links = hessian.links(training)
    for e, domain in enumerate(("90%", "80%")):
        for which, part in (
            ("all", slice(None)),
            ("classifier", slice(-weights[-2].numel() - 2, None)),
        ):
            h, c = rows[e][part], v[e][part]
            cosine = float(h @ c / (h.norm() * c.norm()))
            assert links[which][domain]["cosine:hessian:variance"] == pytest.approx(cosine)


def test_points() -> None:
    setup = Setup(jump_step=20, updates=47)
    points = hessian.points_of(setup, 10)
    assert points == [0, 10, *range(15, 26), 30, 40, 47]
    assert hessian.points_of(setup, 1) == list(range(48))


def test_records_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RestartFolder.open(tmp_path, TINY)
    first = hessian.run(2, 3, TINY, CPU, folder, quiet)
    assert list(first) == ["ERM", "Fishr"]
    assert [record["restart"] for record in first["Fishr"]] == [0, 1]
    assert first["ERM"][0]["curves"]["step"] == [0, 1, 2, 3, 4]
    assert first["ERM"][0]["curves"] != first["ERM"][1]["curves"]
    # Both start with the same weights and data, and differ from the first update on.
    for name, values in first["ERM"][0]["curves"].items():
        assert first["Fishr"][0]["curves"][name][0] == values[0]
    monkeypatch.setattr(hessian, "Training", None)
    assert hessian.run(2, 3, TINY, CPU, folder, quiet) == first
    tables = hessian.tables(first)
    gap = tables["table:hessianermfishr"]["risk_gap"]
    ends = [[r["curves"]["risk_gap"][-1] for r in first[name]] for name in ("ERM", "Fishr")]
    assert gap["ERM"] == {"ours": pytest.approx(sum(ends[0]) / 2), "paper": 0.01}
    assert gap["times"]["ours"] == pytest.approx(sum(ends[0]) / sum(ends[1]))
    assert gap["times"]["paper"] == pytest.approx(0.01 / 3.8e-6)
    cosines = tables["table:simhessiangradvar"]["all"]["80%"]
    assert cosines["paper"] == 0.9962264
    mean = hessian.mean_curves(first["ERM"])
    assert mean["test"][-1] == pytest.approx(
        sum(record["curves"]["test"][-1] for record in first["ERM"]) / 2
    )


def test_curves_at_different_steps_have_no_mean() -> None:
    curves = [{"curves": {name: [step] for name in hessian.CURVES}} for step in (1, 2)]
    with pytest.raises(ValueError, match="measured at different steps; choose another --out"):
        hessian.mean_curves(curves)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("key", ["erm", "fishr-theta"])
def test_two_logits_captured(key: str) -> None:
    """A training that is replayed and measured on a GPU equals the CPU's."""
    setup = Setup(examples=64, hidden=24, jump_step=3, updates=6)
    looks = []
    for device in (CPU, torch.device("cuda")):
        training = Training(METHODS[key], setup, device, outputs=2)
        record = hessian.follow(training, 0, range(7), quiet)
        looks.append(torch.tensor([record["curves"][name] for name in hessian.CURVES]))
    torch.testing.assert_close(looks[0], looks[1], rtol=2e-2, atol=1e-5)
