"""Data sets from a server on localhost to domain/class/file, and every way that can go wrong."""

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from shoal.datasets import SOURCES, find
from shoal.datasets import fetch as module
from shoal.datasets.download import ATTEMPTS, DownloadError, Unavailable
from shoal.datasets.fetch import fetch, read_record
from shoal.datasets.sources import DatasetSource, File
from tests.datasets.server import Served, drop, serving, status
from tests.datasets.test_unpack import tarred, zipped

PACS = SOURCES["pacs"]


def png(shade: int = 0) -> bytes:
    with io.BytesIO() as buffer:
        Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "png")
        return buffer.getvalue()


def images(source: DatasetSource, top: str = "kfold/") -> dict[str, bytes]:
    """Return the files of an archive of a set, one image for each class and domain."""
    files = {
        f"{top}{domain}/{kind}/{kind}.png": png(len(kind))
        for domain in source.domains
        for kind in ("dog", "horse")
    }
    return {f"{top}README.txt": b"read me", **files}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.datasets.download.LONGEST_WAIT", 0.001)


def from_server(
    monkeypatch: pytest.MonkeyPatch, name: str, served: Served, contents: dict[str, bytes]
) -> None:
    """Let the source's files come from the test's server; nothing else of it is changed."""
    base = served.url.removesuffix("/file.zip")
    served.paths = {f"/{file}": content for file, content in contents.items()}
    files = [replace(file, url=f"{base}/{file.name}", md5=None) for file in SOURCES[name].files]
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], files=tuple(files)))


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("top", ["", "kfold/", "a/b/c/"])
def test_an_archive_by_its_address(tmp_path: Path, pack: object, top: str) -> None:
    content = pack(images(PACS, top))
    told: list[str] = []
    calls: list[tuple[str, int, int | None]] = []
    with serving(content, faults=[drop(500)]) as served:
        folder = fetch(
            "pacs", tmp_path, served.url, progress=lambda *c: calls.append(c), note=told.append
        )
    assert folder == tmp_path / "PACS"
    dataset = find("pacs")(tmp_path, 0)
    assert dataset.names == PACS.domains and dataset.classes == ("dog", "horse")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PACS", "downloads.json"]
    sha256 = hashlib.sha256(content).hexdigest()
    assert told[1:] == [f"file.zip: no published checksum; recorded SHA-256 {sha256}"]
    assert "trying again" in told[0]
    assert read_record(tmp_path) == {
        "files": {"file.zip": {"url": served.url, "sha256": sha256, "bytes": len(content)}},
        "sets": {"pacs": {"fingerprint": dataset.fingerprint}},
    }
    assert ("file.zip", len(content), len(content)) in calls
    assert calls[-1][0] == "unpack file.zip"


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    with serving(zipped(images(PACS))) as served:
        fetch("pacs", tmp_path, served.url)
        served.asked.clear()
        assert fetch("pacs", tmp_path, served.url) == tmp_path / "PACS"
    assert served.asked == []


def test_half_a_set_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "PACS" / "photo").mkdir(parents=True)
    with (
        serving(zipped(images(PACS))) as served,
        pytest.raises(ValueError, match="PACS exists, but lacks art_painting, cartoon, sketch;"),
    ):
        fetch("pacs", tmp_path, served.url)
    assert served.asked == []


def test_the_archive_is_kept_on_request_and_used_the_next_time(tmp_path: Path) -> None:
    content = zipped(images(PACS))
    with serving(content) as served:
        fetch("pacs", tmp_path, served.url, keep_archive=True)
        assert (tmp_path / "downloads" / "file.zip").read_bytes() == content
        (tmp_path / "PACS").rename(tmp_path / "away")
        served.asked.clear()
        fetch("pacs", tmp_path, served.url)
    assert served.asked == []
    assert not (tmp_path / "downloads").exists()
    assert listing(tmp_path / "PACS") == listing(tmp_path / "away")


def test_the_first_sum_is_remembered(tmp_path: Path) -> None:
    told: list[str] = []
    with serving(zipped(images(PACS))) as served:
        fetch("pacs", tmp_path, served.url)
        (tmp_path / "PACS").rename(tmp_path / "away")
        fetch("pacs", tmp_path, served.url, note=told.append)
        assert told == []  # it was compared, and there is nothing to report
        (tmp_path / "PACS").rename(tmp_path / "away again")
        before, served.content = served.content, zipped(images(PACS, ""))
        with pytest.raises(DownloadError) as caught:
            fetch("pacs", tmp_path, served.url)
    message = str(caught.value)
    assert f"expected {hashlib.sha256(before).hexdigest()}" in message
    assert "recorded at the first download: if the publisher has changed" in message
    assert str(tmp_path / "downloads.json") in message
    assert "--url" not in message  # fetching it by hand would bring the same


def test_a_mirror_with_the_same_file_name_has_a_sum_of_its_own(tmp_path: Path) -> None:
    with serving(zipped(images(PACS))) as served, serving(zipped(images(PACS, ""))) as mirror:
        fetch("pacs", tmp_path, served.url)
        (tmp_path / "PACS").rename(tmp_path / "away")
        fetch("pacs", tmp_path, mirror.url)
    assert read_record(tmp_path)["files"]["file.zip"]["url"] == mirror.url


@pytest.mark.parametrize("name", ["terra-incognita", "domainnet"])
def test_a_mirror_has_the_layout_already(tmp_path: Path, name: str) -> None:
    """Neither annotations nor lists are asked for."""
    with serving(zipped(images(SOURCES[name]))) as served:
        fetch(name, tmp_path, served.url)
    assert len(served.asked) == 1
    assert find(name)(tmp_path, 0).names == SOURCES[name].domains


def test_a_given_sum_goes_before_a_remembered_one(tmp_path: Path) -> None:
    told: list[str] = []
    with serving(zipped(images(PACS))) as served:
        fetch("pacs", tmp_path, served.url)
        (tmp_path / "PACS").rename(tmp_path / "away")
        served.content = zipped(images(PACS, ""))
        sha256 = hashlib.sha256(served.content).hexdigest()
        with pytest.raises(DownloadError, match=r"sum .*, expected 0+; the download was deleted$"):
            fetch("pacs", tmp_path, served.url, "0" * 64)
        fetch("pacs", tmp_path, served.url, sha256, note=told.append)
    assert told == []
    assert read_record(tmp_path)["files"]["file.zip"]["sha256"] == sha256


def test_by_hand(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        fetch("pacs", tmp_path)
    message = "\n".join([str(caught.value), *caught.value.__notes__])
    for part in (
        "PACS.zip has to be downloaded by hand: it is on Google Drive",
        PACS.page,
        f"{tmp_path}/downloads/PACS.zip  https://drive.google.com/uc?id=",
        "run the same command again",
        f"{tmp_path}/PACS/<domain>/<class>/<file>",
        "art_painting, cartoon, photo, sketch",
        "--url URL",
    ):
        assert part in message
    (tmp_path / "downloads").mkdir(exist_ok=True)
    content = zipped(images(PACS))
    (tmp_path / "downloads" / "PACS.zip").write_bytes(content)
    told: list[str] = []
    fetch("pacs", tmp_path, note=told.append)
    assert find("pacs")(tmp_path, 0).classes == ("dog", "horse")
    assert told == [
        f"PACS.zip: no published checksum; recorded SHA-256 {hashlib.sha256(content).hexdigest()}"
    ]
    assert not (tmp_path / "downloads").exists()


def test_by_hand_with_another_file_than_before(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "PACS.zip").write_bytes(zipped(images(PACS)))
    fetch("pacs", tmp_path, keep_archive=True)
    (tmp_path / "PACS").rename(tmp_path / "away")
    (tmp_path / "downloads" / "PACS.zip").write_bytes(zipped(images(PACS, "")))
    with pytest.raises(
        DownloadError, match=r"PACS\.zip has the SHA-256 sum .*download it again, or"
    ):
        fetch("pacs", tmp_path)


@pytest.mark.parametrize("name", ["vlcs", "pacs", "office-home"])
def test_sets_that_people_must_fetch(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unavailable, match="has to be downloaded by hand: it"):
        fetch(name, tmp_path)
    source = SOURCES[name]
    (tmp_path / "downloads").mkdir(exist_ok=True)
    (tmp_path / "downloads" / source.files[0].name).write_bytes(zipped(images(source)))
    assert fetch(name, tmp_path) == tmp_path / source.folder
    assert find(name)(tmp_path, 0).names == source.domains


def test_a_server_that_is_gone_says_where_the_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(always=status(404)) as served:
        from_server(monkeypatch, "terra-incognita", served, {})
        with pytest.raises(Unavailable) as caught:
            fetch("terra-incognita", tmp_path)
    message = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "the server answered 404" in message
    for file in SOURCES["terra-incognita"].files:
        assert f"  {tmp_path}/downloads/{file.name}  " in message
        assert f"  {file.url}\n" in message
    assert "location_100, location_38, location_43, location_46" in message


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    with (
        serving(zipped({"set/photo/dog/a.png": b"", "set/paint/dog/a.png": b""})) as served,
        pytest.raises(ValueError) as caught,
    ):
        fetch("pacs", tmp_path, served.url)
    assert "no folders art_painting, cartoon, sketch in file.zip; expected" in str(caught.value)
    assert f"the unpacked files are in {tmp_path}/downloads/pacs.unpacked" in str(caught.value)
    assert not (tmp_path / "PACS").exists()


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_better_archive_takes_the_place_of_one_of_something_else(
    tmp_path: Path, by_hand: bool
) -> None:
    """From another address, or by hand; the files unpacked before are not used."""
    with serving(zipped({"wrong/dog/a.png": b""})) as served, serving() as mirror:
        mirror.content = zipped(images(PACS))
        if by_hand:
            archive = tmp_path / "downloads" / "PACS.zip"
            archive.parent.mkdir()
            archive.write_bytes(served.content)
        with pytest.raises(ValueError, match="no folders"):
            fetch("pacs", tmp_path, None if by_hand else served.url)
        if by_hand:
            archive.write_bytes(mirror.content)
            with pytest.raises(DownloadError, match="download it again, or remove that sum from"):
                fetch("pacs", tmp_path)
            (tmp_path / module.RECORD).unlink()
        fetch("pacs", tmp_path, None if by_hand else mirror.url)
    assert find("pacs")(tmp_path, 0).classes == ("dog", "horse")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PACS", "downloads.json"]


@pytest.mark.parametrize("path", ["/", "/..", "/a/..", "/pacs", "/arranged"])
def test_addresses_without_a_file_name(tmp_path: Path, path: str) -> None:
    with serving(zipped(images(PACS))) as served:
        fetch("pacs", tmp_path, served.url.replace("/file.zip", path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["PACS", "downloads.json"]


# Terra Incognita: sorted by annotations

CATEGORIES = [{"id": 1, "name": "dog"}, {"id": 2, "name": "opossum"}, {"id": 3, "name": "car"}]


def annotated(*rows: tuple[str, object, int]) -> bytes:
    """Return annotations of (image, location, category)."""
    found = {name: location for name, location, _ in rows}
    return json.dumps(
        {
            "images": [
                {"id": name, "file_name": f"{name}.jpg", "location": location}
                for name, location in found.items()
            ],
            "annotations": [{"image_id": name, "category_id": kind} for name, _, kind in rows],
            "categories": CATEGORIES,
        }
    ).encode()


LOCATIONS = ("100", "38", "43", "46")
ANNOTATIONS = {
    # Two boxes of one class, two classes, a class and one that does not count, and one not there.
    "eccv_18/train.json": annotated(
        ("twice", 38, 1), ("twice", 38, 1), ("both", 38, 1), ("both", 38, 2), ("car", 46, 3),
        ("dogcar", 46, 1), ("dogcar", 46, 3), ("gone", 46, 1), ("else", 51, 1),
    ),
    "eccv_18/test.json": annotated(*((f"at{place}", place, 2) for place in LOCATIONS)),
}  # fmt: skip
NAMES = ("twice", "both", "car", "dogcar", "else", *(f"at{place}" for place in LOCATIONS))
TERRA = {
    "eccv_18_annotations.tar.gz": tarred(ANNOTATIONS),
    "eccv_18_all_images_sm.tar.gz": tarred({f"eccv_18_all/{n}.jpg": n.encode() for n in NAMES}),
}
SORTED = [
    "location_100/opossum/at100.jpg",
    "location_38/dog/twice.jpg",
    "location_38/opossum/at38.jpg",
    "location_43/opossum/at43.jpg",
    "location_46/dog/dogcar.jpg",
    "location_46/opossum/at46.jpg",
]


def test_terra_incognita(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with serving() as served:
        from_server(monkeypatch, "terra-incognita", served, TERRA)
        fetch("terra-incognita", tmp_path, note=told.append)
    assert listing(tmp_path / "terra_incognita") == SORTED
    for file in SORTED:
        assert (tmp_path / "terra_incognita" / file).read_text() == Path(file).stem
    assert told[-2:] == [
        "images skipped because they show two of the classes: 1",
        "images that are annotated, but not in the archive: 1",
    ]


def test_an_interrupted_sorting_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither archive is fetched again, and images that were moved stay moved."""
    import os

    move, moves = os.replace, []

    def interrupted(source: Path, target: Path) -> None:
        if Path(target).suffix == ".jpg":
            moves.append(target)
            if len(moves) == 3:
                raise KeyboardInterrupt
        move(source, target)

    with serving() as served:
        from_server(monkeypatch, "terra-incognita", served, TERRA)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fetch("terra-incognita", tmp_path)
        assert not (tmp_path / "terra_incognita").exists()
        served.asked.clear()
        told: list[str] = []
        fetch("terra-incognita", tmp_path, note=told.append)
    assert served.asked == []
    assert told[-1] == "images that are annotated, but not in the archive: 1"
    assert listing(tmp_path / "terra_incognita") == SORTED


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[]", "must be an object with the lists images, annotations, categories"),
        (b"{", "is not valid JSON"),
        (annotated(("a", 38, 9)), "not in the COCO Camera Traps format: no 9"),
        (annotated(("a", 51, 1)), "is it another data set"),
    ],
)
def test_annotations_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    with serving() as served:
        wrong = {**TERRA, "eccv_18_annotations.tar.gz": tarred({"a.json": content})}
        from_server(monkeypatch, "terra-incognita", served, wrong)
        with pytest.raises(ValueError, match=why):
            fetch("terra-incognita", tmp_path)
    assert not (tmp_path / "terra_incognita").exists()


# DomainNet: one archive for each domain, and the lists of files that are no duplicates

DOMAINNET = SOURCES["domainnet"]


def domainnet(listed: str = "{domain}/cat/{half}.jpg 0\n") -> dict[str, bytes]:
    return {
        **{
            f"{domain}.zip": zipped(
                {f"{domain}/cat/{name}.jpg": b"" for name in ("train", "test", "twin")}
            )
            for domain in DOMAINNET.domains
        },
        **{
            f"{domain}_{half}.txt": listed.format(domain=domain, half=half).encode()
            for domain in DOMAINNET.domains
            for half in ("train", "test")
        },
    }


def test_domainnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with serving() as served:
        from_server(monkeypatch, "domainnet", served, domainnet())
        fetch("domainnet", tmp_path, note=told.append)
    assert told[-1] == "duplicates ignored, which the authors' lists do not name: 6"
    dataset = find("domainnet")(tmp_path, 0)
    for domain in dataset.domains:
        assert [path.name for path in domain.images] == ["test.jpg", "train.jpg"]
    twins = (tmp_path / "domain_net" / "duplicates.txt").read_text().split()
    assert twins == [f"{domain}/cat/twin.jpg" for domain in DOMAINNET.domains]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["domain_net", "downloads.json"]


def test_a_class_with_the_name_of_a_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = domainnet()
    files = {f"clipart/{kind}/train.jpg": kind.encode() for kind in ("cat", "sketch", "clipart")}
    contents["clipart.zip"] = zipped(files)
    with serving() as served:
        from_server(monkeypatch, "domainnet", served, contents)
        fetch("domainnet", tmp_path)
    folder = tmp_path / "domain_net"
    assert sorted(path.name for path in (folder / "clipart").iterdir()) == [
        "cat",
        "clipart",
        "sketch",
    ]
    assert [path.name for path in (folder / "sketch").iterdir()] == ["cat"]


def test_archives_that_were_unpacked_are_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = domainnet()
    last = contents.pop("sketch.zip")
    with serving(always=status(404)) as served:
        from_server(monkeypatch, "domainnet", served, contents)
        with pytest.raises(Unavailable, match="404"):
            fetch("domainnet", tmp_path)
        assert not (tmp_path / "domain_net").exists()
        served.asked.clear()
        served.paths["/sketch.zip"] = last
        fetch("domainnet", tmp_path)
    assert [headers["path"] for headers in served.asked] == ["/sketch.zip"]
    assert find("domainnet")(tmp_path, 0).names == DOMAINNET.domains


def test_lists_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as served:
        from_server(monkeypatch, "domainnet", served, domainnet("other/{half}.jpg 0\n"))
        with pytest.raises(ValueError, match="the lists name none of the files"):
            fetch("domainnet", tmp_path)


def test_a_published_md5_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(zipped(images(PACS))) as served:
        file = File(name="PACS.zip", url=served.url, md5="0" * 32)
        monkeypatch.setitem(SOURCES, "pacs", replace(PACS, files=(file,), by_hand=""))
        with pytest.raises(
            DownloadError, match=r"MD5 sum .*, expected 0+; the download was deleted"
        ):
            fetch("pacs", tmp_path)
        told: list[str] = []
        md5 = hashlib.md5(served.content).hexdigest()
        monkeypatch.setitem(SOURCES, "pacs", replace(PACS, files=(replace(file, md5=md5),)))
        fetch("pacs", tmp_path, note=told.append)
    assert told == []  # there is a published checksum


def test_a_broken_connection_says_that_the_command_goes_on(tmp_path: Path) -> None:
    content = zipped(images(PACS))
    with serving(content, faults=[drop(500), *[status(503)] * ATTEMPTS]) as served:
        with pytest.raises(Unavailable, match=r"500 bytes are kept in .*the same command resumes"):
            fetch("pacs", tmp_path, served.url)
        served.faults = []
        fetch("pacs", tmp_path, served.url)
    assert served.asked[-1]["Range"] == "bytes=500-"


@pytest.mark.parametrize(("text", "why"), [("{", "is not valid JSON"), ("[]", "must hold an obj")])
def test_a_record_of_something_else_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / module.RECORD).write_text(text)
    with (
        serving(zipped(images(PACS))) as served,
        pytest.raises(ValueError, match=rf"downloads\.json {why}"),
    ):
        fetch("pacs", tmp_path, served.url)
