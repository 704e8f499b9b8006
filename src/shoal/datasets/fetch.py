"""Fetching a published data set: download, unpack, arrange and record it."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..choices import choose
from ..documents import AGAIN, read_object
from ..escapes import brief
from ..storage import move, write_json
from . import SOURCES
from .download import DownloadError, Note, Unavailable, download
from .folders import expected_layout
from .partial_file import file_sums
from .sources import DatasetSource, File, move_domains
from .unpack import unpack

# Called with what is being done, the amount done, and the whole amount.
FetchProgress = Callable[[str, int, int | None], object]

DOWNLOADS = "downloads"
RECORD = "downloads.json"


def fetch(
    name: str,
    root: Path,
    url: str | None = None,
    sha256: str | None = None,
    keep_archive: bool = False,
    progress: FetchProgress | None = None,
    note: Note | None = None,
) -> Path:
    """Fetch a data set to ``root`` unless it exists, and return its folder.

    Files are downloaded to ``root/downloads``. Files that are there already, downloaded by hand or
    before an interruption, are used. The folder appears when the data set is complete.

    Args:
        url: the address of an archive of the whole set, in place of the source's files.
        sha256: the sum of that archive, if known.
        note: called with every line for the user.
    """
    source = find_source(name)
    note = note or (lambda line: None)
    progress = progress or (lambda *done: None)
    target = root / source.folder
    if source.present(root):
        return target
    if target.is_dir() and any(target.iterdir()):
        lacking = [domain for domain in source.domains if not (target / domain).is_dir()]
        raise ValueError(
            f"{target} exists, but lacks {', '.join(lacking)}; complete it, or move it away"
        )
    if url is not None:
        source = replace(source, files=(_archive_at(url, sha256, name),), arrange=move_domains)
    work = root / DOWNLOADS / f"{name}.unpacked"
    try:
        fetched = {
            file.name: _download_and_unpack(file, root, work, keep_archive, progress, note)
            for file in source.files
        }
    except Unavailable as error:
        why = f": {source.by_hand}" if source.by_hand and url is None else ""
        unavailable = Unavailable(f"{error}{why}")
        for line in ("", *by_hand_instructions(source, root)):
            unavailable.add_note(line)
        raise unavailable from error
    arranged = root / DOWNLOADS / f"{name}.arranged"
    try:
        remarks = source.arrange(fetched, arranged, source.domains)
    except ValueError as error:
        raise ValueError(f"{error} (the unpacked files are in {work})") from error
    for remark in remarks:
        note(remark)
    move(arranged, target)
    _remove_downloads(() if keep_archive else fetched.values(), work)
    _record_dataset(name, root)
    return target


def find_source(name: str) -> DatasetSource:
    """Return the source of a data set that has to be downloaded."""
    source = SOURCES[choose("data set", name, SOURCES)]
    if source.embedded:
        raise ValueError(f"{name} comes with shoal: there is nothing to download")
    return source


def _archive_at(url: str, sha256: str | None, name: str) -> File:
    called = Path(urlsplit(url).path).name
    called = f"{name}.archive" if called in ("", "..") else called
    return File(name=called, url=url, sha256=sha256)


def by_hand_instructions(source: DatasetSource, root: Path) -> list[str]:
    """Return which files a person has to download, and where to put them."""
    places = {str(root / DOWNLOADS / file.name): file.url or file.page for file in source.files}
    width = max(map(len, places))
    return [
        f"You can download {source.name} by hand. Its page is",
        f"  {source.page}",
        "Save these files (left: path; right: address, if known)",
        *(f"  {place:{width}}  {page}".rstrip() for place, page in places.items()),
        "and run the same command again, which checks and unpacks them. Or",
        f"- put the images at {expected_layout(root / source.folder)},",
        f"  with the domains {', '.join(source.domains)};",
        "- give the address of an archive of them: --url URL",
    ]


def read_record(root: Path) -> dict[str, Any]:
    """Return the record of earlier downloads: sums of files, and fingerprints of data sets."""
    path = root / RECORD
    found = {"files": {}, "sets": {}} | (read_object(path) if path.exists() else {})
    for key in ("files", "sets"):
        entries = found[key]
        if not isinstance(entries, dict) or not all(isinstance(v, dict) for v in entries.values()):
            raise ValueError(f"{path} must hold objects in {key}, got {brief(entries)}; {AGAIN}")
    return found


def _download_and_unpack(
    file: File, root: Path, work: Path, keep: bool, progress: FetchProgress, note: Note
) -> Path:
    """Return the downloaded file, or the folder that it was unpacked to."""
    folder, path = work / file.name, root / DOWNLOADS / file.name
    if folder.is_dir():
        same = read_record(root)["files"].get(file.name, {}).get("url") == file.url
        if same and not path.exists():
            return folder
        shutil.rmtree(folder)
    _download(file, path, root, progress, note)
    if not file.is_archive:
        return path
    unpack(path, folder, progress=lambda *done: progress(f"unpack {file.name}", *done))
    if not keep:
        path.unlink()
    return folder


def _download(file: File, path: Path, root: Path, progress: FetchProgress, note: Note) -> None:
    before = read_record(root)["files"].get(file.name, {})
    known = file.sha256 or file.md5
    expected = file.sha256
    if not known and before.get("url") == file.url:
        expected = before.get("sha256")
    if file.url is None:
        found = _check_by_hand(file, path, expected, root)
    else:
        try:
            found = download(
                file.url,
                path,
                expected,
                file.md5,
                progress=lambda *done: progress(file.name, *done),
                note=note,
            )
        except DownloadError as error:
            if known or not expected or expected not in str(error):
                raise
            raise DownloadError(
                f"{error}. That sum was recorded at the first download: if the publisher has "
                f"changed the file, remove it from {root / RECORD}"
            ) from error
    if not known and expected is None:
        note(f"{file.name}: no published checksum; recorded SHA-256 {found}")
    record = read_record(root)
    record["files"][file.name] = {"url": file.url, "sha256": found, "bytes": path.stat().st_size}
    write_json(root / RECORD, record)


def _check_by_hand(file: File, path: Path, expected: str | None, root: Path) -> str:
    if not path.is_file():
        raise Unavailable(f"{file.name} has to be downloaded by hand")
    sums = file_sums(path)
    if mismatch := sums.mismatch(expected, file.md5):
        raise DownloadError(
            f"{path} has the {mismatch}: download it again, or remove that sum from {root / RECORD}"
        )
    return sums.sha256


def _remove_downloads(files: Iterable[Path], work: Path) -> None:
    for path in files:
        if path.is_file():
            path.unlink()
    shutil.rmtree(work)
    if not any(work.parent.iterdir()):
        work.parent.rmdir()


def _record_dataset(name: str, root: Path) -> None:
    dataset, _ = SOURCES[name].survey(root)
    if dataset is not None:
        record = read_record(root)
        record["sets"][name] = {"fingerprint": dataset.fingerprint}
        write_json(root / RECORD, record)
