"""domain/class/file trees: sorted, classes matched by name, and all faults reported."""

from pathlib import Path

import pytest
import torch

from shoal.datasets import image_folders, split
from shoal.datasets.folders import SUFFIXES, empty_folders, folder_name
from tests.datasets.pictures import picture, tree


def names(paths: tuple[Path, ...]) -> list[str]:
    return [path.name for path in paths]


def test_domains_classes_and_files_are_sorted(tmp_path: Path) -> None:
    content = {
        "zoo": {"dog": ["b.png", "a.png"], "cat": ["10.png", "9.png"]},
        "art": {"cat": ["B.png", "a.png"], "dog": ["x.png"]},
    }
    dataset = image_folders("mine", tree(tmp_path, content))
    assert dataset.name == "mine"
    assert dataset.names == ("art", "zoo")
    assert dataset.classes == ("cat", "dog")
    assert names(dataset["zoo"].images) == ["10.png", "9.png", "a.png", "b.png"]
    assert names(dataset["art"].images) == ["B.png", "a.png", "x.png"]
    assert dataset["zoo"].labels.tolist() == [0, 0, 1, 1]
    assert dataset["art"].labels.tolist() == [0, 0, 1]
    assert dataset["zoo"].images[0] == tmp_path / "zoo" / "cat" / "10.png"
    assert "Path" not in repr(dataset)


def test_given_domains_are_taken_in_the_given_order(tmp_path: Path) -> None:
    content = {name: {"cat": ["a.png"]} for name in ("a", "b", "c")}
    content["b"] = {"cat": ["a.png"], "dog": ["a.png"]}
    root = tree(tmp_path, content)
    dataset = image_folders("mine", root, ["c", "a"])
    assert dataset.names == ("c", "a")
    assert dataset.classes == ("cat",)
    assert image_folders("mine", root, ["c", "b"]).classes == ("cat", "dog")


def test_a_class_in_one_domain_only_is_reported_and_renumbers_nothing(tmp_path: Path) -> None:
    content = {
        "one": {"ant": ["a.png"], "cat": ["a.png"]},
        "two": {"bee": ["a.png"], "cat": ["a.png", "b.png"]},
    }
    dataset = image_folders("mine", tree(tmp_path, content))
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset["one"].labels.tolist() == [0, 2]
    assert dataset["two"].labels.tolist() == [1, 2, 2]
    assert dataset.missing_classes() == {"one": ("bee",), "two": ("ant",)}


def test_one_image_in_a_domain_is_a_domain(tmp_path: Path) -> None:
    dataset = image_folders("mine", tree(tmp_path, {"one": {"cat": ["a.png"]}}))
    assert dataset["one"].labels.shape == (1,)
    assert dataset["one"].labels.dtype == torch.int64
    assert split(len(dataset["one"]), 0, 0).kept.tolist() == [0]


def test_hidden_files_and_folders_are_not_looked_at(tmp_path: Path) -> None:
    root = tree(tmp_path)
    clean = image_folders("mine", root)
    (root / ".cache" / "x").mkdir(parents=True)
    (root / "photo" / ".thumbnails").mkdir()
    (root / "photo" / "cat" / ".DS_Store").write_text("x")
    (root / "photo" / "cat" / ".a.png").write_text("x")
    (root / "photo" / "cat" / "Thumbs.db").write_text("x")
    (root / "photo" / "dog" / "desktop.ini").write_text("x")
    (root / "__MACOSX" / "photo" / "cat").mkdir(parents=True)
    (root / "README.txt").write_text("not a domain")
    (root / "photo" / "LICENSE").write_text("not a class")
    assert image_folders("mine", root).fingerprint == clean.fingerprint


def test_the_name_that_is_given_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd data").mkdir()
    (tmp_path / "photos").symlink_to("odd data")
    assert folder_name(tmp_path / "photos") == "photos"
    monkeypatch.chdir(tmp_path / "odd data")
    assert folder_name(Path(".")) == "odd data"
    assert folder_name(Path("..")) == tmp_path.name


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_suffix_in_any_case(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "one" / "cat"
    folder.mkdir(parents=True)
    for name in (f"a{suffix}", f"b{suffix.upper()}"):
        (folder / name).touch()
    assert len(image_folders("mine", tmp_path)["one"]) == 2


def test_leave_out(tmp_path: Path) -> None:
    root = tree(tmp_path)
    left = image_folders("mine", root, leave_out=["photo/cat/a.png", "sketch/dog/gone.png"])
    assert names(left["photo"].images) == ["b.png", "a.png"]
    assert names(left["sketch"].images) == ["a.png", "c.png", "d.png", "e.png"]


def refused(root: Path, *domains: str) -> str:
    with pytest.raises(ValueError) as caught:
        image_folders("mine", root, domains or None)
    return str(caught.value)


def test_no_such_folder(tmp_path: Path) -> None:
    message = refused(tmp_path / "nowhere")
    assert message.startswith(f"no such folder: {tmp_path / 'nowhere'}")
    assert f"{tmp_path / 'nowhere'}/<domain>/<class>/<file>" in message


def test_no_domains(tmp_path: Path) -> None:
    (tmp_path / "file.png").touch()
    (tmp_path / ".hidden").mkdir()
    assert refused(tmp_path).startswith(f"no domains: {tmp_path} has no folders")


def test_unknown_domain(tmp_path: Path) -> None:
    message = refused(tree(tmp_path), "photo", "sketsch")
    assert "'sketsch'; did you mean 'sketch'? One of: photo, sketch" in message


def test_an_empty_domain_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    clean = image_folders("mine", tree(tmp_path))
    (tmp_path / "void").mkdir()
    (tmp_path / "void" / ".DS_Store").touch()
    assert empty_folders(tmp_path) == ["void"]
    assert image_folders("mine", tmp_path).fingerprint == clean.fingerprint
    assert "the domain 'void' has no images" in refused(tmp_path, "photo", "void")
    (tmp_path / "void" / "notes.txt").touch()
    assert "the domain 'void' has no images" in refused(tmp_path)


def test_nothing_but_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "void").mkdir()
    assert refused(tmp_path) == f"no domains: all folders of {tmp_path} are empty"


def test_domain_left_without_images(tmp_path: Path) -> None:
    root = tree(tmp_path, {"one": {"cat": ["a.png"]}})
    with pytest.raises(ValueError, match="the domain 'one' has no images"):
        image_folders("mine", root, leave_out=["one/cat/a.png"])


def test_empty_class_folders_are_named(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for kind in ("cow", "emu"):
        (root / "photo" / kind).mkdir()
    (root / "photo" / "emu" / ".hidden").touch()
    message = refused(root)
    assert f"class folders without a file: {root}/photo/cow, {root}/photo/emu; " in message


def test_files_that_are_no_images_are_collected_and_ten_are_named(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for i in range(12):
        (root / ("photo", "sketch")[i // 6] / "cat" / f"note{i:02}.txt").touch()
    message = refused(root)
    assert message.count(".txt") == 10
    assert f"{root}/photo/cat/note00.txt" in message
    assert f"{root}/sketch/cat/note09.txt" in message
    assert "and 2 more; remove them" in message
    assert ".jpg" in message


def test_images_outside_a_class_and_folders_inside_one_are_refused(tmp_path: Path) -> None:
    loose = picture(tree(tmp_path / "loose") / "photo" / "lost.png")
    message = refused(tmp_path / "loose")
    assert f"<domain>/<class>/<file>, found images outside of class folders: {loose}; " in message
    assert "the level of domains above them is missing" in message
    nested = picture(tree(tmp_path / "nested") / "photo" / "cat" / "more" / "a.png").parent
    message = refused(tmp_path / "nested")
    assert f"folders in class folders: {nested}; " in message
    assert f"give one of {tmp_path / 'nested' / 'photo'}, or list all in a .csv" in message


def test_all_that_is_wrong_is_told_together(tmp_path: Path) -> None:
    root = tree(tmp_path)
    picture(root / "photo" / "lost.png")
    picture(root / "photo" / "cat" / "more" / "a.png")
    (root / "photo" / "emu").mkdir()
    (root / "sketch" / "cat" / "notes.txt").touch()
    found = ("photo/lost.png", "photo/cat/more", "photo/emu", "sketch/cat/notes.txt")
    kinds = refused(root).split(". Also: ")
    for name, kind in zip(found, kinds, strict=True):
        assert f"{root}/{name};" in kind
