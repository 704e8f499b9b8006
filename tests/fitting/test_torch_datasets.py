"""Data sets of torch: their examples are those of arrays; what cannot be read is refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

import shoal
from tests.fitting.test_classifier import arrays, make


class Listed(Dataset[Any]):
    """The examples of a list."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.reads = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        self.reads += 1
        return self.items[place]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(2), 0


def examples() -> tuple[list[Any], Any, Any, Any]:
    X, y, domains = arrays()
    vectors = torch.from_numpy(X.astype(np.float32))
    return list(zip(vectors, y.tolist(), domains.tolist(), strict=True)), X, y, domains


def test_examples_with_domains_are_those_of_arrays() -> None:
    items, X, y, domains = examples()
    expected = make(steps=5).fit(X, y, domains)
    data = Listed(items)
    model = make(steps=5).fit(data)
    assert data.reads == len(data)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.domains_.tolist() == ["north", "south", "west"]
    assert model.n_features_in_ == 3
    assert (model.predict_proba(X) == expected.predict_proba(X)).all()
    assert (model.predict_proba(data) == expected.predict_proba(X)).all()
    assert (model.predict(data) == expected.predict(X)).all()
    assert model.score(data) == expected.score(X, y)
    weights = np.random.RandomState(0).rand(len(X))
    assert model.score(data, sample_weight=weights) == expected.score(X, y, weights)
    # Inputs alone can be predicted.
    assert (model.predict(Listed([one[0] for one in items])) == expected.predict(X)).all()


def test_domains_and_labels_beside_a_data_set() -> None:
    items, X, y, domains = examples()
    expected = make(steps=3).fit(X, y, domains).predict_proba(X)
    pairs = Listed([one[:2] for one in items])
    assert (make(steps=3).fit(pairs, domains=domains).predict_proba(X) == expected).all()
    with pytest.warns(UserWarning, match="no domains were given"):
        alone = make(steps=3).fit(pairs)
    assert alone.domains_.tolist() == ["all"]
    inputs = Listed([one[0] for one in items])
    assert (make(steps=3).fit(inputs, y, domains).predict_proba(X) == expected).all()
    with pytest.raises(ValueError, match="requires y to be passed"):
        make().fit(inputs)
    halves = ConcatDataset([Subset(Listed(items), range(45)), Subset(Listed(items), range(45, 90))])
    assert (make(steps=3).fit(halves).predict_proba(X) == expected).all()


def test_tensors_of_labels_and_images() -> None:
    random = np.random.RandomState(0)
    y = torch.arange(24) % 2
    X = torch.from_numpy(random.randint(0, 255, (24, 1, 28, 28)).astype(np.uint8))
    hparams = {"batch_size": 4}
    expected = make(steps=2, hparams=hparams).fit(X, y, torch.arange(24) // 8)
    for inputs in (X, X / 255):  # the second as of ToTensor
        data = TensorDataset(inputs, y, torch.arange(24) // 8)
        model = make(steps=2, hparams=hparams).fit(data)
        assert model.classes_.tolist() == [0, 1]
        found = model.predict_proba(data)
        assert found.shape == (24, 2)
        if inputs is X:
            assert (found == expected.predict_proba(X)).all()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_pictures(mode: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="no Pillow")
    shape = (12, 28, 28) if mode == "L" else (12, 28, 28, 3)
    pixels = np.random.RandomState(0).randint(0, 255, shape).astype(np.uint8)
    y, domains = np.arange(12) % 2, np.arange(12) // 4
    items = [(image.fromarray(one), y[k], domains[k]) for k, one in enumerate(pixels)]
    hparams = {"batch_size": 2}
    model = make(steps=1, hparams=hparams).fit(Listed(items))
    X = pixels[:, None] if mode == "L" else np.moveaxis(pixels, 3, 1)
    expected = make(steps=1, hparams=hparams).fit(X, y, domains).predict_proba(X)
    assert (model.predict_proba(Listed(items)) == expected).all()


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([], "X has no examples, it is a Listed of length 0"),
        ([(1, 2, 3, 4)], r"must be \(input, label\) or \(input, label, domain\), got \[4\] parts"),
        ([(torch.zeros(2), 0), (torch.zeros(2),)], r"got \[1, 2\] parts"),
        (
            [(torch.zeros(2), 0), (torch.zeros(3), 1)],
            r"must have one shape, got \[2\] and \[3\]; resize them",
        ),
        ([(torch.full((1, 28, 28), torch.nan), 0, 0)], "NaN or infinity in an image"),
        ([{"x": 1, "y": 0}], r"must be \(input, label\) or .*, got a dict"),
        ([(torch.zeros(2), torch.eye(2)[0])], r"must be one value each, got \[2\]"),
    ],
)
def test_data_sets_that_are_refused(items: list[Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        shoal.DomainClassifier().fit(Listed(items))


def test_an_iterable_has_no_numbered_examples() -> None:
    with pytest.raises(TypeError, match=r"must be a map-style data set.* got the iterable Endless"):
        shoal.DomainClassifier().fit(Endless())


def test_batches_and_lists_of_data_sets_are_refused() -> None:
    data = TensorDataset(torch.zeros(4, 2), torch.arange(4) % 2)
    with pytest.raises(TypeError, match=r"got a DataLoader; pass its \.dataset"):
        shoal.DomainClassifier().fit(DataLoader(data))
    with pytest.raises(TypeError, match=r"join them by torch\.utils\.data\.ConcatDataset"):
        shoal.DomainClassifier().fit([data, data])
