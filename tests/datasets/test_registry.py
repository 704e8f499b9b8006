"""The published data sets: names, domains in order, folders, and counts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.catalogue import DATASETS as FACTS
from shoal.datasets import DATASETS, PUBLISHED, decode, find, load_dataset, splits, verify
from tests.datasets.pictures import picture, tree

# Folder, then domains in DomainBed's order.
FOLDERS = {
    "vlcs": ("VLCS", ["Caltech101", "LabelMe", "SUN09", "VOC2007"]),
    "pacs": ("PACS", ["art_painting", "cartoon", "photo", "sketch"]),
    "office-home": ("office_home", ["Art", "Clipart", "Product", "Real World"]),
    "terra-incognita": (
        "terra_incognita",
        ["location_100", "location_38", "location_43", "location_46"],
    ),
    "domainnet": (
        "domain_net",
        ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"],
    ),
}
TOTALS = {
    "vlcs": 10_729,
    "pacs": 9_991,
    "office-home": 15_588,
    "terra-incognita": 24_788,
    "domainnet": 586_575,
}


def small(root: Path, name: str) -> Path:
    folder, domains = FOLDERS[name]
    tree(root / folder, {domain: {"cat": ["a.jpg"], "dog": ["b.jpg"]} for domain in domains})
    return root


def test_the_registry_holds_what_the_hyperparameters_know() -> None:
    assert list(DATASETS) == list(FACTS)
    embedded = {"colored-mnist", "rotated-mnist"}
    assert {*FOLDERS, *embedded} <= set(DATASETS)
    assert set(FOLDERS) <= set(PUBLISHED) <= set(DATASETS) - embedded
    assert find("pacs") is DATASETS["pacs"]
    with pytest.raises(ValueError, match="unknown data set 'psac'; did you mean 'pacs'"):
        find("psac")


@pytest.mark.parametrize("name", FOLDERS)
def test_domains_and_their_order(tmp_path: Path, name: str) -> None:
    root = small(tmp_path, name)
    picture(root / FOLDERS[name][0] / "another" / "cat" / "a.jpg")
    dataset = find(name)(root, 0)
    assert dataset.name == name
    assert list(dataset.names) == FOLDERS[name][1]
    assert dataset.classes == ("cat", "dog")
    assert find(name)(root, 1).fingerprint == dataset.fingerprint


@pytest.mark.parametrize("name", FOLDERS)
def test_published_counts_add_up(name: str) -> None:
    published = PUBLISHED[name]
    if isinstance(published, int):
        assert published == TOTALS[name]
    else:
        assert list(published) == FOLDERS[name][1]
        assert sum(published.values()) == TOTALS[name]


@pytest.mark.parametrize("name", FOLDERS)
def test_without_files_it_says_where_they_go(tmp_path: Path, name: str) -> None:
    folder, domains = FOLDERS[name]
    with pytest.raises(ValueError) as caught:
        find(name)(None, 0)
    assert f"put its files at {folder}/<domain>/<class>/<file>" in str(caught.value)
    assert ", ".join(domains) in str(caught.value)
    with pytest.raises(ValueError, match=f"no such folder: {tmp_path / folder}"):
        find(name)(tmp_path, 0)
    small(tmp_path, name)
    with pytest.raises(ValueError, match=f"{folder} is {name} itself; give the folder that holds"):
        find(name)(tmp_path / folder, 0)


def test_a_name_a_folder_or_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small(tmp_path / "data", "pacs")
    for folder in ("mine", "pacs"):
        tree(tmp_path / folder)
    (tmp_path / "list.csv").write_text("path,class,domain\nmine/photo/cat/a.png,cat,photo\n")
    found = {
        text: load_dataset(text, tmp_path / "data")
        for text in ("pacs", "mine", "./pacs", "list.csv")
    }
    assert {text: dataset.name for text, dataset in found.items()} == {
        "pacs": "pacs",
        "mine": "mine",
        "./pacs": "pacs",
        "list.csv": "list",
    }
    assert list(found["pacs"].names) == FOLDERS["pacs"][1]
    assert found["./pacs"].names == found["mine"].names == ("photo", "sketch")
    assert found["list.csv"].names == ("photo",)
    drawn = [load_dataset("colored-mnist", None, trial).fingerprint for trial in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for text, why in (("psac", "did you mean 'pacs'"), ("no/where", "no such folder: no/where")):
        with pytest.raises(ValueError, match=why):
            load_dataset(text, None)


def test_duplicates_of_domainnet_are_left_out(tmp_path: Path) -> None:
    root = small(tmp_path, "domainnet")
    whole = find("domainnet")(root, 0)
    lines = ["clipart/cat/a.jpg", "", "domain_net/real/dog/b.jpg", "sketch/cat/gone.jpg"]
    (root / "domain_net" / "duplicates.txt").write_text("\n".join(lines))
    rest = find("domainnet")(root, 0)
    assert [len(d) for d in whole.domains] == [2] * 6
    assert [len(d) for d in rest.domains] == [1, 2, 2, 2, 1, 2]
    assert rest.missing_classes() == {"clipart": ("cat",), "real": ("dog",)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.jpg", r"duplicates.txt, line 2: expected domain/class/file, got 'a\.jpg'"),
        ("clipat/cat/a.jpg", r"duplicates.txt, line 2\) 'clipat'; did you mean 'clipart'"),
    ],
)
def test_a_list_of_something_else_is_refused(tmp_path: Path, line: str, message: str) -> None:
    root = small(tmp_path, "domainnet")
    (root / "domain_net" / "duplicates.txt").write_text(f"clipart/cat/a.jpg\n{line}\n")
    with pytest.raises(ValueError, match=message):
        find("domainnet")(root, 0)


TOYS = '''"""Toys: a data set of this test."""

from pathlib import Path

from .base import DomainDataset
from .sources import DatasetSource, File

SOURCE = DatasetSource(
    name="toy-set",
    classes=2,
    published={"red": 2, "blue": 2},
    terms="none",
    folder="toys",
    page="https://toys.example",
    files=(File(name="toys.zip"),),
    by_hand="it is a toy",
)


def load(root: Path | None, trial: int) -> DomainDataset:
    return SOURCE.load(root)
'''
FACTS_OF_TOYS = 'DatasetFacts(title="Toys", domainbed="Toys", domains=("red", "blue"))'
USE_TOYS = """
import sys
from pathlib import Path
from shoal.cli import main
from shoal.datasets import load_dataset

assert load_dataset("toy-set", Path(sys.argv[1])).names == ("red", "blue")
assert main(["data", "verify", "toy-set", "--data", sys.argv[1]]) == 0
assert main(["data", "download", "toy-set", "--data", sys.argv[1] + "/elsewhere"]) == 2
assert main(["data", "list", "--json", "--data", sys.argv[1]]) == 0
"""


def test_a_new_set_is_one_file_and_one_line_of_the_catalogue(tmp_path: Path) -> None:
    (source,) = shoal.__path__
    package = tmp_path / "src" / "shoal"
    (package / "datasets").mkdir(parents=True)
    for folder in (Path(source), Path(source) / "datasets"):
        for path in folder.iterdir():
            if path.name not in ("datasets", "catalogue.py"):
                (package / path.relative_to(source)).symlink_to(path)
    catalogue = (Path(source) / "catalogue.py").read_text()
    line = f'DATASETS = {{\n    "toy-set": {FACTS_OF_TOYS},\n'
    assert catalogue.count("\nDATASETS = {\n") == 1
    (package / "catalogue.py").write_text(catalogue.replace("DATASETS = {\n", line))
    (package / "datasets" / "toy_set.py").write_text(TOYS)
    files = {"car": ["1.png"], "kite": ["2.png"]}
    tree(tmp_path / "data" / "toys", {"red": files, "blue": files})
    done = subprocess.run(
        [sys.executable, "-c", USE_TOYS, str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "toys.zip has to be downloaded by hand: it is a toy" in done.stderr
    shown, _, listed = done.stdout.partition("\n[")
    assert "Good: every image can be read, and the counts are the published ones" in shown
    assert json.loads("[" + listed)[0] == {
        "name": "toy-set",
        "domains": ["red", "blue"],
        "classes": 2,
        "images": 4,
        "present": True,
        "embedded": False,
        "download_bytes": None,
        "by_hand": True,
        "terms": "none",
        "page": "https://toys.example",
    }


@pytest.fixture
def pacs_root(data_root: Path) -> Path:
    if not (data_root / "PACS").is_dir():
        pytest.skip(f"data not present: {data_root / 'PACS'}")
    return data_root


def test_pacs_has_the_published_counts(pacs_root: Path) -> None:
    dataset = find("pacs")(pacs_root, 0)
    published = {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929}
    assert PUBLISHED["pacs"] == published
    assert {d.name: len(d) for d in dataset.domains} == published
    assert dataset.missing_classes() == {}
    assert dataset.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert dataset.counts()["sketch"]["house"] == 80
    for name, (kept, held_out) in splits(dataset, 0).items():
        assert len(held_out) == int(0.2 * published[name])
        assert len(kept) + len(held_out) == published[name]


def test_some_of_pacs_can_be_read(pacs_root: Path) -> None:
    dataset = find("pacs")(pacs_root, 0)
    some = type(dataset)(
        dataset.name,
        dataset.classes,
        tuple(type(d)(d.name, d.labels[::100], d.images[::100]) for d in dataset.domains),
    )
    assert verify(some, workers=1).broken == ()
    assert decode(some["photo"].images[0]).shape == (3, 224, 224)
