"""``shoal data``: list, download, verify and cache, and their output."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shoal.cli import main
from shoal.cli.progress import AmountProgress
from shoal.datasets import DATASETS, PUBLISHED, SOURCES
from tests.datasets.pictures import picture, tree
from tests.datasets.server import serving, status
from tests.datasets.test_fetch import images
from tests.datasets.test_unpack import zipped

PACS = SOURCES["pacs"]
GOOD = {
    "photo": {"cat": [f"{k}.png" for k in range(5)], "dog": ["a.png"]},
    "sketch": {"cat": [f"{k}.png" for k in range(5)], "dog": ["a.png"]},
}

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("SHOAL_DATA", raising=False)


def run(*arguments: object) -> int:
    return main(["data", *map(str, arguments)])


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


# List


def test_list(tmp_path: Path, capsys: Output) -> None:
    tree(tmp_path / "PACS", {domain: {"dog": ["a.png"]} for domain in PACS.domains})
    assert run("list", "--data", tmp_path) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == f"Data sets, with files under {tmp_path}"
    found = {row[0]: row for row in rows(out) if row and row[0] in DATASETS}
    assert list(found) == list(DATASETS)
    assert found["pacs"][1:] == [
        "art_painting,",
        "cartoon,",
        "photo,",
        "sketch",
        "7",
        "9,991",
        "present",
    ]
    assert found["vlcs"][-2:] == ["by", "hand"]
    assert found["domainnet"][-4:] == ["345", "586,575", "18.5", "GB"]
    assert found["rotated-mnist"][-3:] == ["10", "70,000", "embedded"]
    for source in SOURCES.values():
        assert source.terms in out


def test_list_as_json(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "PACS", {domain: {"dog": ["a.png"]} for domain in PACS.domains})
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    assert run("list", "--json") == 0
    found = {row.pop("name"): row for row in json.loads(capsys.readouterr().out)}
    assert list(found) == list(DATASETS)
    assert found["pacs"] == {
        "domains": ["art_painting", "cartoon", "photo", "sketch"],
        "classes": 7,
        "images": 9991,
        "present": True,
        "embedded": False,
        "download_bytes": None,
        "by_hand": True,
        "terms": "no licence stated",
        "page": "https://dali-dl.github.io/project_iccv2017.html",
    }
    assert found["colored-mnist"]["embedded"] and found["colored-mnist"]["page"] is None
    assert found["terra-incognita"]["download_bytes"] > 6e9
    assert not found["terra-incognita"]["present"]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_list_fits(columns: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run("list") == 0
    out = capsys.readouterr().out
    assert all(len(line) <= int(columns) for line in out.splitlines())
    assert "…" not in out


# Download


def test_download(tmp_path: Path, capsys: Output) -> None:
    with serving(zipped(images(PACS))) as served:
        assert run("download", "pacs", "--data", tmp_path, "--url", served.url) == 0
    out, err = capsys.readouterr()
    assert out == (
        f"pacs is at {tmp_path}/PACS; to check every image: shoal data verify pacs "
        f"--data {tmp_path}\n"
    )
    lines = err.splitlines()
    assert lines[0] == f"pacs: terms of use: no licence stated; see {PACS.page}"
    assert lines[1].startswith("file.zip: ") and lines[1].endswith("kB")
    assert lines[2].startswith("file.zip: no published checksum; recorded SHA-256 ")
    assert lines[3].startswith("unpack file.zip: ")
    assert len(lines) == 4
    assert run("download", "pacs", "--data", tmp_path) == 0
    assert capsys.readouterr().out == f"pacs is already at {tmp_path}/PACS\n"


def test_a_download_keeps_its_archive_on_request(tmp_path: Path) -> None:
    with serving(zipped(images(PACS))) as served:
        arguments = ("download", "pacs", "--data", tmp_path, "--url", served.url, "--keep-archive")
        assert run(*arguments) == 0
    assert (tmp_path / "downloads" / "file.zip").is_file()


def test_a_wrong_sum(tmp_path: Path, capsys: Output) -> None:
    with serving(zipped(images(PACS))) as served:
        wrong = ("--url", served.url, "--sha256", "0" * 64)
        assert run("download", "pacs", "--data", tmp_path, *wrong) == 2
    assert f"expected {'0' * 64}; the download was deleted" in capsys.readouterr().err
    assert not (tmp_path / "PACS").exists()
    assert run("download", "pacs", "--data", tmp_path, "--sha256", "0" * 64) == 2
    assert "no --url was given" in capsys.readouterr().err


def test_a_download_by_hand(tmp_path: Path, capsys: Output) -> None:
    assert run("download", "pacs", "--data", tmp_path) == 2
    err = capsys.readouterr().err
    assert "shoal: PACS.zip has to be downloaded by hand: it is on Google Drive" in err
    assert PACS.page in err and f"{tmp_path}/downloads/PACS.zip" in err


def test_a_server_that_refuses(tmp_path: Path, capsys: Output) -> None:
    with serving(always=status(404)) as served:
        assert run("download", "pacs", "--data", tmp_path, "--url", served.url) == 2
    err = capsys.readouterr().err
    assert "the server answered 404" in err and f"{tmp_path}/downloads/file.zip" in err
    assert "Google Drive" not in err  # nobody asked it


def test_what_comes_with_shoal_is_not_downloaded(capsys: Output) -> None:
    assert run("download", "rotated-mnist") == 0
    assert (
        capsys.readouterr().out == "rotated-mnist comes with shoal: there is nothing to download\n"
    )
    assert run("download", "pasc") == 2
    assert "unknown data set 'pasc'; did you mean 'pacs'?" in capsys.readouterr().err


# Verify


def verified(capsys: Output, *arguments: object, status: int) -> dict[str, Any]:
    """Return the findings as JSON; the printed text must contain every word of them."""
    assert run("verify", *arguments, "--json") == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["good"] == (status == 0)
    assert run("verify", *arguments) == status
    out = capsys.readouterr().out
    for line in [*found["broken"], *found["faults"]]:
        assert f"{line['path']}: {line['why']}" in out
    for note in found["notes"]:
        assert note in out
    assert ("Good: every image can be read" in out) == (status == 0)
    assert ("Not good: " in out) == (status == 1)
    found["shown"] = out
    return found


def test_a_good_folder(tmp_path: Path, capsys: Output) -> None:
    found = verified(capsys, tree(tmp_path / "mine", GOOD), status=0)
    assert found["name"] == "mine"
    assert found["counts"] == {"photo": {"cat": 5, "dog": 1}, "sketch": {"cat": 5, "dog": 1}}
    assert found["notes"] == [] and found["published"] is None
    assert rows(found["shown"])[4:7] == [
        ["photo", "6", "2", "0"],
        ["sketch", "6", "2", "0"],
        ["all", "12", "2", "0"],
    ]
    assert "Published" not in found["shown"]


def test_every_fault_is_told_and_the_rest_is_read(tmp_path: Path, capsys: Output) -> None:
    root = tree(tmp_path / "mine", GOOD)
    (root / "photo" / "emu").mkdir()
    (root / "photo" / "cat" / "notes.txt").touch()
    (root / "sketch" / "cat" / "deeper").mkdir()
    picture(root / "sketch" / "lost.png")
    (root / "void").mkdir()
    (root / "photo" / "dog" / "text.png").write_text("this is a text")
    Image.effect_noise((64, 64), 50).save(root / "sketch" / "dog" / "cut.jpg")
    jpeg = root / "sketch" / "dog" / "cut.jpg"
    jpeg.write_bytes(jpeg.read_bytes()[:1500])
    found = verified(capsys, root, status=1)
    assert [(line["domain"], line["path"]) for line in found["broken"]] == [
        ("photo", f"{root}/photo/dog/text.png"),
        ("sketch", f"{root}/sketch/dog/cut.jpg"),
    ]
    assert found["broken"][0]["why"] == "not an image file, or its header is damaged"
    assert "truncated" in found["broken"][1]["why"]
    assert [(line["path"], line["why"]) for line in found["faults"]] == [
        (f"{root}/void", "a domain without images"),
        (f"{root}/sketch/cat/deeper", "not at <domain>/<class>/<file>"),
        (f"{root}/sketch/lost.png", "not at <domain>/<class>/<file>"),
        (f"{root}/photo/emu", "a class folder without a file"),
        (f"{root}/photo/cat/notes.txt", "its suffix is not that of an image"),
    ]
    assert found["counts"]["photo"] == {"cat": 5, "dog": 2}
    assert ["photo", "7", "2", "1"] in rows(found["shown"])
    assert ["all", "14", "2", "2"] in rows(found["shown"])
    assert "Not good: 2 broken, 5 unexpected" in found["shown"]


def test_what_is_unusual_is_told_and_no_fault(tmp_path: Path, capsys: Output) -> None:
    root = tree(tmp_path / "mine", {**GOOD, "one": {"emu": ["a.png"]}})
    picture(root / "loose.png")
    (root / "LICENSE").touch()
    found = verified(capsys, root, status=0)
    assert found["notes"] == [
        f"{root}/loose.png: not used",
        "the class 'emu' is only in the domain 'one'",
        "the domain 'one' lacks 2 classes: cat, dog",
        "the domain 'photo' lacks a class: emu",
        "the domain 'sketch' lacks a class: emu",
        "the domain 'one' has 1 image: too few to hold any out",
    ]
    found = verified(capsys, tree(tmp_path / "two", {"one": GOOD["photo"]}), status=0)
    assert found["notes"] == ["there is only one domain, 'one'; training needs two or more"]


def test_nothing_but_faults(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "mine" / "photo" / "cat").mkdir(parents=True)
    found = verified(capsys, tmp_path / "mine", status=1)
    assert "Not good: there is no image" in found["shown"]


def published(monkeypatch: pytest.MonkeyPatch, counts: dict[str, int]) -> None:
    monkeypatch.setitem(PUBLISHED, "pacs", counts)


def test_a_published_set(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path / "PACS", dict.fromkeys(PACS.domains, GOOD["photo"]))
    published(monkeypatch, dict.fromkeys(PACS.domains, 6))
    found = verified(capsys, "pacs", "--data", tmp_path, status=0)
    assert rows(found["shown"])[4] == ["art_painting", "6", "6", "2", "0"]
    assert rows(found["shown"])[8] == ["all", "24", "24", "2", "0"]
    assert found["place"] == f"{tmp_path}/PACS"
    published(monkeypatch, {**dict.fromkeys(PACS.domains, 6), "photo": 7})
    found = verified(capsys, "pacs", "--data", tmp_path, status=1)
    assert found["differences"] == [{"domain": "photo", "found": 6, "published": 7}]
    assert rows(found["shown"])[6] == ["photo", "6", "7", "2", "0"]
    assert "Not good: 1 counts not as published" in found["shown"]


def test_a_published_set_that_lacks_a_domain(tmp_path: Path, capsys: Output) -> None:
    tree(tmp_path / "PACS", dict.fromkeys(PACS.domains[:3], GOOD["photo"]))
    found = verified(capsys, "pacs", "--data", tmp_path, status=1)
    assert found["faults"] == [{"path": f"{tmp_path}/PACS/sketch", "why": "no such domain folder"}]
    assert ["sketch", "0", "3,929", "0", "0"] in rows(found["shown"])


def test_a_total_is_compared_where_no_more_is_published(tmp_path: Path, capsys: Output) -> None:
    source = SOURCES["office-home"]
    tree(tmp_path / source.folder, dict.fromkeys(source.domains, GOOD["photo"]))
    found = verified(capsys, "office-home", "--data", tmp_path, status=1)
    assert ["Art", "6", "2", "0"] in rows(found["shown"])
    assert ["all", "24", "15,588", "2", "0"] in rows(found["shown"])


def test_todays_terra_incognita_is_explained(tmp_path: Path, capsys: Output) -> None:
    source = SOURCES["terra-incognita"]
    tree(tmp_path / source.folder, dict.fromkeys(source.domains, GOOD["photo"]))
    found = verified(capsys, "terra-incognita", "--data", tmp_path, status=1)
    assert "24,330" in found["notes"][-1]


def test_files_that_changed_since_the_download(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(monkeypatch, dict.fromkeys(PACS.domains, 2))
    with serving(zipped(images(PACS))) as served:
        assert run("download", "pacs", "--data", tmp_path, "--url", served.url) == 0
    capsys.readouterr()
    verified(capsys, "pacs", "--data", tmp_path, status=0)
    picture(tmp_path / "PACS" / "photo" / "dog" / "dog.png", side=100)
    found = verified(capsys, "pacs", "--data", tmp_path, status=1)
    assert found["faults"] == [
        {
            "path": f"{tmp_path}/downloads.json",
            "why": "file names or sizes differ from those recorded at the download",
        }
    ]


def test_an_embedded_set(capsys: Output) -> None:
    found = verified(capsys, "colored-mnist", status=0)
    assert found["place"] == "embedded"
    assert sum(sum(classes.values()) for classes in found["counts"].values()) == 70_000


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_manifest(tmp_path: Path, capsys: Output, suffix: str) -> None:
    tree(tmp_path / "set", GOOD)
    listed = [
        {"path": f"set/{domain}/{kind}/{file}", "class": kind, "domain": domain}
        for domain, classes in GOOD.items()
        for kind, files in classes.items()
        for file in files
    ]
    manifest = tmp_path / f"mine{suffix}"

    def write() -> None:
        if suffix == ".json":
            manifest.write_text(json.dumps(listed))
        else:
            lines = ["path,class,domain", *(",".join(row.values()) for row in listed)]
            manifest.write_text("\n".join(lines))

    write()
    assert verified(capsys, manifest, status=0)["name"] == "mine"
    listed[0]["path"] = "set/gone.png"
    listed[1]["path"] = "set/notes.txt"
    write()
    found = verified(capsys, manifest, status=1)
    assert [line["why"] for line in found["faults"]] == [
        "its suffix is not that of an image",
        "listed, but does not exist",
    ]
    assert found["faults"][1]["path"].startswith("set/gone.png (line ")
    assert found["counts"]["photo"] == {"cat": 3, "dog": 1}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("pasc", "unknown data set 'pasc'; did you mean 'pacs'?"),
        ("no/where", "no such folder: no/where"),
        ("nowhere.csv", "no such file: nowhere.csv"),
        ("pacs", "pacs is not at data/PACS; to download it: shoal data download pacs"),
    ],
)
def test_nothing_to_verify(
    asked: str, why: str, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("verify", asked) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("shoal: ") and why in err


def test_verify_without_pillow_names_the_extra(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "mine", GOOD)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert run("verify", root) == 2
    assert "pip install 'shoal[images]'" in capsys.readouterr().err


# Cache


def test_cache(tmp_path: Path, capsys: Output) -> None:
    root = tree(tmp_path / "mine", GOOD)
    for _ in range(2):
        assert run("cache", root, "--cache", tmp_path / "cache") == 0
        assert f"mine: 12 decoded images are in {tmp_path}/cache" in capsys.readouterr().out
    assert run("cache", "colored-mnist", "--cache", tmp_path / "other") == 0
    assert "comes decoded: there is nothing to do" in capsys.readouterr().out
    assert not (tmp_path / "other").exists()


# Progress


def test_help(capsys: Output) -> None:
    for arguments, words in {
        (): ("list", "download", "verify", "cache"),
        ("list",): ("--data", "--json", "SHOAL_DATA"),
        ("download",): ("NAME", "--url", "--sha256", "--keep-archive"),
        ("verify",): ("PATH_OR_NAME", "manifest", "--json", "exit status is 1"),
        ("cache",): ("--cache", "--data"),
    }.items():
        with pytest.raises(SystemExit) as caught:
            run(*arguments, "--help")
        assert caught.value.code == 0
        out = " ".join(capsys.readouterr().out.split())
        assert all(word in out for word in words)


class Bars:
    """Stands in for the progress bars of rich without a terminal."""

    disable = True

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def add_task(self, name: str, total: int | None) -> int:
        self.tasks.append(name)
        return len(self.tasks)

    def update(self, *_: object, **__: object) -> None:
        pass

    remove_task = refresh = update


def test_lines_where_there_is_no_terminal(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 116.0, 117.0, 120.0, 120.0])
    monkeypatch.setattr("time.monotonic", functools.partial(next, clock))
    bars = Bars()
    shown = AmountProgress(bars, "bytes")
    for done in (1_000_000, 2_000_000, 17_000_000, 18_000_000, 41_000_000):
        shown("a.zip", done, 41_000_000)
    shown("b.zip", 500, None)
    assert bars.tasks == ["a.zip", "b.zip"]
    assert capsys.readouterr().err.splitlines() == [
        "a.zip: 17.0 MB (41%), 1.0 MB/s",
        "a.zip: 41.0 MB, 2.0 MB/s",
    ]


def test_no_network_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The name cannot exist, so that nothing is downloaded even with a network."""
    url = "http://nowhere.invalid/PACS.zip"
    command = [sys.executable, "-m", "shoal", "data", "download", "pacs"]
    found = subprocess.run(
        [*command, "--url", url, "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 2
    assert "cannot reach nowhere.invalid" in found.stderr
    assert f"{tmp_path}/downloads/PACS.zip" in found.stderr
    assert "Traceback" not in found.stderr
