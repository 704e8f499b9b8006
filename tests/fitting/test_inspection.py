"""Inspection of a user's data before training: notes, and data that is refused."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from shoal.datasets.appearance import Appearance
from shoal.datasets.cache import ImageCache, build, cache_folder
from shoal.fitting.inspection import (
    inspect_data,
    names_look_swapped,
    record_notes,
    recorded_appearance,
)
from tests.fitting.made import write_images, write_table


def test_broken_files_and_copies_are_found_and_the_rest_is_used(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data")
    (root / "hospital_a/dark/0.png").write_bytes(b"no image")
    shutil.copy(root / "hospital_a/dark/1.png", root / "hospital_b/dark/copy.png")
    found = inspect_data(root)
    assert [line.path.name for line in found.broken] == ["0.png"]
    assert len(found.dataset["hospital_a"]) == 11
    assert len(found.copies) == 1
    assert any("1 file is in several domains" in note for note in found.notes)
    shutil.copy(root / "hospital_c/dark/1.png", root / "hospital_c/dark/again.png")
    note = (
        "1 duplicate file within a domain; scores on seen domains may be too high: "
        f"{root}/hospital_c/dark/1.png  =  {root}/hospital_c/dark/again.png"
    )
    assert note in inspect_data(root).notes


def test_columns_that_name_things_and_domains_of_an_example_or_two(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = (f"s{k % 3},{k},p{k // 4},{'xyz'[k % 3]},{k % 2}" for k in range(240))
    table.write_text("\n".join(["domain,x,patient,code,class", *rows]))
    (note,) = (one for one in inspect_data(table).notes if "categories" in one)
    assert note == (
        "the column 'patient' has 60 categories in 240 rows; if they are people, things or days, a "
        "new domain has others, so leave it out (--leave-out patient), or give it as "
        "--group-column if rows of one belong together"
    )
    few = (f"s{k // 2},{k * k % 7},{k % 2}" for k in range(40))
    table.write_text("\n".join(["domain,x,class", *few]))
    told = "20 of 20 domains have fewer than 3 examples, which say little about a domain"
    assert any(told in one for one in inspect_data(table).notes)


def test_links_that_lead_nowhere_are_named_and_left_out(tmp_path: Path) -> None:
    root, record = write_images(tmp_path / "data", each=2), tmp_path / "inspection.json"
    whole = inspect_data(root).dataset.fingerprint
    (root / "hospital_a/dark/lost.png").symlink_to("gone.png")
    for _ in range(2):  # the second time by the record
        found = inspect_data(root, record=record)
        assert [line.path.name for line in found.broken] == ["lost.png"]
        assert found.broken[0].why == "it links to gone.png: No such file or directory"
        assert found.dataset.fingerprint == whole


def test_images_are_read_once_and_known_the_next_time(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=2)
    (root / "hospital_a/dark/0.png").write_bytes(b"no image")
    record, read = tmp_path / "inspection.json", list[int]()

    def progress(done: int, total: int) -> None:
        read.append(done)

    first = inspect_data(root, progress=progress, record=record)
    assert len(read) == 12
    second = inspect_data(root, progress=progress, record=record)
    assert len(read) == 12
    assert second.broken == first.broken
    assert second.dataset.fingerprint == first.dataset.fingerprint
    (root / "hospital_a/dark/0.png").unlink()  # another file, so that all are read again
    inspect_data(root, progress=progress, record=record)
    assert len(read) == 12 + 11
    assert json.loads(record.read_text())["broken"] == []


def test_what_images_look_like_is_found_out_once(tmp_path: Path) -> None:
    root, record = write_images(tmp_path / "data", each=2), tmp_path / "inspection.json"
    (root / "hospital_a/dark/0.png").write_bytes(b"no image")

    def learn() -> tuple[Appearance, list[ImageCache]]:
        built = list[ImageCache]()
        data = inspect_data(root, record=record)
        record_notes(record, data)

        def decode() -> ImageCache:
            built.append(build(data.dataset, cache_folder(data.dataset, tmp_path / "cache")))
            return built[-1]

        return recorded_appearance(record, data.dataset, decode), built

    first, (cache,) = learn()
    assert first == Appearance.of(one.evaluation for one in cache.domains.values())
    second, built = learn()
    assert second == first and not built
    written = json.loads(record.read_text())
    assert len(written["broken"]) == 1 and written["notes"]  # kept beside it
    record.write_text(json.dumps({**written, "appearance": {"contrast": 3}}))
    with pytest.raises(ValueError, match=r"inspection\.json is damaged"):
        learn()
    # Other images look otherwise.
    (root / "hospital_a/dark/0.png").unlink()
    Image.new("RGB", (48, 40)).save(root / "hospital_b/dark/0.png")
    third, (cache,) = learn()
    assert third.ranges[0].min == 0 < first.ranges[0].min


def test_imbalance_and_missing_classes_are_told(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=12)
    for domain in ("hospital_a", "hospital_b"):
        shutil.rmtree(root / domain / "dark")
    for path in sorted((root / "hospital_c/dark").iterdir())[1:]:
        path.unlink()
    assert not any("there are two domains" in note for note in inspect_data(root).notes)
    notes = "\n".join(inspect_data(root).notes)
    assert "the class 'bright' has 36 examples, 'dark' only 1" in notes
    assert "the domain 'hospital_a' lacks a class: dark" in notes


@pytest.mark.parametrize(
    ("domains", "classes", "swapped"),
    [
        (("dog", "horse", "house"), ("art_painting", "cartoon", "photo", "sketch"), True),
        (("art_painting", "cartoon", "photo", "sketch"), ("dog", "horse", "house"), False),
        (("benign", "malignant"), ("hospital_1", "hospital_2", "hospital_3"), True),
        (("x", "y"), ("1", "2"), False),
        (("hospital_a", "hospital_b"), ("photo", "sketch"), False),
        (("cat", "dog"), ("2019", "2020"), True),
        (("caltech", "voc"), ("bird", "car", "photo"), False),
    ],
)
def test_folders_the_wrong_way_round(
    domains: tuple[str, ...], classes: tuple[str, ...], swapped: bool
) -> None:
    assert names_look_swapped(domains, classes) is swapped


def test_swapped_folders_are_refused_or_read_as_asked(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_images(tmp_path / "right")
    for path in (tmp_path / "right").rglob("*.png"):
        domain, kind = path.parts[-3:-1]
        target = root / kind / domain / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    with pytest.raises(ValueError, match=r"looks like <class>/<domain>/<file>.*--layout class/dom"):
        inspect_data(root)
    found = inspect_data(root, "class/domain").dataset
    assert found.names == ("hospital_a", "hospital_b", "hospital_c")
    assert found.classes == ("bright", "dark")
    right = inspect_data(tmp_path / "right").dataset
    assert found.counts() == right.counts()
    assert inspect_data(root, "domain/class").dataset.names == ("bright", "dark")


def test_one_domain_one_class_and_no_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"only one domain, 'hospital_a'.*two or more"):
        inspect_data(write_images(tmp_path / "one", domains=("hospital_a",)))
    root = write_images(tmp_path / "class")
    for path in root.glob("*/dark"):
        shutil.rmtree(path)
    with pytest.raises(ValueError, match="only one class, 'bright'"):
        inspect_data(root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no domains"):
        inspect_data(tmp_path / "empty")
    (tmp_path / "bare/a/cat").mkdir(parents=True)
    (tmp_path / "bare/b/cat").mkdir(parents=True)
    with pytest.raises(ValueError, match="class folders without a file"):
        inspect_data(tmp_path / "bare")
    with pytest.raises(ValueError, match="no such folder"):
        inspect_data(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="only one domain"):
        inspect_data(write_table(tmp_path / "t.csv", domains=("a",)))


def test_classes_that_differ_by_case_are_refused(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=2)
    (root / "hospital_b/dark").rename(root / "hospital_b/Dark")
    with pytest.raises(ValueError, match=r"classes that differ only by case, .*: 'Dark', 'dark'"):
        inspect_data(root)


def test_an_image_of_200_megapixels_is_left_out(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=2)
    Image.new("1", (20_000, 10_000)).save(root / "hospital_a/dark/huge.png")
    (broken,) = inspect_data(root).broken
    assert broken.path.name == "huge.png"
    assert "more than 178 megapixels; make it smaller" in broken.why


def test_a_domain_of_broken_files_is_refused(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=1)
    for path in (root / "hospital_a").rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="no image of the domain 'hospital_a' can be read"):
        inspect_data(root)


def test_a_manifest_and_a_table_are_told_apart(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=2)
    lines = [f"{p.relative_to(tmp_path)},{p.parts[-2]},{p.parts[-3]}" for p in root.rglob("*.png")]
    manifest = tmp_path / "list.csv"
    manifest.write_text("\n".join(["path,class,domain", *lines]))
    assert inspect_data(manifest).table is None
    assert inspect_data(write_table(tmp_path / "t.csv")).table is not None


def test_classes_whose_letters_are_encoded_differently_are_refused(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=1)
    for domain, name in (("hospital_a", "caf\u00e9"), ("hospital_b", "cafe\u0301 ")):
        (root / domain / "dark").rename(root / domain / name)
    with pytest.raises(ValueError, match="only by case, spaces or the encoding of their letters"):
        inspect_data(root)


def test_classes_of_which_nothing_can_be_read_are_refused(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=1)
    for path in root.glob("*/dark/*.png"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="no image of the class 'dark' can be read"):
        inspect_data(root)


def test_broken_files_are_known_where_the_data_has_moved_and_tried_again(tmp_path: Path) -> None:
    root, record = write_images(tmp_path / "data", each=2), tmp_path / "inspection.json"
    whole = (root / "hospital_a/dark/0.png").read_bytes()
    (root / "hospital_a/dark/0.png").write_bytes(b"\0" * len(whole))
    inspect_data(root, record=record)
    moved = tmp_path / "elsewhere/data"
    moved.parent.mkdir()
    root.rename(moved)
    found = inspect_data(moved, record=record)
    assert [one.path for one in found.broken] == [moved / "hospital_a/dark/0.png"]
    assert len(found.dataset["hospital_a"]) == 3
    (moved / "hospital_a/dark/0.png").write_bytes(whole)
    assert inspect_data(moved, record=record).broken == ()


def write_sized(root: Path, sizes: dict[str, tuple[int, int]], outer: str) -> Path:
    """Write an image of a size for every inner folder into each of the outer ones."""
    for number, folder in enumerate(outer):
        for inner, (width, height) in sizes.items():
            path = root / folder / inner / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (width, height), (number, width, height)).save(path)
    return root


def test_sizes_of_images_tell_which_folders_are_cameras(tmp_path: Path) -> None:
    cameras = {"x1": (30, 20), "x2": (40, 40)}
    root = write_sized(tmp_path / "swapped", cameras, "pq")
    with pytest.raises(ValueError, match=r"one inner folder all have the same size.*--layout cla"):
        inspect_data(root)
    assert inspect_data(root, "domain/class").dataset.names == ("p", "q")
    assert inspect_data(root, "class/domain").dataset.names == ("x1", "x2")
    # One size for all, or a size for each outer folder, speaks for nothing.
    same = write_sized(tmp_path / "same", {"x1": (30, 20), "x2": (30, 20)}, "pq")
    assert inspect_data(same).dataset.classes == ("x1", "x2")
    right = write_sized(tmp_path / "right", {"x1": (30, 20)}, "p")
    write_sized(right, {"x2": (30, 20)}, "p")
    write_sized(right, {"x1": (40, 40), "x2": (40, 40)}, "q")
    assert inspect_data(right).dataset.names == ("p", "q")


def test_classes_that_no_two_domains_share_are_refused(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=1, domains=("a", "b"))
    for kind in ("dark", "bright"):
        (root / "b" / kind).rename(root / "b" / f"{kind}er")
    with pytest.raises(ValueError, match="no class is in more than one domain"):
        inspect_data(root)


def test_what_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match="must be a folder of images, or a file with one of the"):
        inspect_data(tmp_path / "photos.zip")


def test_many_classes_of_one_domain_are_one_line(tmp_path: Path) -> None:
    kinds = [f"c{k % 3}" if k < 60 else f"d{k}" for k in range(80)]
    rows = (f"{'ab'[k % 2]},{k * k % 7},{kind}" for k, kind in enumerate(kinds))
    lines = ["domain,x,class", *rows]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (note,) = (one for one in inspect_data(tmp_path / "t.csv").notes if "in one domain" in one)
    assert note.startswith("20 classes are in one domain only: the class 'd60' is only in")


def test_two_domains_compare_nothing(tmp_path: Path) -> None:
    found = inspect_data(write_images(tmp_path / "data", each=1, domains=("a", "b")))
    assert "there are two domains" in found.notes[0]


def test_many_small_domains_are_one_line_of_rows(tmp_path: Path) -> None:
    rows = (f"site{k // 4:02},{k * k % 7},c{0 if k < 8 else k % 2}" for k in range(120))
    (tmp_path / "t.csv").write_text("\n".join(["domain,x,class", *rows]))
    assert inspect_data(tmp_path / "t.csv").notes == [
        "the domain 'site00' lacks a class: c1",
        "the domain 'site01' lacks a class: c1",
        "30 domains have too few rows to hold any out: "
        + ", ".join(f"'site{k:02}' (4)" for k in range(10))
        + " and 20 more",
    ]


def test_few_small_domains_are_told_one_by_one(tmp_path: Path) -> None:
    root = write_images(tmp_path / "data", each=1)
    shutil.rmtree(root / "hospital_a/dark")
    assert [one for one in inspect_data(root).notes if "hold" in one] == [
        "the domain 'hospital_a' has 1 image: too few to hold any out",
        "the domain 'hospital_b' has 2 images: too few to hold any out",
        "the domain 'hospital_c' has 2 images: too few to hold any out",
    ]


def test_the_name_given_counts_and_empty_folders_are_told(tmp_path: Path) -> None:
    root = write_images(tmp_path / "odd data", each=1)
    (tmp_path / "photos").symlink_to(root)
    for name in ("later", "never"):
        (root / name).mkdir()
    found = inspect_data(tmp_path / "photos")
    assert found.dataset.name == "photos"
    assert len(found.dataset.names) == 3
    assert found.notes[-1] == "empty folders, skipped: later, never"


def test_columns_that_repeat_class_or_domain_are_told(tmp_path: Path) -> None:
    rows = (
        f"{'abc'[k % 3]},{k * k % 7},{'no' if k % 2 else 'yes'},{k % 3},{k % 2},{k % 3 > 0}"
        for k in range(60)
    )
    (tmp_path / "t.csv").write_text("\n".join(["domain,x,class,site,the answer,flag", *rows]))
    *told, shift = inspect_data(tmp_path / "t.csv").notes
    assert shift.startswith("the domain can be told from the columns with ")
    assert told == [
        "the column 'site' determines the domain; it cannot help on a new domain, so leave it out: "
        "--leave-out site",
        "the column 'the answer' determines the class; if it is not known at prediction time, "
        "leave it out: --leave-out 'the answer'",
    ]
