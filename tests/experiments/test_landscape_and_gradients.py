"""Landscapes and clouds of gradients, compared with autograd and single points."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from shoal.experiments import gradients, landscape, restarts
from shoal.experiments.colored_mnist import Setup, Training
from shoal.experiments.restarts import RestartFolder, head_inputs
from tests.oracles.autograd import individual_gradients, variance
from tests.oracles.curvature import hessian as dense_hessian
from tests.oracles.curvature import risk

CPU = torch.device("cpu")
TINY = Setup(examples=20, hidden=7, jump_step=2, updates=4)


def quiet(*_: object) -> None:
    return None


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = RestartFolder.open(tmp_path_factory.mktemp("models"), TINY)
    return restarts.train_or_load("Fishr", TINY, CPU, folder, quiet)


def test_a_model_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, calls = RestartFolder.open(tmp_path, TINY), []
    first = restarts.train_or_load("ERM", TINY, CPU, folder, lambda *args: calls.append(args))
    assert calls[-1] == ("ERM", 0, 4, 4)
    monkeypatch.setattr(Training, "step", None)
    again = restarts.train_or_load("ERM", TINY, CPU, folder, quiet)
    assert again.done == 4
    for mine, theirs in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_inputs_of_the_head(training: Training) -> None:
    z, logits, labels = head_inputs(training)
    assert z.shape == (2, 20, training.model.classifier.in_features + 1)
    torch.testing.assert_close(
        logits.flatten(), training.model(training.inputs)[:, 0].double(), atol=1e-6, rtol=1e-5
    )
    assert torch.equal(labels.flatten(), training.labels[:, 0].double())


def test_hessians_and_plane(training: Training) -> None:
    z, logits, labels = head_inputs(training)
    found = landscape.head_hessians(z, logits)
    head = torch.nn.Linear(z.shape[2], 1, bias=False).double()
    weight, bias = training.model.classifier.parameters()
    head.weight.data = torch.cat([weight, bias[None]], 1).double()
    for e in range(2):
        value = risk(head, z[e], labels[e][:, None])
        torch.testing.assert_close(found[e], dense_hessian(value, [head.weight]))
    plane = landscape.plane_of(found)
    assert (plane.amax(0) == plane.abs().amax(0)).all()
    torch.testing.assert_close(plane.mT @ plane, torch.eye(2, dtype=torch.float64))
    curved = torch.diagonal(plane.mT @ found.mean(0) @ plane)
    values = torch.linalg.eigvalsh(found.mean(0))
    torch.testing.assert_close(curved, values[[-1, -2]])


def test_risks_on_the_grid(training: Training) -> None:
    z, logits, labels = head_inputs(training)
    plane = landscape.plane_of(landscape.head_hessians(z, logits))
    ticks = [torch.tensor([-0.5, 0.0, 0.7]), torch.tensor([-2.0, 1.0])]
    found = landscape.risks_on(z @ plane, logits, labels, ticks)
    assert found.shape == (2, 3, 2)
    weight, bias = training.model.classifier.parameters()
    weights = torch.cat([weight[0], bias]).double()
    for i, a in enumerate(ticks[0].double()):
        for j, b in enumerate(ticks[1].double()):
            moved = weights + a * plane[:, 0] + b * plane[:, 1]
            for e in range(2):
                expected = F.binary_cross_entropy_with_logits(z[e] @ moved, labels[e])
                torch.testing.assert_close(found[e, i, j], expected)


def test_a_level_set_is_joined_to_its_centre() -> None:
    risks = torch.full((5, 7), 9.0)
    risks[2, 1:5] = torch.tensor([1.2, 0.9, 1.0, 1.3])  # the centre is 1.0, in column 3
    risks[1, 1] = 0.95  # by a corner
    risks[2, 6] = 1.0  # as low, and on the other side
    found = landscape.level_set(risks, 0.25)
    inside = {tuple(place) for place in found.nonzero().tolist()}
    assert inside == {(2, 1), (2, 2), (2, 3), (1, 1)}


def test_inconsistency_in_the_plane(training: Training) -> None:
    found = landscape.landscape(training, 0.01)
    risks = torch.tensor(found["risks"])
    centre = risks[:, risks.shape[1] // 2, risks.shape[2] // 2]
    sets = [landscape.level_set(mine, 0.01) for mine in risks]
    first, second = torch.tensor(found["curvatures"], dtype=torch.float64)
    forth = found["pairs"]["90%, 80%"]
    assert forth["R"] == pytest.approx(float(centre[1] - centre[0]), abs=2e-5)
    # The largest ½θᵀH_Bθ where ½θᵀH_Aθ = ε, all around.
    angles = torch.linspace(0, 6.2832, 20_001, dtype=torch.float64)
    around = torch.stack([angles.cos(), angles.sin()], 1)
    a = torch.einsum("ni,ij,nj->n", around, first, around)
    b = torch.einsum("ni,ij,nj->n", around, second, around)
    assert forth["H"] == pytest.approx(float(0.01 * (b / a).max()), rel=1e-5)
    measured = (risks[1] - centre[0]).abs()[sets[0]].max()
    assert forth["measured"] == pytest.approx(float(measured), abs=1e-4)
    assert found["cut"] == [
        bool(torch.cat([mine[0], mine[-1], mine[:, 0], mine[:, -1]]).any()) for mine in sets
    ]


def test_axes_grow_until_no_level_set_is_cut(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = landscape.landscape(training, 0.05)
    monkeypatch.setattr(landscape, "WIDENINGS", 0)
    narrow = landscape.landscape(training, 0.05)
    assert any(narrow["cut"])
    assert not any(wide["cut"])
    sets = torch.stack([landscape.level_set(torch.tensor(r), 0.05) for r in narrow["risks"]])
    grown = [
        ours[-1] > theirs[-1] for ours, theirs in zip(wide["axes"], narrow["axes"], strict=True)
    ]
    assert grown[0] == bool(sets[:, [0, -1]].any())
    assert grown[1] == bool(sets[:, :, [0, -1]].any())
    assert wide["pairs"]["90%, 80%"]["H"] == narrow["pairs"]["90%, 80%"]["H"]


def test_clouds(training: Training) -> None:
    found = gradients.clouds(training)
    model = training.model.double()
    weights = list(model.classifier.parameters())
    g = individual_gradients(model, training.inputs.double(), training.labels.double(), weights)
    g, ids = g.detach(), training.domain_ids()
    v = variance(g, ids)
    assert found["variance_gap"] == pytest.approx(float((v[0] - v[1]).square().sum()), rel=1e-5)
    centred = g - g.mean(0)
    _, singular, directions = torch.linalg.svd(centred)
    shares = singular.square() / singular.square().sum()
    assert found["shares"] == pytest.approx(shares[:2].tolist(), rel=1e-4)
    for e, domain in enumerate(("90%", "80%")):
        places = g[ids == e] @ directions[:2].mT
        cloud = found["domains"][domain]
        covariance = torch.cov(places.mT)
        torch.testing.assert_close(
            torch.tensor(cloud["covariance"], dtype=torch.float64).abs(),
            covariance.abs(),
            rtol=1e-3,
            atol=1e-6,
        )
        assert cloud["trace"] == pytest.approx(float(v[e].sum()), rel=1e-5)
        assert len(cloud["points"]) == 20
        known = {tuple(round(abs(x), 4) for x in place) for place in places.tolist()}
        near = [tuple(round(abs(x), 4) for x in point) for point in cloud["points"]]
        assert sum(point in known for point in near) > 15


def test_directions_have_a_sign() -> None:
    torch.manual_seed(0)
    sample = torch.randn(50, 4, dtype=torch.float64) * torch.tensor([5.0, 3.0, 1.0, 0.1])
    one, _ = gradients.principal_directions(sample)
    other, shares = gradients.principal_directions(-sample)
    torch.testing.assert_close(one, other)
    assert shares[0] > shares[1] > 0
