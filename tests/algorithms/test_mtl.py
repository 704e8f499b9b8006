"""MTL against its embeddings, written out example by example."""

import copy

import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import draw
from shoal.algorithms.mtl import MTL, MTLHparams

from .plain import CLASSES, FEATURES, Oracle, Plain, compare, make, make_batches, tiny
from .stepping import asks_nothing


def oracle(algorithm: Algorithm, share: float, weight_decay: float = 0.0) -> Oracle:
    past = [torch.zeros(FEATURES, dtype=torch.float64) for _ in range(algorithm.num_domains)]

    def step(plain: Plain, batches: list[Batch], count: int) -> Tensor:
        weight, bias = plain.weights["classifier.weight"], plain.weights["classifier.bias"]
        loss = 0.0
        for domain, (inputs, labels) in enumerate(batches):
            rows = [plain.features(x[None])[0] for x in inputs]
            embedding = share * sum(rows) / len(rows) + (1 - share) * past[domain]
            past[domain] = embedding.detach()
            for z, y in zip(rows, labels, strict=True):
                logits = weight[:, :FEATURES] @ z + weight[:, FEATURES:] @ embedding + bias
                loss = loss - logits.log_softmax(0)[y] / len(rows)
        adam = plain.adam(weight_decay=weight_decay)
        adam.step(plain.weights, plain.gradients(loss))
        torch.testing.assert_close(algorithm.embeddings, torch.stack(past), rtol=1e-9, atol=1e-9)
        return loss

    return step


@pytest.mark.parametrize("sizes", [(4, 6, 5), (5, 3), (3,), (1, 2, 3, 1, 2, 4)])
@pytest.mark.parametrize("share", [0.5, 0.99, 1])
def test_mtl(sizes: tuple[int, ...], share: float) -> None:
    algorithm = make("mtl", len(sizes), batch_weight=share)
    compare(algorithm, oracle(algorithm, share), sizes=sizes)


def test_weight_decay_reaches_the_wide_classifier() -> None:
    algorithm = make("mtl", batch_weight=0.9, weight_decay=0.2)
    compare(algorithm, oracle(algorithm, 0.9, 0.2))


def test_prediction_uses_the_mean_of_its_batch_and_no_noise() -> None:
    algorithm = make("mtl")
    for step in range(3):
        algorithm.update(make_batches(step))
    algorithm.eval()
    stored = algorithm.embeddings.clone()
    inputs = make_batches(9)[0][0]
    found = algorithm.predict(inputs)
    z = algorithm.model.features(inputs)
    weight, bias = algorithm.model.classifier.weight, algorithm.model.classifier.bias
    for i in range(len(inputs)):
        mean = sum(z[k] for k in range(len(inputs))) / len(inputs)
        expected = weight @ torch.cat([z[i], mean]) + bias
        torch.testing.assert_close(found[i], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(algorithm.predict(inputs), found)
    assert torch.equal(algorithm.model(inputs), found)
    assert torch.equal(algorithm.embeddings, stored)


def test_the_wide_classifier_takes_the_place_of_the_models() -> None:
    model = tiny()
    before = copy.deepcopy(model.state_dict())
    algorithm = make("mtl", model=model)
    assert isinstance(algorithm, MTL)
    algorithm.update(make_batches(0))
    trained = {id(weight) for weight in algorithm.optimiser.weights}
    assert trained == {id(weight) for weight in algorithm.model.parameters()}
    assert algorithm.model.classifier.weight.shape == (CLASSES, 2 * FEATURES)
    assert algorithm.model.features is model.features
    # The given model's own classifier does not move and is not in the method.
    assert model.classifier.weight.shape == (CLASSES, FEATURES)
    for name, tensor in model.classifier.state_dict().items():
        assert torch.equal(tensor, before[f"classifier.{name}"])
        assert id(getattr(model.classifier, name)) not in trained
    shapes = {name: tuple(t.shape) for name, t in algorithm.state_dict().items()}
    assert shapes["model.classifier.weight"] == (CLASSES, 2 * FEATURES)
    assert shapes["embeddings"] == (3, FEATURES)


def test_the_seed_draws_the_wide_classifier() -> None:
    state = torch.get_rng_state()
    first, again, other = (MTL(tiny(), 3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    heads = [one.model.classifier.weight for one in (first, again, other)]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_what_is_not_finite_does_not_enter_the_embeddings() -> None:
    algorithm = make("mtl")
    algorithm.update(make_batches(0))
    before = copy.deepcopy(algorithm.state_dict())
    batches = make_batches(1)
    batches[1][0][0, 0] = float("nan")
    algorithm.update(batches)
    for name, tensor in algorithm.state_dict().items():
        if name not in ("steps", "failed"):
            assert torch.equal(tensor, before[name]), name


def test_hparams_are_domainbeds() -> None:
    assert MTLHparams().batch_weight == 0.99
    assert MTLHparams.__dataclass_fields__["batch_weight"].metadata["key"] == "mtl_ema"
    drawn = {draw(MTLHparams, "small", 0, number).batch_weight for number in range(1, 40)}
    assert drawn == {0.5, 0.9, 0.99, 1}


def test_a_step_asks_nothing_and_keeps_its_addresses() -> None:
    algorithm = make("mtl")
    asks_nothing(algorithm)
