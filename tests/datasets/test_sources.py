"""Sources of data sets: one for every registered set, each of them complete."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shoal.datasets import DATASETS, PUBLISHED, SOURCES, find
from shoal.datasets.fetch import find_source
from tests.datasets.pictures import picture, tree

FETCHED = [name for name in SOURCES if name in PUBLISHED]


def test_every_data_set_has_a_source() -> None:
    assert list(SOURCES) == list(DATASETS)
    assert {name for name, source in SOURCES.items() if source.embedded} == {
        "colored-mnist",
        "rotated-mnist",
    }


@pytest.mark.parametrize("name", FETCHED)
def test_a_source_is_complete(name: str) -> None:
    source = SOURCES[name]
    published = PUBLISHED[name]
    assert source.images == (published if isinstance(published, int) else sum(published.values()))
    assert source.terms
    assert source.files
    assert len({file.name for file in source.files}) == len(source.files)
    assert all(file.url for file in source.files) != bool(source.by_hand)
    for address in [source.page, *(file.url or file.page for file in source.files)]:
        if address or address == source.page:
            parts = urlsplit(address)
            assert parts.scheme in ("http", "https") and "." in parts.netloc, address
            assert not re.search(r"\s", address)
    for file in source.files:
        assert Path(file.name).name == file.name
        if file.url:
            assert Path(urlsplit(file.url).path).name == file.name
        for kind, length in (("sha256", 64), ("md5", 32)):
            found = getattr(file, kind)
            assert found is None or re.fullmatch(rf"[0-9a-f]{{{length}}}", found)
        assert file.size is None or file.size > 1_000_000


@pytest.mark.parametrize("name", FETCHED)
def test_the_loader_finds_what_a_source_puts_there(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    assert not source.present(tmp_path)
    tree(tmp_path / source.folder, {domain: {"cat": ["a.png"]} for domain in source.domains})
    assert source.present(tmp_path)
    assert find(name)(tmp_path, 0).names == source.domains


@pytest.mark.parametrize("name", ["colored-mnist", "rotated-mnist"])
def test_embedded_sets_are_what_they_are_said_to_be(name: str) -> None:
    source, dataset = SOURCES[name], find(name)(None, 0)
    assert source.domains == dataset.names
    assert source.classes == len(dataset.classes)
    assert source.images == sum(map(len, dataset.domains))
    assert source.present(Path("nowhere"))
    with pytest.raises(ValueError, match=f"{name} comes with shoal: there is nothing to download"):
        find_source(name)


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match="unknown data set 'pasc'; did you mean 'pacs'"):
        find_source("pasc")


def test_a_survey_tells_all_faults_and_keeps_the_rest(tmp_path: Path) -> None:
    source = SOURCES["domainnet"]
    root = tmp_path / source.folder
    whole = {"cat": ["a.jpg", "b.jpg"], "dog": ["a.jpg"]}
    tree(root, {domain: whole for domain in source.domains if domain != "real"})
    (root / "duplicates.txt").write_text("clipart/cat/a.jpg\n")
    (root / "infograph" / "cat" / "notes.txt").touch()
    (root / "painting" / "emu").mkdir()
    (root / "extra").mkdir()
    picture(root / "loose.png")
    dataset, faults = source.survey(tmp_path)
    assert dataset is not None
    assert dataset.names == ("clipart", "infograph", "painting", "quickdraw", "sketch")
    assert [len(domain) for domain in dataset.domains] == [2, 3, 3, 3, 3]
    assert list(faults.lines()) == [
        (f"{root}/real", "no such domain folder"),
        (f"{root}/painting/emu", "a class folder without a file"),
        (f"{root}/infograph/cat/notes.txt", "its suffix is not that of an image"),
    ]
    assert faults.unused == [f"{root}/extra", f"{root}/loose.png"]
