"""DomainDataset: names, order, kinds of inputs, missing classes, and fingerprints of contents."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.datasets import Domain, DomainDataset, image_folders
from tests.datasets.pictures import picture, tree


def images(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, 2, 3, 3), dtype=torch.uint8, generator=generator)


def domain(name: str, labels: list[int], seed: int = 0) -> Domain:
    return Domain(name, torch.tensor(labels), images(len(labels), seed))


@pytest.fixture
def dataset() -> DomainDataset:
    domains = domain("north", [0, 1, 1]), domain("east", [2, 2]), domain("south", [0, 1, 2, 0])
    return DomainDataset("compass", ("ant", "bee", "cat"), domains)


def test_domains_by_name_and_in_order(dataset: DomainDataset) -> None:
    assert dataset.names == ("north", "east", "south")
    assert dataset["east"] is dataset.domains[1]
    assert [len(dataset[name]) for name in dataset.names] == [3, 2, 4]
    with pytest.raises(ValueError, match=r"unknown domain of compass 'noth'; did you mean 'north'"):
        dataset["noth"]


def test_without_keeps_the_others_their_order_and_their_places(dataset: DomainDataset) -> None:
    rest = dataset.without(["east"])
    assert rest.names == ("north", "south")
    assert rest["south"] is dataset["south"]
    assert (rest.name, rest.classes) == (dataset.name, dataset.classes)
    assert [dataset.place(name) for name in dataset.names] == [0, 1, 2]
    assert [rest.place(name) for name in rest.names] == [0, 2]
    assert rest.without(["north"]).place("south") == 2
    assert dataset.names == ("north", "east", "south")


def test_without_refuses_what_makes_no_sense(dataset: DomainDataset) -> None:
    with pytest.raises(ValueError, match="did you mean 'east'"):
        dataset.without(["eats"])
    with pytest.raises(ValueError, match="no domain of compass is left"):
        dataset.without(["south", "north", "east"])
    with pytest.raises(TypeError, match="list of names, got 'east'"):
        dataset.without("east")
    with pytest.raises(ValueError, match="unknown domain of compass 'east'"):
        dataset.without(["east"]).place("east")


def test_counts_and_missing_classes(dataset: DomainDataset) -> None:
    assert dataset.counts() == {
        "north": {"ant": 1, "bee": 2, "cat": 0},
        "east": {"ant": 0, "bee": 0, "cat": 2},
        "south": {"ant": 2, "bee": 1, "cat": 1},
    }
    assert dataset.missing_classes() == {"north": ("cat",), "east": ("ant", "bee")}
    assert dataset.without(["north", "east"]).missing_classes() == {}


VECTORS = Domain("n", torch.tensor([0]), torch.ones(1, 5))
FILES = Domain("m", torch.tensor([0]), (Path("a.png"),))


def test_kinds_of_inputs(dataset: DomainDataset) -> None:
    vectors, files = (DomainDataset("d", ("a",), (one,)) for one in (VECTORS, FILES))
    assert (dataset.kind, dataset.in_memory, dataset.input_shape) == ("images", True, (2, 3, 3))
    assert (vectors.kind, vectors.in_memory, vectors.input_shape) == ("vectors", True, (5,))
    assert (files.kind, files.in_memory, files.input_shape) == ("files", False, (3, 224, 224))
    assert dataset["east"].tensor is dataset["east"].images
    assert FILES.files == (Path("a.png"),)
    with pytest.raises(TypeError, match="the images of the domain 'm' are files, not in memory"):
        _ = FILES.tensor
    with pytest.raises(TypeError, match="the domain 'n' has its inputs in memory, and no files"):
        _ = VECTORS.files


def test_frozen(dataset: DomainDataset) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset["north"].name = "other"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Domain("", torch.tensor([0]), images(1)), "needs a name"),
        (lambda: Domain("n", torch.tensor([0.0]), images(1)), "must be int64"),
        (lambda: Domain("n", torch.tensor([[0]]), images(1)), r"shape \[1, 1\]"),
        (lambda: Domain("n", torch.tensor([0]), images(1).int()), "must be uint8 or float32"),
        (lambda: Domain("n", torch.tensor([0]), images(1)[0]), r"uint8 of shape \[2, 3, 3\]"),
        (lambda: Domain("n", torch.tensor([0, 1]), images(3)), "2 labels for 3 images"),
        (lambda: Domain("n", torch.tensor([0]), (Path("a"), Path("b"))), "1 labels for 2 images"),
        (lambda: Domain("n", torch.tensor([], dtype=torch.int64), ()), "'n' has no images"),
        (lambda: DomainDataset("d", ("a",), ()), "d has no domains"),
        (lambda: DomainDataset("d", ("a",), (domain("n", [0]),) * 2), "two of the domain 'n'"),
        (lambda: DomainDataset("d", ("a", "a"), (domain("n", [0]),)), "two of the class 'a'"),
        (lambda: DomainDataset("d", ("a",), (domain("n", [1]),)), r"'n' must be in 0 … 0 .*got 1"),
        (lambda: DomainDataset("d", ("a",), (domain("n", [-1]),)), "got -1"),
        (lambda: DomainDataset("d", ("a",), (domain("n", [0]),), ("m",)), r"not \['n'\]"),
        (
            lambda: DomainDataset(
                "d",
                ("a",),
                (domain("n", [0]), Domain("m", torch.tensor([0]), images(1)[..., :2])),
            ),
            r"one shape \[C, H, W\], got \[\[2, 3, 2\], \[2, 3, 3\]\]",
        ),
        (
            lambda: DomainDataset("d", ("a",), (VECTORS, FILES)),
            r"domains of d must be of one kind, got \['files', 'vectors'\]",
        ),
    ],
)
def test_what_cannot_be_a_data_set_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def changed(dataset: DomainDataset, place: int, **fields: object) -> DomainDataset:
    domains = list(dataset.domains)
    domains[place] = dataclasses.replace(domains[place], **fields)
    return dataclasses.replace(dataset, domains=tuple(domains), order=())


def test_fingerprint_changes_with_any_content(dataset: DomainDataset) -> None:
    north = dataset["north"]
    pixel = north.images.clone()
    pixel[2, 1, 2, 2] += 1
    others = [
        dataclasses.replace(dataset, name="other"),
        dataclasses.replace(dataset, classes=("ant", "bee", "cow")),
        dataclasses.replace(dataset, classes=("bee", "ant", "cat")),
        dataclasses.replace(dataset, domains=dataset.domains[::-1], order=()),
        dataset.without(["east"]),
        dataclasses.replace(dataset, domains=dataset.without(["east"]).domains, order=()),
        changed(dataset, 0, name="west"),
        changed(dataset, 0, labels=torch.tensor([0, 1, 2])),
        changed(dataset, 0, labels=torch.tensor([1, 0, 1])),
        changed(dataset, 0, images=pixel),
        changed(dataset, 0, images=north.images.flip(0)),
    ]
    shape = [dataclasses.replace(d, images=d.images.reshape(-1, 2, 9, 1)) for d in dataset.domains]
    others.append(dataclasses.replace(dataset, domains=tuple(shape)))
    found = [dataset.fingerprint, *(other.fingerprint for other in others)]
    assert len(set(found)) == len(found)
    assert all(len(bytes.fromhex(text)) == 32 for text in found)


def test_fingerprint_depends_on_nothing_else(dataset: DomainDataset) -> None:
    same = changed(dataset, 0, images=dataset["north"].images.clone())
    assert same.fingerprint == dataset.fingerprint
    strided = dataset["north"].images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not strided.is_contiguous()
    assert changed(dataset, 0, images=strided).fingerprint == dataset.fingerprint


def test_fingerprint_is_the_one_of_yesterday() -> None:
    """A golden value: runs are named by it, so it must not change between versions."""
    labels = torch.tensor([0, 1])
    pixels = torch.from_numpy(np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2))
    dataset = DomainDataset("d", ("a", "b"), (Domain("n", labels, pixels),))
    assert dataset.fingerprint.startswith("c55fc196a17b4b5a5dab230f6edbe538")


def test_fingerprint_of_files_ignores_their_folder(tmp_path: Path) -> None:
    here = image_folders("d", tree(tmp_path / "here"))
    there = image_folders("d", tree(tmp_path / "far" / "away"))
    assert here.fingerprint == there.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "photo/cat/a.png").rename(root / "photo/cat/z.png"),
        lambda root: (root / "photo/cat/a.png").unlink(),
        lambda root: picture(root / "photo/cat/c.png"),
        lambda root: picture(root / "photo/cat/a.png", side=64),
        lambda root: (root / "photo/cat/b.png").rename(root / "photo/dog/b.png"),
        lambda root: (root / "sketch").rename(root / "drawing"),
        lambda root: [(root / d / "cat").rename(root / d / "cow") for d in ("photo", "sketch")],
    ],
    ids=["renamed", "removed", "added", "other size", "other class", "domain", "class name"],
)
def test_fingerprint_of_files_changes_with_any_of_them(tmp_path: Path, change) -> None:
    root = tree(tmp_path / "set")
    before = image_folders("d", root).fingerprint
    change(root)
    assert image_folders("d", root).fingerprint != before
