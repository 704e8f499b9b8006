"""Where a run's images lie, which splits are evaluated, and what batches depend on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal.datasets import Domain, DomainDataset, image_folders, splits
from shoal.datasets.cache import ImageCache, build
from shoal.training.batches import InMemory
from shoal.training.placement import HELD_OUT, KEPT, DataRequest, place, splits_to_evaluate
from shoal.training.streaming import ResidentCrops, StreamedCrops, StreamedImages, StreamedOriginals
from tests.datasets.pictures import tree

from .little import CPU, little, placed

NEEDED = {("a", HELD_OUT), ("b", HELD_OUT), ("c", HELD_OUT), ("d", HELD_OUT), ("d", KEPT)}
WANTED = DataRequest(test_domains=("d",), trial=0, size=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[DomainDataset, ImageCache]:
    root = tmp_path_factory.mktemp("images")
    names = [f"{k}.png" for k in range(3)]
    dataset = image_folders("two", tree(root / "two", {d: {"x": names, "y": names} for d in "ab"}))
    return dataset, build(dataset, root / "cache")


def test_what_selection_needs_is_splits_to_evaluate() -> None:
    found = placed().parts
    assert set(found) == NEEDED
    rest = {("a", KEPT), ("b", KEPT), ("c", KEPT)}
    assert set(placed(evaluate="all").parts) == NEEDED | rest
    dataset = little()
    for (domain, name), part in found.items():
        split = splits(dataset, 0)[domain]
        indices = split.kept if name == KEPT else split.held_out
        assert torch.equal(part.indices, indices)
        assert torch.equal(part.labels, dataset[domain].labels[indices])
        assert torch.equal(part.images, torch.as_tensor(dataset[domain].images))


def test_two_test_domains_need_what_is_kept_of_both() -> None:
    wanted = replace(WANTED, test_domains=("b", "d"))
    assert [splits_to_evaluate(domain, wanted) for domain in "abcd"] == [
        (HELD_OUT,),
        (KEPT, HELD_OUT),
        (HELD_OUT,),
        (KEPT, HELD_OUT),
    ]
    assert len(placed(test_domains=("b", "d")).sources) == 2


def test_a_split_without_images_is_left_out() -> None:
    """A domain of one image has nothing held out, and is trained on all the same."""
    whole = little((23, 31))
    first = whole.domains[0]
    one = Domain("one", first.labels[:1], first.tensor[:1])
    dataset = replace(whole, domains=(*whole.domains, one), order=())
    found = place(dataset, splits(dataset, 0), None, replace(WANTED, test_domains=()), CPU)
    assert set(found.parts) == {("a", HELD_OUT), ("b", HELD_OUT)}
    images, labels = found.sources[2]()
    assert len(images) == 4
    assert labels.tolist() == [int(first.labels[0])] * 4
    found = place(dataset, splits(dataset, 0), None, replace(WANTED, test_domains=("one",)), CPU)
    assert {part for part in found.parts if part[0] == "one"} == {("one", KEPT)}


def batches_of(**changes: object) -> list[list[int]]:
    """The labels and sums of images of three steps, for every training domain."""
    found = []
    for source in placed(**changes).sources:  # type: ignore[arg-type]
        for _ in range(3):
            images, labels = source()
            found.append([*labels.tolist(), *images.double().sum((1, 2, 3)).tolist()])
    return found


def test_what_batches_depend_on() -> None:
    first = batches_of()
    assert batches_of() == first
    assert batches_of(evaluate="all") == first
    assert batches_of(trial=1) != first
    both = batches_of(test_domains=("c", "d"))
    assert both[:3] != first[:3]
    assert batches_of(test_domains=("d", "c")) == both
    # A larger batch begins with the smaller one.
    for small, large in zip(first, batches_of(size=6), strict=True):
        assert small == [*large[:4], *large[6:10]]


def test_training_images_are_the_kept_ones() -> None:
    dataset = little()
    for source, domain in zip(placed().sources, "abc", strict=True):
        split, images = splits(dataset, 0)[domain], torch.as_tensor(dataset[domain].images)
        kept = {tuple(image.flatten().tolist()) for image in images[split.kept]}
        for _ in range(20):
            drawn, _ = source()
            assert drawn.dtype == torch.float32
            for image in (drawn * 255).round().to(torch.uint8):
                assert tuple(image.flatten().tolist()) in kept


def test_balanced_batches() -> None:
    balanced, plain = (
        torch.bincount(placed(balanced=balanced, size=10_000).sources[0]()[1]) / 10_000
        for balanced in (True, False)
    )
    dataset = little()
    kept = dataset["a"].labels[splits(dataset, 0)["a"].kept]
    shares = torch.bincount(kept) / len(kept)
    assert (shares - 1 / 3).abs().max() > 0.08  # or the two could not be told apart
    assert (balanced - 1 / 3).abs().max() < 0.03
    assert (plain - shares).abs().max() < 0.03


def test_images_in_memory_stay_there() -> None:
    assert {type(source) for source in placed("auto").sources} == {InMemory}
    assert placed("auto").where == "device"
    assert {type(source) for source in placed("host").sources} == {StreamedImages}
    assert placed().shape == (2, 8, 8)


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({}, "auto", StreamedCrops),  # a CPU reads mapped files where they are
        ({}, "device", ResidentCrops),
        ({"augment": False}, "device", InMemory),
        ({"augment": False}, "host", StreamedImages),
        ({"exact": True}, "host", StreamedOriginals),
        ({"exact": True}, "device", StreamedOriginals),
    ],
)
def test_images_of_files(
    files: tuple[DomainDataset, ImageCache], changes: dict[str, bool], where: str, expected: type
) -> None:
    dataset, cache = files
    wanted = replace(WANTED, test_domains=("b",), **changes)
    found = place(dataset, splits(dataset, 0), cache, wanted, CPU, where)
    assert [type(source) for source in found.sources] == [expected]
    assert found.shape == (3, 224, 224)
    assert found.parts["b", KEPT].images.shape == (6, 3, 224, 224)


def test_files_need_a_cache(files: tuple[DomainDataset, ImageCache]) -> None:
    dataset, _ = files
    with pytest.raises(ValueError, match="images of the domain 'a' are files: a cache is needed"):
        place(dataset, splits(dataset, 0), None, WANTED, CPU)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"place of the images 'gpu'. .*auto, device, host"):
        placed("gpu")
    with pytest.raises(ValueError, match="did you mean 'needed'"):
        placed(evaluate="neded")
    with pytest.raises(ValueError, match="batch_size must be 1 or more, got 0"):
        placed(size=0)


def test_images_fit_on_a_gpu_or_not(
    files: tuple[DomainDataset, ImageCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that would lie there: images to evaluate on, and those to crop from."""
    from shoal.training import placement

    dataset, cache = files
    gpu = torch.device("cuda", 0)
    size = sum(d.evaluation.numel() + d.training.pixels.numel() for d in cache.domains.values())
    for free, fits in ((size / 0.6 + 10, True), (size / 0.6 - 10, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (int(free), 10**12))
        assert placement._fits(dataset, cache, gpu) is fits
    small = little()
    size = sum(torch.as_tensor(domain.images).numel() for domain in small.domains)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(size / 0.6) + 10, 10**12))
    assert placement._fits(small, None, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (size, 10**12))
    assert not placement._fits(small, None, gpu)


def test_the_path_of_images_does_not_matter(tmp_path: Path) -> None:
    """The same files in another folder give the same batches."""
    names = [f"{k}.png" for k in range(4)]
    found = []
    for folder in ("here", "there"):
        root = tree(tmp_path / folder / "set", {"a": {"x": names, "y": names}})
        dataset = image_folders("set", root)
        cache = build(dataset, tmp_path / folder / "cache")
        wanted = replace(WANTED, test_domains=(), augment=False)
        data = place(dataset, splits(dataset, 0), cache, wanted, CPU, "device")
        found.append(data.sources[0]())
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
