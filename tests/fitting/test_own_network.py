"""Networks of the user's own: modules and functions, copied, divided at the head, and refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score
from torch import Tensor, nn

import shoal
from shoal.networks import MLP, Standardise
from tests.fitting.test_classifier import arrays, make


def perceptron(inputs: int = 3, classes: int = 2) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, classes))


class Nested(nn.Module):
    """A head inside another part, after a body that was registered later."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
        self.heads = nn.ModuleDict({"one": nn.Linear(8, 2)})

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.heads["one"](self.body(inputs))
        return found


class Parts(nn.Module):
    """Features and a classifier of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, 8)
        self.classifier = nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(inputs))
        return found


class Pooled(nn.Module):
    """As networks of torchvision: between features and classifier, the mean of every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 4, 3)
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(inputs).mean((2, 3)))
        return found


def weights_of(module: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in module.parameters()]


@pytest.mark.parametrize("algorithm", ["erm", "fishr", "fish"])
def test_a_copy_of_a_module_is_trained(algorithm: str) -> None:
    X, y, domains = arrays()
    module = perceptron()
    before = weights_of(module)
    model = make(algorithm=algorithm, network=module, steps=60).fit(X, y, domains)
    assert model.network is module
    assert all(map(torch.equal, weights_of(module), before))
    assert model.score(X, y) > 0.9
    # It begins with the module's weights, so one step of nearly no length gives its logits.
    hparams = {"lr": 1e-12, "batch_size": 4}
    still = make(network=module, steps=1, hparams=hparams).fit(X, y, domains)
    expected = module(torch.from_numpy(X.astype(np.float32))).softmax(1).detach()
    np.testing.assert_allclose(still.predict_proba(X), expected, rtol=1e-5)


def test_clones_and_cross_validation_have_copies() -> None:
    X, y, domains = arrays()
    model = make(network=perceptron(), steps=5)
    other = clone(model)
    assert other.network is not model.network
    assert all(map(torch.equal, weights_of(other.network), weights_of(model.network)))
    given: dict[str, Any] = {"groups": domains, "cv": LeaveOneGroupOut(), "error_score": "raise"}
    assert len(cross_val_score(model, X, y, params={"domains": domains}, **given)) == 3
    kept = pickle.loads(pickle.dumps(model.fit(X, y, domains)))
    assert (kept.predict_proba(X) == model.predict_proba(X)).all()


def test_a_function_makes_one_by_the_seed() -> None:
    X, y, domains = arrays()
    asked = []

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        asked.append((shape, classes))
        return nn.Sequential(nn.Linear(shape[0], 8), nn.Dropout(0.5), nn.Linear(8, classes))

    found = []
    for seed in (0, 0, 1):
        torch.rand(1)  # torch's own random state is another one in every fit
        state = torch.get_rng_state()
        model = make(network=build, steps=3, random_state=seed).fit(X, y, domains)
        found.append(model.predict_proba(X))
        assert torch.equal(torch.get_rng_state(), state)
    assert asked == [((3,), 2)] * 3
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).any()


# Head in another part, head of two layers, a network of shoal's, and a head alone.
@pytest.mark.parametrize("build", [Nested, Parts, lambda: MLP(3, 8, 2), lambda: nn.Linear(3, 2)])
def test_networks_of_many_shapes(build: Any) -> None:
    X, y, domains = arrays()
    module = build()
    model = make(algorithm="fishr", network=module, steps=3).fit(X, y, domains)
    assert {"risk", "penalty"} <= set(model.history_[-1])
    trained = model.predictor_.module.algorithm.model
    if hasattr(module, "classifier"):  # its own parts stay
        assert type(trained.classifier) is type(module.classifier)
    inputs = torch.from_numpy(X.astype(np.float32))
    torch.testing.assert_close(trained.classifier(trained.features(inputs)), trained(inputs))
    moved = [
        not torch.equal(one, other)
        for one, other in zip(trained.parameters(), module.parameters(), strict=True)
    ]
    assert all(moved)


def test_images_reach_it_in_0_to_1() -> None:
    X = np.random.RandomState(0).randint(0, 255, (24, 1, 9, 7)).astype(np.uint8)
    y, domains = np.arange(24) % 2, np.arange(24) // 8
    module = Pooled()
    hparams = {"lr": 1e-12, "batch_size": 4}
    model = make(network=module, steps=1, hparams=hparams).fit(X, y, domains)
    expected = module.eval()(torch.from_numpy(X) / 255).softmax(1).detach()
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-4)
    floats = make(network=module, steps=1, hparams=hparams).fit(X / 255, y, domains)
    np.testing.assert_allclose(floats.predict_proba(X / 255), expected, rtol=1e-4)


def test_channels_that_a_method_adds() -> None:
    X = np.random.RandomState(0).randint(0, 255, (24, 1, 8, 8)).astype(np.uint8)
    asked = []

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        asked.append(shape)
        layers = [nn.Conv2d(shape[0], 2, 3), nn.Flatten(), nn.Linear(72, classes)]
        return nn.Sequential(*layers)

    model = make(algorithm="arm", network=build, steps=1, hparams={"batch_size": 4})
    assert model.fit(X, np.arange(24) % 2, np.arange(24) // 8).predict(X).shape == (24,)
    assert asked == [(2, 8, 8)]


def test_missing_values_need_a_layer_that_fills_them() -> None:
    X, y, domains = arrays()
    X[4, 2] = np.nan
    with pytest.raises(ValueError, match=r"X has missing values.* shoal.networks.Standardise\(3\)"):
        make(network=perceptron()).fit(X, y, domains)
    network = nn.Sequential(Standardise(3), perceptron())
    model = make(network=network, steps=60).fit(X, y, domains)
    assert model.score(X, y) > 0.9
    trained = model.predictor_.module.algorithm.model.features[0]
    np.testing.assert_allclose(trained.mean, np.nanmean(X, 0), rtol=1e-4, atol=1e-6)


def test_frozen_weights_stay() -> None:
    X, y, domains = arrays()
    module = perceptron()
    module[0].requires_grad_(False)
    model = make(network=module, steps=3).fit(X, y, domains)
    trained = model.predictor_.module.algorithm.model
    assert torch.equal(trained.features[0].weight, module[0].weight)
    assert not torch.equal(trained.classifier.weight, module[2].weight)


@pytest.mark.parametrize(
    ("network", "error", "why"),
    [
        (perceptron(classes=5), ValueError, r"logits \[n, 2\], one for each class of y, got"),
        (perceptron(inputs=4), ValueError, r"does not take inputs \[6, 3\] of torch.float32"),
        (nn.Sequential(perceptron(), nn.Softmax(1)), ValueError, "last layer .* must be linear"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2).double()), ValueError, "does not take inputs"),
        (lambda shape, classes: "net", TypeError, "it returned str"),
        (5, TypeError, "must be a name, a torch.nn.Module or a function that returns one, got 5"),
    ],
)
def test_networks_that_are_refused(network: Any, error: type[Exception], why: str) -> None:
    X, y, domains = arrays()
    with pytest.raises(error, match=why):
        make(network=network).fit(X, y, domains)


def test_neither_weights_nor_folders(tmp_path: Path) -> None:
    X, y, domains = arrays()
    with pytest.raises(ValueError, match="weights='imagenet' are those of a named network"):
        make(network=perceptron(), weights="imagenet").fit(X, y, domains)
    model = make(network=perceptron(), steps=1).fit(X, y, domains)
    with pytest.raises(ValueError, match="not the code of a network of your own; keep the"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert isinstance(copy.deepcopy(model), shoal.DomainClassifier)
