"""Colored and Rotated MNIST as DomainBed builds them, from the trial alone."""

import math
import time
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from shoal.datasets import (
    DomainDataset,
    colored_mnist,
    find,
    rotated_mnist,
    test_digits,
    train_digits,
)
from shoal.randomness import stream

AGREEMENT = {"+90%": 0.9, "+80%": 0.8, "-90%": 0.1}


@cache
def load(name: str, trial: int) -> DomainDataset:
    return find(name)(None, trial)


@cache
def original() -> tuple[Tensor, Tensor]:
    """All digits as rows of pixels, training half first, and their labels."""
    halves = train_digits(), test_digits()
    images = np.concatenate([half.images.reshape(-1, 784) for half in halves])
    return torch.from_numpy(images), torch.from_numpy(np.concatenate([h.labels for h in halves]))


def keys(images: Tensor) -> list[bytes]:
    return [row.tobytes() for row in images.reshape(len(images), -1).numpy()]


@cache
def digit_of() -> dict[bytes, int]:
    images, digits = original()
    return dict(zip(keys(images), digits.tolist(), strict=True))


def near(count: int, n: int, probability: float) -> bool:
    """Return whether a count is within four and a half standard errors."""
    return abs(count - n * probability) < 4.5 * math.sqrt(n * probability * (1 - probability))


def test_colored_domains_classes_and_sizes() -> None:
    dataset = load("colored-mnist", 0)
    assert dataset.name == "colored-mnist"
    assert dataset.names == ("+90%", "+80%", "-90%")
    assert dataset.classes == ("5-9", "0-4")
    assert [len(domain) for domain in dataset.domains] == [23_334, 23_333, 23_333]
    for domain in dataset.domains:
        assert domain.images.shape == (len(domain), 2, 28, 28)
        assert domain.images.dtype == torch.uint8 and domain.labels.dtype == torch.int64


def test_colored_noise_and_colours_have_the_stated_rates() -> None:
    """Labels are recovered from the digits themselves, colours from the channel that is not 0."""
    dataset = load("colored-mnist", 0)
    seen: list[bytes] = []
    for name, agreement in AGREEMENT.items():
        domain = dataset[name]
        n = len(domain)
        ink = domain.images.flatten(2).any(2)
        assert (ink.sum(1) == 1).all()
        colours = ink[:, 1].long()
        found = keys(domain.images.amax(1))
        seen += found
        below = torch.tensor([digit_of()[key] for key in found]) < 5
        wrong = below.long() != domain.labels
        assert near(int(wrong.sum()), n, 0.25)
        agrees = colours == domain.labels
        assert near(int(agrees.sum()), n, agreement)
        # Both ways, and the two flips know nothing of each other.
        for which in (domain.labels == 0, domain.labels == 1, wrong, ~wrong):
            assert near(int(agrees[which].sum()), int(which.sum()), agreement)
        for which in (below, ~below):
            assert near(int(wrong[which].sum()), int(which.sum()), 0.25)
    assert sorted(seen) == sorted(keys(original()[0]))


def test_rotated_domains_classes_and_sizes() -> None:
    dataset = load("rotated-mnist", 0)
    assert dataset.name == "rotated-mnist"
    assert dataset.names == ("0", "15", "30", "45", "60", "75")
    assert dataset.classes == tuple("0123456789")
    assert [len(domain) for domain in dataset.domains] == [11_667] * 4 + [11_666] * 2
    for domain in dataset.domains:
        assert domain.images.shape == (len(domain), 1, 28, 28)
        assert domain.images.dtype == torch.uint8 and domain.labels.dtype == torch.int64
    counts = sum(torch.bincount(domain.labels) for domain in dataset.domains)
    assert counts.tolist() == torch.bincount(original()[1]).tolist()


def test_rotated_images_are_the_dealt_digits_turned_by_pillow() -> None:
    images, digits = original()
    order = torch.randperm(70_000, generator=stream("rotated-mnist", "domainbed", 3))
    for place, domain in enumerate(load("rotated-mnist", 3).domains):
        which = order[place::6]
        assert torch.equal(domain.labels, digits[which])
        by_pillow = turned(images[which[:50]].reshape(-1, 28, 28), float(domain.name))
        assert_near(domain.images[:50, 0], by_pillow)


def turned(images: Tensor, degrees: float) -> Tensor:
    rows = [Image.fromarray(image.numpy()) for image in images]
    done = [np.array(row.rotate(degrees, Image.Resampling.BILINEAR)) for row in rows]
    return torch.from_numpy(np.stack(done))


def assert_near(ours: Tensor, pillows: Tensor) -> None:
    """Within 1 of 255 everywhere, and the same nearly everywhere."""
    assert (ours.int() - pillows.int()).abs().max() <= 1
    assert (ours != pillows).float().mean() < 1e-3


@pytest.mark.parametrize("degrees", [0, 15, 30, 45, 60, 75, 90, 180, -20.5])
@pytest.mark.parametrize("shape", [(28, 28), (9, 14)])
def test_rotate_is_pillows(degrees: float, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (40, *shape), dtype=torch.uint8, generator=generator)
    assert_near(rotated_mnist.rotate(noise, degrees), turned(noise, degrees))


def test_rotate_in_chunks_is_rotate_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = original()[0][:100].reshape(-1, 28, 28)
    whole = rotated_mnist.rotate(images, 30)
    monkeypatch.setattr(rotated_mnist, "CHUNK", 7)
    assert torch.equal(rotated_mnist.rotate(images, 30), whole)


@pytest.mark.parametrize("name", ["colored-mnist", "rotated-mnist"])
def test_contents_depend_on_the_trial_alone(name: str) -> None:
    first = load(name, 0)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    again = find(name)(None, np.int64(0))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again.fingerprint == first.fingerprint
    other = load(name, 1)
    assert other.fingerprint != first.fingerprint
    for domain in first.names:
        assert not torch.equal(first[domain].labels[:100], other[domain].labels[:100])


def flips(trial: int, name: str) -> Tensor:
    """Return which labels are wrong and which colours disagree with them, ``[2, n]``."""
    domain = load("colored-mnist", trial)[name]
    below = torch.tensor([digit_of()[key] for key in keys(domain.images.amax(1))]) < 5
    colours = domain.images[:, 1].flatten(1).any(1)
    return torch.stack([below != domain.labels.bool(), colours != domain.labels.bool()])


def test_noise_of_domains_and_trials_has_nothing_in_common() -> None:
    """Every domain of every trial draws numbers of its own, not the same again."""
    cells = [(0, "+80%"), (0, "-90%"), (1, "+80%"), (1, "-90%")]
    rows = torch.cat([flips(*cell) for cell in cells]).double()
    correlations = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlations.abs().max() < 5 / rows.shape[1] ** 0.5


@pytest.mark.parametrize("name", ["colored-mnist", "rotated-mnist"])
def test_bad_trials_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="trial must be 0 or more, got -1"):
        find(name)(None, -1)
    with pytest.raises(TypeError):
        find(name)(None, 0.5)


def test_domains_flip_as_stated() -> None:
    assert colored_mnist.DOMAINS == {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}


def test_built_in_a_few_seconds() -> None:
    """In processor time, which a busy machine changes little."""
    train_digits(), test_digits()
    start = time.process_time()
    find("colored-mnist")(None, 7)
    find("rotated-mnist")(None, 7)
    assert time.process_time() - start < 6
