"""A data set from its source: downloaded, unpacked, arranged and recorded."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..choices import choose
from ..storage import read_json, write_json
from . import SOURCES
from .download import DownloadError, Tell, Unavailable, download
from .folders import expected_at
from .partial_file import sums_of
from .sources import DatasetSource, File, move_domains
from .unpack import unpack

# Called with what is being done, how much of it is done, and of how much.
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
    tell: Tell | None = None,
) -> Path:
    """Return the folder of the data set under ``root``, fetched unless it is there.

    Files go to ``root/downloads``; what is found there, fetched by hand or left by an interrupted
    call, is used. The folder itself appears when all of it is there.

    Args:
        url: an archive of the whole set in place of the source's files, with its sum if known.
        tell: called with every line that a user may want to read.
    """
    source = find_source(name)
    tell = tell or (lambda line: None)
    progress = progress or (lambda *done: None)
    target = root / source.folder
    if source.present(root):
        return target
    if target.is_dir() and any(target.iterdir()):
        lacking = [domain for domain in source.domains if not (target / domain).is_dir()]
        raise ValueError(
            f"{target} is there, but lacks {', '.join(lacking)}; complete it, or move it away"
        )
    if url is not None:
        source = replace(source, files=(_archive_at(url, sha256, name),), arrange=move_domains)
    work = root / DOWNLOADS / f"{name}.unpacked"
    try:
        fetched = {
            file.name: _ready(file, root, work, keep_archive, progress, tell)
            for file in source.files
        }
    except Unavailable as error:
        why = f": {source.by_hand}" if source.by_hand and url is None else ""
        raise Unavailable(f"{error}{why}\n\n{by_hand(source, root)}") from error
    arranged = root / DOWNLOADS / f"{name}.arranged"
    try:
        remarks = source.arrange(fetched, arranged, source.domains)
    except ValueError as error:
        raise ValueError(f"{error} (what was unpacked is in {work})") from error
    for remark in remarks:
        tell(remark)
    os.replace(arranged, target)
    _clean(() if keep_archive else fetched.values(), work)
    _record_set(name, root)
    return target


def _archive_at(url: str, sha256: str | None, name: str) -> File:
    called = Path(urlsplit(url).path).name
    called = f"{name}.archive" if called in ("", "..") else called
    return File(name=called, url=url, sha256=sha256)


def find_source(name: str) -> DatasetSource:
    """Return the source of a data set that has to be downloaded."""
    source = SOURCES[choose("data set", name, SOURCES)]
    if source.embedded:
        raise ValueError(f"{name} comes with shoal: there is nothing to download")
    return source


def by_hand(source: DatasetSource, root: Path) -> str:
    """Return what a person has to fetch, and where it goes."""
    places = {str(root / DOWNLOADS / file.name): file.url or file.page for file in source.files}
    width = max(map(len, places))
    return "\n".join(
        [
            f"{source.name} can be fetched by hand; its page is",
            f"  {source.page}",
            "Save what you find there (left: as which file; right: from where)",
            *(f"  {place:{width}}  {page}".rstrip() for place, page in places.items()),
            "and run the same command again: it checks and unpacks. Or",
            f"- put the images at {expected_at(root / source.folder)},",
            f"  with the domains {', '.join(source.domains)};",
            "- give the address of an archive of them: --url URL",
        ]
    )


def recorded(root: Path) -> dict[str, Any]:
    """Return what earlier downloads to this folder recorded: sums of files, marks of sets."""
    path = root / RECORD
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold an object, got {found!r}; move it away")
    return {"files": {}, "sets": {}} | found


def _ready(
    file: File, root: Path, work: Path, keep: bool, progress: FetchProgress, tell: Tell
) -> Path:
    """Return the file, or the folder that it was unpacked to, after whatever that takes."""
    folder, path = work / file.name, root / DOWNLOADS / file.name
    if folder.is_dir():
        same = recorded(root)["files"].get(file.name, {}).get("url") == file.url
        if same and not path.exists():
            return folder
        shutil.rmtree(folder)
    _get(file, path, root, progress, tell)
    if not file.is_archive:
        return path
    unpack(path, folder, progress=lambda *done: progress(f"unpack {file.name}", *done))
    if not keep:
        path.unlink()
    return folder


def _get(file: File, path: Path, root: Path, progress: FetchProgress, tell: Tell) -> None:
    before = recorded(root)["files"].get(file.name, {})
    known = file.sha256 or file.md5
    expected = file.sha256
    if not known and before.get("url") == file.url:
        expected = before.get("sha256")
    if file.url is None:
        found = _by_hand_sum(file, path, expected, root)
    else:
        try:
            found = download(
                file.url,
                path,
                expected,
                file.md5,
                progress=lambda *done: progress(file.name, *done),
                tell=tell,
            )
        except DownloadError as error:
            if known or not expected or expected not in str(error):
                raise
            raise DownloadError(
                f"{error}. That sum was recorded when it was first downloaded: if the publisher "
                f"has changed the file, take it out of {root / RECORD}"
            ) from error
    if not known and expected is None:
        tell(f"{file.name}: no published checksum; recorded SHA-256 {found}")
    record = recorded(root)
    record["files"][file.name] = {"url": file.url, "sha256": found, "bytes": path.stat().st_size}
    write_json(root / RECORD, record)


def _by_hand_sum(file: File, path: Path, expected: str | None, root: Path) -> str:
    if not path.is_file():
        raise Unavailable(f"{file.name} has to be fetched by hand")
    sums = sums_of(path)
    if wrong := sums.wrong(expected, file.md5):
        raise DownloadError(
            f"{path} has the {wrong}: fetch it again, or take that sum out of {root / RECORD}"
        )
    return sums.sha256


def _clean(files: Iterable[Path], work: Path) -> None:
    for path in files:
        if path.is_file():
            path.unlink()
    shutil.rmtree(work)
    if not any(work.parent.iterdir()):
        work.parent.rmdir()


def _record_set(name: str, root: Path) -> None:
    dataset, _ = SOURCES[name].survey(root)
    if dataset is not None:
        record = recorded(root)
        record["sets"][name] = {"fingerprint": dataset.fingerprint}
        write_json(root / RECORD, record)
