"""The rim: hostile files, names and file systems meet an error with a name, and leave nothing."""

import fcntl
import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import tarfile
import time
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shoal
from shoal import files, storage
from shoal.cli import main
from shoal.cli.listing import LISTS
from shoal.cli.loading import load_for_model
from shoal.cli.samples import samples_of
from shoal.datasets import tables
from shoal.datasets.cache import build
from shoal.datasets.decoded import file_names
from shoal.datasets.download import download
from shoal.datasets.folders import image_folders
from shoal.datasets.images import decode, find_copies, image_size, is_turned, verify
from shoal.datasets.samples import cached_samples
from shoal.datasets.tables import read_table, table_data
from shoal.datasets.unpack import unpack
from shoal.fitting.fit import _Results
from shoal.fitting.inputs import columns_of, files_in, inputs_of
from shoal.fitting.setup import saved_setup
from shoal.report.figures import canvas, name_in_figure, render
from shoal.report.views import Document, Section, print_latex
from shoal.results.records import Record, failures, read_runs
from shoal.runs import model
from shoal.runs.folder import RunFolder, open_run_folder
from shoal.storage import hold_lock, write_json, write_text
from shoal.sweeps.attempt import BEGUN, DEATHS, attempt, try_again
from shoal.sweeps.plan import folder_of, read_plan
from shoal.sweeps.status import RunState, state_of
from shoal.sweeps.worker import Worker
from shoal.tensor_files import read_safetensors
from shoal.training.checkpoints import Checkpoints
from shoal.training.watcher import Watcher
from tests.datasets.pictures import picture
from tests.datasets.server import Handler, Served, serving
from tests.report.made_up import make_run, write_failure, write_run
from tests.runs.small import CPU, carry_out, tiny_run
from tests.sweeps.workspaces import COMPARED, Squares, planned

pytestmark = pytest.mark.timeout(60)
# Clears the screen, turns the text around, and begins a line that looks like another message.
HOSTILE = "a\x1b[2J\x9b31m\u202eb\nshoal: all is well"


@pytest.fixture(params=["fifo", "device", "endless", "sparse", "loop"])
def trap(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path that would block a reader, never end, or take all memory."""
    path = tmp_path / "trap.png"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/full")
    elif request.param == "endless":
        path.symlink_to("/dev/zero")
    elif request.param == "loop":
        path.symlink_to(path)
    else:
        with path.open("wb") as file:
            file.truncate(10 * 2**30)
    return path


def fits_into(extra: int) -> Callable[[], None]:
    """Return a function that bounds the memory of this process; its return value undoes that."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + extra, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_AS, before)


# Files that are opened


def test_no_image_makes_a_reader_wait_or_takes_its_memory(trap: Path) -> None:
    free = fits_into(2**30)
    try:
        with pytest.raises((ValueError, OSError)) as caught:
            decode(trap)
        assert not is_turned(trap) and image_size(trap) is None
    finally:
        free()
    assert str(trap) in str(caught.value)


@pytest.mark.parametrize(
    "step",
    [
        "PIL.PngImagePlugin.PngImageFile.load",
        "shoal.datasets.reading.Reading.render",
        "shoal.datasets.images.planes",
    ],
)
def test_an_image_for_which_there_is_no_memory_is_not_called_damaged(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise MemoryError

    path = picture(tmp_path / "large.png")
    monkeypatch.setattr(step, refuse)
    with pytest.raises(ValueError, match=r"large\.png: there is too little memory to decode"):
        decode(path)


def test_one_trap_does_not_stop_a_data_set(trap: Path) -> None:
    root = trap.parent / "set"
    for domain in ("one", "two"):
        for kind in ("cat", "dog"):
            picture(root / domain / kind / "a.png")
    here = root / "one" / "cat" / "trap.png"
    if os.path.islink(trap):
        target = os.readlink(trap)
        here.symlink_to(here if target == str(trap) else target)
    else:
        trap.rename(here)
    dataset = image_folders("mine", root)
    found = verify(dataset)
    assert [line.path for line in found.broken] == [here]
    assert found.broken[0].why
    assert find_copies(dataset)  # the four pictures are the same
    assert here in files_in(root, rows=False)[0]


@pytest.mark.parametrize("name", ["run.json", "records.jsonl", "failed.json", "timing.json"])
def test_a_fifo_among_the_files_of_a_run(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path, make_run("pacs", "erm", ("photo",), 0, 0)).path or tmp_path
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    if name in ("run.json", "records.jsonl"):
        with pytest.raises(ValueError, match=rf"{name}.* named pipe"):
            read_runs([tmp_path])
    else:
        assert len(read_runs([tmp_path])) == 1
        failures([tmp_path])


@pytest.mark.parametrize("way", ["predict", "report", "eval"])
def test_a_command_does_not_wait_for_a_fifo(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "model.json")
    (tmp_path / "model.safetensors").touch()
    os.mkfifo(tmp_path / "run.json")
    (tmp_path / "done").touch()
    folder = str(tmp_path)
    commands = {
        "predict": ["predict", folder, "a.png"],
        "report": ["report", folder],
        "eval": ["eval", folder, "--dataset", "colored-mnist"],
    }
    assert main(commands[way]) == 2
    assert "named pipe" in capsys.readouterr().err


def test_a_link_to_itself_among_images(tmp_path: Path) -> None:
    picture(tmp_path / "one" / "cat" / "a.png")
    (loop := tmp_path / "one" / "cat" / "b.png").symlink_to(loop)
    (tmp_path / "one" / "stray").symlink_to(tmp_path / "one" / "stray")
    (broken,) = verify(image_folders("mine", tmp_path)).broken
    assert broken.path == loop and "it links to" in broken.why


def test_a_file_whose_content_has_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some files of the kernel are regular ones by their state, and would make a reader wait."""
    path = tmp_path / "a.png"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    monkeypatch.setattr(files, "_check", lambda *_: None)  # so that it passes as one of them
    try:
        for _ in range(2):
            with pytest.raises(ValueError, match=r"a\.png: its content has still to come"):
                files.read_bytes(path, 100)
            with (
                files.open_file(path, 100) as file,
                pytest.raises(ValueError, match="still to come"),
            ):
                hashlib.file_digest(file, "sha256")
            os.write(writer, b"begin")
    finally:
        os.close(writer)


def test_folders_that_are_nested_without_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(tmp_path / "a.png")
    run = write_run(tmp_path / "runs", make_run("pacs", "erm", ("photo",), 0, 0))
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):  # longer than any path
        os.mkdir("nested", dir_fd=here)
        above, here = here, os.open("nested", os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)
    try:
        begin = time.monotonic()
        found, _ = files_in(tmp_path, rows=False)
        assert tmp_path / "a.png" in found and any("nested/nested" in str(one) for one in found)
        with pytest.warns(UserWarning, match="nested.* is more than 100 folders deep"):
            assert [one.path for one in read_runs([tmp_path])] == [run.path]
        assert main(["report", str(tmp_path)]) == 0
        assert "cannot be opened (it is more than 100" in capsys.readouterr().err.replace("\n", "")
        assert time.monotonic() - begin < 10
    finally:
        subprocess.run(["rm", "-r", tmp_path / "nested"], check=True)


def test_postscript_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would give it to Ghostscript, a whole programming language."""
    from PIL import EpsImagePlugin

    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("Ghostscript ran")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", run)
    monkeypatch.setattr(EpsImagePlugin, "has_ghostscript", lambda: True)
    image = Image.new("RGB", (4, 4))
    image.save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(ValueError, match="not an image file"):
        decode(tmp_path / "a.png")
    for suffix in ("bmp", "gif", "jpg", "png", "ppm", "pgm", "tif", "webp"):
        image.convert("L" if suffix == "pgm" else "RGB").save(tmp_path / f"b.{suffix}")
        assert decode(tmp_path / f"b.{suffix}").shape == (3, 4, 4)


# Archives


def archive_of(*names: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return content.getvalue()


def zip_of(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return content.getvalue()


def header(change: Callable[[bytearray], None], body: bytes = b"x") -> bytes:
    """Return a tar file of one member whose header was changed, with a right sum again."""
    info = tarfile.TarInfo("a")
    info.size = len(body)
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    change(block)
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block) + body.ljust(512, b"\0") + bytes(1024)


def set_field(start: int, value: bytes) -> Callable[[bytearray], None]:
    def change(block: bytearray) -> None:
        block[start : start + len(value)] = value

    return change


def pax(**headers: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a")
        info.pax_headers = headers
        archive.addfile(info)
    return content.getvalue()


LONG = tarfile.TarInfo("././@LongLink")
LONG.type, LONG.size = tarfile.GNUTYPE_LONGNAME, 2
EVIL = b"good.png\0evil\0"
LONG_NUL = tarfile.TarInfo("././@LongLink")
LONG_NUL.type, LONG_NUL.size = tarfile.GNUTYPE_LONGNAME, len(EVIL)
ARCHIVES = {
    "nested": archive_of("a/" * 600 + "b"),
    "nested zip": zip_of("a/" * 600 + "b"),
    "long": archive_of("a/" * 40 + "b" * 200 + "/" + "/".join("c" * 200 for _ in range(5))),
    "long names": 5000 * (LONG.tobuf() + b"b\0".ljust(512, b"\0")) + archive_of("a"),
    "underscore": header(set_field(124, b"000000_0001 ")),
    "plus": header(set_field(124, b"+0000000001 ")),
    "nul in size": header(set_field(124, b"1\x000000000001")),
    "negative": header(set_field(124, b"\xff" * 11 + b"\xfe")),
    "minus": header(set_field(124, b"-0000000001 ")),
    "nul in a long name": LONG_NUL.tobuf()
    + b"good.png\0evil\0".ljust(512, b"\0")
    + archive_of("a"),
    "nul in name": header(set_field(0, b"good.png\0evil")),
    "sparse": header(set_field(156, tarfile.GNUTYPE_SPARSE)),
    "sparse pax": pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "size of pax": pax(size="1_0"),
    "nul in zip": zip_of("abc").replace(b"abc", b"a\0c"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_odd_archive_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "archive"
    path.write_bytes(ARCHIVES[name])
    with pytest.raises(ValueError, match=r"archive (holds|is damaged|has|unpacks)"):
        unpack(path, tmp_path / "target")
    assert list(tmp_path.iterdir()) == [path]


def test_long_names_of_gnu_are_unpacked(tmp_path: Path) -> None:
    content, names = io.BytesIO(), ("a" * 130 + "/", "a" * 130 + "/ä" + "b" * 150)
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(info)
    (tmp_path / "archive").write_bytes(content.getvalue())
    unpack(tmp_path / "archive", tmp_path / "target")
    assert all((tmp_path / "target" / name).exists() for name in names)


def test_bytes_after_the_last_member_are_bounded(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "archive"
    path.write_bytes(gzip.compress(archive_of("a") + bytes(2**22)))
    with pytest.raises(ValueError, match="follow its last member"):
        unpack(path, tmp_path / "target", limit=2**20)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("way", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_file_that_grows_in_one_step_is_refused(tmp_path: Path, way: int) -> None:
    path = tmp_path / "archive"
    with zipfile.ZipFile(path, "w", way) as archive, archive.open("a", "w") as member:
        for _ in range(256):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**18
    free = fits_into(2**27)
    try:
        with pytest.raises(ValueError, match="neither stored nor deflated"):
            unpack(path, tmp_path / "target", limit=2**20)
    finally:
        free()
    assert list(tmp_path.iterdir()) == [path]


# A folder that is lost


class Taking(Watcher):
    """Deletes the folder of a run, or moves it away, after its first record."""

    def __init__(self, path: Path, how: str) -> None:
        self.path, self.how, self.done = path, how, False

    def records(self, records: Any) -> None:
        if not self.done:
            self.done = True
            if self.how == "delete":
                shutil.rmtree(self.path)
            else:
                self.path.rename(self.path.parent.parent / "moved")


@pytest.mark.parametrize("how", ["delete", "move"])
def test_a_run_whose_folder_goes_is_a_failure_that_the_same_command_mends(
    tmp_path: Path, how: str
) -> None:
    planned(tmp_path)
    run = read_plan(tmp_path)[0]
    path = folder_of(tmp_path, run)
    worker = Worker(tmp_path, Squares())
    assert worker.attempt(run, watcher=Taking(path, how)) is RunState.FAILED
    # The status, the folder and a report agree.
    assert state_of(path) is RunState.FAILED
    assert RunFolder(path).run() == run
    (failure,) = failures([tmp_path / "runs"])
    assert "was deleted or moved while" in failure.reason
    assert sorted(one.name for one in path.iterdir()) == ["failed.json", "lock", "run.json"]
    # And the same command trains it as if nothing had happened.
    try_again(path, run)
    assert worker.attempt(run) is RunState.DONE
    whole = tmp_path / "whole"
    planned(whole)
    Worker(whole, Squares()).attempt(run)
    for name in COMPARED:
        assert (path / name).read_bytes() == (folder_of(whole, run) / name).read_bytes()


def test_a_single_run_whose_folder_goes_ends_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(OSError, match=r"run was deleted or moved while .* run the same command"):
        carry_out(path, tiny_run(), watcher=Taking(path, "delete"), every=0.0)
    assert not path.exists()


def test_a_run_that_is_done_without_its_description_is_not_done(tmp_path: Path) -> None:
    """An earlier version left this behind when its folder was deleted."""
    planned(tmp_path)
    run = read_plan(tmp_path)[0]
    path = folder_of(tmp_path, run)
    worker = Worker(tmp_path, Squares())
    worker.attempt(run)
    (path / "run.json").unlink()
    assert state_of(path) is RunState.WAITING
    assert worker.attempt(run) is RunState.FAILED
    reason = json.loads((path / "failed.json").read_text())["reason"]
    assert "or delete it" in reason
    shutil.rmtree(path)  # as it says
    assert worker.attempt(run) is RunState.DONE


def test_a_run_of_a_fit_that_is_done_and_cannot_be_read_is_named(tmp_path: Path) -> None:
    """As a folder in place of a file, or a folder that may be entered and not listed."""
    planned(tmp_path)
    run = read_plan(tmp_path)[0]
    path = folder_of(tmp_path, run)
    Worker(tmp_path, Squares()).attempt(run)
    (path / "run.json").unlink()
    (path / "run.json").mkdir()
    assert state_of(path) is RunState.DONE
    results = _Results(tmp_path, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"{path.name} is done, but cannot be read; delete"):
        results.known([("erm", run)])


# Locks


def test_a_second_holder_of_a_lock_is_noticed(tmp_path: Path) -> None:
    """As on a mount without locks, where another machine takes the same one."""
    lock = tmp_path / "run" / "lock"
    with hold_lock(lock):
        write_text(tmp_path / "run" / "a", "1")
        lock.write_bytes(b"process 7 of elsewhere (1234)\n")
        with pytest.raises(OSError, match=r"by two processes at once.*process 7 of elsewhere"):
            write_text(tmp_path / "run" / "b", "2")
    assert lock.read_bytes() == b"process 7 of elsewhere (1234)\n"  # it is the other's
    assert not (tmp_path / "run" / "b").exists()


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_TRIED", set())


@pytest.mark.usefixtures("untried")
def test_the_canary_notices_locks_that_do_not_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run()
    with open_run_folder(tmp_path / "good", run):
        pass  # this disk locks
    storage._TRIED.clear()
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # of this process, which then holds none
    with (
        pytest.raises(OSError, match=r"locks in .*bad do not lock: .* another file system"),
        open_run_folder(tmp_path / "bad", run),
    ):
        raise AssertionError("opened")


@pytest.mark.usefixtures("untried")
def test_the_canary_asks_each_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: [started.append(a), real(*a, **k)][1])
    for name in "ab":
        with open_run_folder(tmp_path / name, tiny_run()):
            pass
    assert len(started) == 1


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize("option", ["nolock", "local_lock=all", "local_lock=flock"])
def test_a_mount_with_locks_of_its_own_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mounts"
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(
        "1 2 0:7 / /x rw - ext4 /dev/sda rw\n"
        f"36 35 {number} / {tmp_path} rw,noatime master:1 - nfs4 server:/x rw,{option},vers=4\n"
    )
    monkeypatch.setattr(storage, "MOUNTS", mounts)
    with (
        pytest.warns(UserWarning, match=f"hold on this machine alone .*{option}"),
        open_run_folder(tmp_path / "run", tiny_run()),
    ):
        pass


def test_one_lock_that_cannot_be_read_does_not_stop_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(tmp_path)
    runs = read_plan(tmp_path)
    path = folder_of(tmp_path, runs[0])
    path.mkdir(parents=True)
    os.mkfifo(path / "lock")  # root may read everything, so permissions would not do
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "named pipe" in out and str(path.name) in out
    assert main(["status", str(tmp_path), "--json"]) == 0
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert failure["folder"] == str(path)


def test_a_report_names_the_folders_that_it_may_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = write_run(tmp_path, make_run("pacs", "erm", ("photo",), 0, 0)).path
    write_run(tmp_path, make_run("pacs", "erm", ("sketch",), 0, 0))
    listed = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert main(["report", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert f"shoal: left out {closed}, which cannot be opened (Permission denied)" in told.err
    assert main(["report", str(tmp_path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["rules"][0]["results"][0]["domains"]) == ["sketch"]


def test_a_folder_that_others_closed_is_named_for_a_user_without_rights(tmp_path: Path) -> None:
    if os.getuid() != 0:
        closed = write_run(tmp_path, make_run("pacs", "erm", ("photo",), 0, 0)).path or tmp_path
        closed.chmod(0)
        with pytest.warns(UserWarning, match="cannot be opened"):
            assert read_runs([tmp_path]) == []
        closed.chmod(0o700)
        return
    # Root opens everything, so somebody else looks.
    root = Path("/tmp") / f"rim-{os.getpid()}"
    try:
        closed = write_run(root, make_run("pacs", "erm", ("photo",), 0, 0)).path or root
        root.chmod(0o755)
        closed.chmod(0)
        child = os.fork()
        if not child:  # pragma: no cover
            os.setuid(65534)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                found = read_runs([root])
            os._exit(0 if not found and "cannot be opened" in str(told[0].message) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        shutil.rmtree(root)


# Names that reach a terminal, LaTeX and CSV


def is_harmless(text: str) -> bool:
    from shoal.escapes import is_safe

    return all(is_safe(one) or one in "\n" for one in text)


def test_names_of_a_run_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    run = replace(make_run("pacs", "erm", ("photo",), 0, 0), dataset=HOSTILE)
    write_run(tmp_path / "x", replace(run, dataset="mine"))
    named = next(tmp_path.rglob("run.json"))
    about = json.loads(named.read_text()) | {"dataset": HOSTILE}
    named.write_text(json.dumps(about))
    write_failure(tmp_path, make_run("pacs", "irm", ("photo",), 0, 0), HOSTILE)
    for form in ("terminal", "markdown", "latex", "json"):
        assert main(["report", str(tmp_path), "--format", form]) == 0
        told = capsys.readouterr()
        assert is_harmless(told.out) and is_harmless(told.err), form
        assert not [line for line in told.out.splitlines() if line.startswith("shoal:")], form
        assert "all is well" in told.out


def test_names_of_files_and_errors_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(tmp_path / HOSTILE), "a.png"]) == 2
    told = capsys.readouterr().err
    assert is_harmless(told) and told.count("\n") == 1
    assert r"a\x1b[2J\x9b31m\u202eb\nshoal: all is well" in told


def test_names_of_a_plan_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    run = tiny_run()
    write_json(tmp_path / "plan.json", [replace(run, dataset=HOSTILE).canonical()])
    assert main(["status", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert is_harmless(told) and r"a\x1b[2J" in told
    assert not [line for line in told.splitlines() if line.startswith("shoal:")]


def test_the_words_of_a_server_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(handler: Handler, served: Served) -> None:
        handler.wfile.write(b"HTTP/1.0 404 \x1b[2J\x9b31m\r\n\r\n")

    with serving(always=answer) as served:
        url = served.url.replace("file.zip", "pacs.zip")
        assert main(["data", "download", "pacs", "--data", str(tmp_path), "--url", url]) == 2
    told = capsys.readouterr().err
    assert is_harmless(told) and "answered 404" in told


def test_words_of_progress_bars(capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.report.screen import open_console, progress_bars, words_column

    bars = progress_bars(open_console(stderr=True), words_column(), words_column("words"))
    task = bars.add_task(HOSTILE, words=HOSTILE)
    bars.update(task, words=HOSTILE + "!")
    (shown,) = bars.tasks
    assert is_harmless(shown.description + shown.fields["words"])
    assert "\n" not in shown.description + shown.fields["words"]


def test_markup_in_a_name_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.report.screen import open_console, rich_table

    table = rich_table("[bold]title")
    table.add_column("[red]head")
    table.add_row("[link=x]cell")
    open_console(width=80).print(table)
    open_console(width=80).print("[blink]line")
    told = capsys.readouterr().out
    for words in ("[bold]title", "[red]head", "[link=x]cell", "[blink]line"):
        assert words in told


@pytest.mark.parametrize("fingerprint", ["", "f" * 64])
@pytest.mark.parametrize("name", ["{}", "../private", "", "..", "./private", "private/"])
def test_a_data_set_that_is_named_like_a_path_brings_no_images(
    tmp_path: Path, name: str, fingerprint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The images of a page come from the data sets of this machine, by a name from others."""
    for place in ("private", "data/private"):
        for domain in ("one", "two"):
            picture(tmp_path / place / domain / "cat" / "a.png")
    run = make_run("pacs", "erm", ("photo",), 0, 0)
    run = replace(run, dataset=name.format(tmp_path / "private"), fingerprint=fingerprint)
    where = Namespace(data=tmp_path / "data", cache=tmp_path / "cache")
    assert samples_of([run], where) == {}
    assert "its name is a path" in capsys.readouterr().err
    own = replace(run, dataset="private", fingerprint="")
    assert list(samples_of([own], where)["private"]) == ["one", "two"]


def test_a_newline_does_not_end_a_comment_of_latex() -> None:
    file = io.StringIO()
    lines = ["a note on mine\n\\input{/etc/passwd}", "another\r\\x", "and \u2028\\y"]
    print_latex(Document([Section(heading="h", notes=lines)], dict), file)
    assert all(line.startswith("% ") for line in file.getvalue().splitlines())
    assert file.getvalue().count("\n") == 3


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("+a", "'+a"),
        ("-a", "'-a"),
        ("\t=1", "'\t=1"),
        ("＝1", "'＝1"),
        ("-1", "-1"),
        ("+1.5e-3", "+1.5e-3"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_formulas_in_csv(name: str, cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    import csv

    from shoal.report.screen import csv_printer

    csv_printer()([name, None])
    assert next(csv.reader(io.StringIO(capsys.readouterr().out, newline=""))) == [cell, ""]


# Damaged files


DEEP = "[" * 100_000
CONTENTS = {
    "deep": DEEP.encode(),
    "deep object": b'{"a":' * 100_000,
    "not UTF-8": b'{"a": "\xff"}',
    "large": b"1" + b"0" * 400,
    "larger": b"1" + b"0" * 5000,
    "null": b"null",
    "text": b'"x"',
    "list": b"[[]]",
    "empty": b"",
    "nothing": b"\0" * 10,
}


def saved_model(folder: Path) -> Path:
    run = tiny_run("erm")
    algorithm = model.build(run, model.registered("erm"), (1, 8, 8), 2, 2, None, CPU)
    record = Record(step=2, accuracy={"a": {"held_out": 0.5}})
    model.save(folder, algorithm, run, (1, 8, 8), ("left", "right"), ("a", "b"), record)
    return folder


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", ["model.json", "run.json", "plan.json", "records.jsonl"])
def test_a_damaged_file_is_named_with_advice(tmp_path: Path, name: str, content: bytes) -> None:
    run = write_run(tmp_path / "runs", make_run("pacs", "erm", ("photo",), 0, 0))
    folder = {"model.json": saved_model(tmp_path / "model"), "plan.json": tmp_path}.get(
        name, run.path or tmp_path
    )
    (folder / name).write_bytes(content)
    read: dict[str, Callable[[], object]] = {
        "model.json": lambda: model.load(folder, CPU),
        "plan.json": lambda: read_plan(folder),
        "run.json": lambda: read_runs([tmp_path]),
        "records.jsonl": lambda: read_runs([tmp_path]),
    }
    with pytest.raises(ValueError, match=r"; (copy|delete|move|write)|: copy") as caught:
        read[name]()
    assert str(folder / name) in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("key", ["dataset", "trial", "test_domains", "hparams", "protocol"])
@pytest.mark.parametrize("value", [None, [[]], {"a": 1}, "x", 1e400, True], ids=repr)
def test_a_wrong_type_in_a_run_is_named(tmp_path: Path, key: str, value: Any) -> None:
    run = tiny_run()
    canonical = run.canonical()
    if type(value) is type(canonical[key]):
        return
    path = tmp_path / "run.json"
    write_json(path, canonical | {key: value})
    with pytest.raises(ValueError, match=r"run\.json cannot be read: .*delete the folder"):
        RunFolder(tmp_path).run()
    write_json(tmp_path / "plan.json", [canonical | {key: value}])
    with pytest.raises(ValueError, match=r"plan\.json is damaged .*move it away"):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["left", "left"]},
        {"classes": []},
        {"classes": [1, 2]},
        {"classes": "ab"},
        {"training_domains": ["a", "a"]},
        {"training_domains": {"a": 1}},
        {"shape": [0]},
        {"shape": [10**30, 8, 8]},
        {"shape": "x"},
        {"shape": [1, 8]},
        {"run": []},
        {"run": {"schema": 1}},
        {"temperature": "warm"},
        {"inputs": {"columns": [{"name": "a"}]}},
        {"inputs": {"columns": [{"name": "a", "kind": "number", "gaps": False}]}},
        {"inputs": 7},
        {"inputs": {"window": {"low": "x", "high": 3}}},
    ],
    ids=str,
)
def test_a_damaged_card_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    from shoal.fitting.predictor import load

    card = tmp_path / "model.json"
    saved_model(tmp_path)
    write_json(card, json.loads(card.read_text()) | change)
    with pytest.raises(ValueError, match=r"model\.(json|safetensors)"):
        load(tmp_path, "cpu")


@pytest.mark.parametrize("key", ["classes", "training_domains"])
def test_names_by_the_million_are_compared_before_anything_is_made(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_model(tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    card["algorithm"] = card["run"]["algorithm"] = "dann"  # which has a discriminator of domains
    card["run"]["hparams"] = vars(model.registered("dann").Hparams())
    card[key] = [str(number) for number in range(300_000)]
    (tmp_path / "model.json").write_text(json.dumps(card))
    monkeypatch.setattr(torch.nn.Module, "to_empty", None)  # makes every drawn network
    with pytest.raises(ValueError, match=r"does not fit DANN: tensors differ"):
        model.load(tmp_path, CPU)


def test_the_advice_for_a_damaged_run_works(tmp_path: Path) -> None:
    planned(tmp_path)
    run = read_plan(tmp_path)[0]
    path, worker = folder_of(tmp_path, run), Worker(tmp_path, Squares())
    assert worker.attempt(run) is RunState.DONE
    (path / "done").unlink()
    (path / "run.json").write_text("{")
    assert worker.attempt(run) is RunState.FAILED
    reason = json.loads((path / "failed.json").read_text())["reason"]
    assert f"delete the folder {path} and run" in reason
    shutil.rmtree(path)
    assert worker.attempt(run) is RunState.DONE


def test_five_early_deaths_are_not_for_good(tmp_path: Path) -> None:
    from shoal.sweeps.attempt import tidy_interrupted

    planned(tmp_path)
    run = read_plan(tmp_path)[0]
    path, worker = folder_of(tmp_path, run), Worker(tmp_path, Squares())
    with open_run_folder(path, run):
        write_json(path / BEGUN, {"times": DEATHS, "at": ""})
    assert worker.attempt(run) is RunState.FAILED
    assert worker.attempt(run) is RunState.FAILED  # within one command
    tidy_interrupted(tmp_path)  # as every fit begins
    assert worker.attempt(run) is RunState.DONE


def test_the_same_fit_tries_again_what_was_killed_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.fitting import fit as fitting

    monkeypatch.setattr(fitting, "onnx_missing", lambda: "onnx")

    def fit() -> None:
        data = Path(__file__).parent / "fixtures" / "v0.1" / "patients.csv"
        columns = {"class_column": "outcome", "domain_column": "site"}
        only = ["logistic-regression"]
        fitting.fit(data, out=tmp_path, only=only, runs=3, trials=1, device="cpu", **columns)

    fit()
    killed = next((tmp_path / "runs").iterdir())
    records = (killed / "records.jsonl").read_bytes()
    for path in killed.iterdir():
        if path.name not in ("run.json", "lock"):
            path.unlink()
    write_json(killed / "failed.json", {"kind": "death", "reason": "no", "memory": False})
    fit()
    assert state_of(killed) is RunState.DONE
    assert (killed / "records.jsonl").read_bytes() == records


@pytest.mark.parametrize("content", ["{", "[]", '{"times": "x"}', '{"times": []}'])
def test_a_damaged_count_of_deaths_is_none(tmp_path: Path, content: str) -> None:
    planned(tmp_path)
    run = read_plan(tmp_path)[0]
    path = folder_of(tmp_path, run)
    path.mkdir(parents=True)
    (path / BEGUN).write_text(content)
    machine = Squares().machine()
    assert attempt(run, Squares(), tmp_path, machine) is RunState.DONE


@pytest.mark.parametrize(
    "change",
    [{"inputs": 5}, {"inputs": {"columns": [5]}}, {"inputs": {"columns": [], "class_column": 5}}],
    ids=str,
)
def test_a_damaged_card_is_named_by_what_measures_a_model(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    saved_model(tmp_path)
    card = tmp_path / "model.json"
    write_json(card, json.loads(card.read_text()) | change)
    for command in (["eval", str(tmp_path), "--dataset"], ["diagnose", str(tmp_path)]):
        assert main([*command, str(tmp_path / "x.csv")]) == 2
        assert f"the card of {tmp_path} is damaged" in capsys.readouterr().err


def test_a_card_whose_columns_are_not_those_of_the_model_is_named(tmp_path: Path) -> None:
    column = {"name": "size", "kind": "number", "gaps": False}
    card = {"inputs": {"kind": "table", "columns": [column]}, "shape": [5]}
    with pytest.raises(ValueError, match=rf"{tmp_path} is damaged \(columns of 1 numbers for the"):
        load_for_model(Namespace(model=tmp_path), card)


def test_a_version_of_a_thousand_digits(tmp_path: Path) -> None:
    from shoal.fitting.predictor import load

    saved_model(tmp_path)
    card = tmp_path / "model.json"
    write_json(card, json.loads(card.read_text()) | {"shoal": "9" * 5000})
    with pytest.warns(UserWarning, match="it is used, because"):
        load(tmp_path, "cpu")


@pytest.mark.parametrize("change", [{"steps": {"a": 1}}, {"examples": "many"}, {"version": 0}])
def test_a_damaged_setup_of_a_fit_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    write_json(tmp_path / "fit.json", {"steps": 5, "version": 2} | change)
    with pytest.raises(ValueError, match=r"fit\.json has a \w+ that is .* it is damaged: move it"):
        saved_setup(tmp_path)


def test_a_cache_that_was_cut_off_is_named(tmp_path: Path) -> None:
    for name in ("a/x/1.png", "a/y/1.png"):
        picture(tmp_path / "data" / name)
    cache = tmp_path / "cache"
    build(image_folders("mine", tmp_path / "data"), cache)
    evaluation, _, frames = (cache / name for name in file_names(0))
    for path in (evaluation, frames):
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(ValueError, match=f"{cache} is damaged .* delete it and build"):
            cached_samples(cache, 4)
        path.write_bytes(content)
    assert len(cached_samples(cache, 4)["a"]) == 2


def test_names_in_figures_are_no_formulas(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with canvas() as (figure, axes):
        axes[0, 0].set_title(name_in_figure("$\\frac$ \udcff \ud800"))
        assert render(figure)["png"]
        assert axes[0, 0].get_title(loc="left") == "\\$\\frac\\$ \\xff \\ud800"


# Files that are larger than memory


@pytest.mark.parametrize("name", ["model.safetensors", "reference.safetensors", "checkpoint"])
def test_a_sparse_file_of_tensors_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    saved_model(tmp_path)
    path = tmp_path / name
    if name == "checkpoint":
        path = tmp_path / "checkpoints" / f"step-0000001-{'0' * 16}.pt"
        path.parent.mkdir()
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(700 * 2**20)
    undo = fits_into(400 * 2**20)
    try:
        if name == "checkpoint":
            checkpoints = Checkpoints(path.parent, "identity")
            assert checkpoints.latest() is None
            assert "truncated or damaged" in checkpoints.refused[0]
        else:
            with pytest.raises(ValueError, match=f"{name} is damaged, or"):
                read_safetensors(path)
        if name == "model.safetensors":
            with pytest.raises(ValueError, match=f"{name} is damaged, or .*; copy it again"):
                model.load(tmp_path, CPU)
    finally:
        undo()


def test_too_little_memory_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: bool) -> None:
        raise MemoryError

    monkeypatch.setitem(LISTS, "datasets", ("", full))
    assert main(["list", "datasets"]) == 2
    assert capsys.readouterr().err == "shoal: out of memory; give it less at once\n"


@pytest.mark.parametrize("begin", [b"", b'a,b\n"', b"a,b\n1,2\n"])
def test_a_table_with_an_endless_line_is_refused(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(begin)
    with path.open("r+b") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(ValueError, match=rf"x\.csv: line {begin.count(10) + 1} has more than 64"):
        read_table(path)


def test_a_file_that_grows_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("/proc/self/maps")  # the kernel makes it up: it has no size before it is read
    assert path.stat().st_size == 0
    assert b"python" in files.read_bytes(path, 2**24)
    with pytest.raises(ValueError, match="it has more than 100 bytes"):
        files.read_bytes(path, 100)


def test_more_columns_take_time_in_proportion(tmp_path: Path) -> None:
    def seconds(columns: int) -> float:
        path, draw = tmp_path / f"{columns}.csv", np.random.RandomState(0)
        names = ["domain", "class", *(f"c{k}" for k in range(columns))]
        rows = [
            ",".join(["ab"[k % 2], "xy"[k // 2 % 2], *map(str, draw.rand(columns).round(4))])
            for k in range(20)
        ]
        path.write_text("\n".join([",".join(names), *rows]) + "\n")
        begin = time.process_time()
        table_data("wide", path)
        return time.process_time() - begin

    seconds(100)
    assert seconds(8000) < 4 * 8 * seconds(1000)  # quadratic would be 64


PARQUET: dict[str, tuple[Any, str]] = {
    "a far date": (("date32", 2**30), "'x' has a date or time that Python cannot hold"),
    "a far time": (("timestamp", 2**52), "'x' has a date or time that Python cannot hold"),
    "a long time": (("duration", 2**52), "'x' has a date or time that Python cannot hold"),
    "not UTF-8": (None, "Invalid UTF8"),
}


def parquet(path: Path, **columns: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    table = {"domain": list("abab"), "class": list("xxyy"), "number": [1.0, 3.0, 2.0, 7.0]}
    pyarrow.parquet.write_table(pyarrow.table(table | columns), path)
    return path


@pytest.mark.parametrize("name", PARQUET)
def test_values_of_parquet_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    import pyarrow

    made, why = PARQUET[name]
    if made is None:
        parts = [np.arange(5, dtype=np.int32).tobytes(), b"\xff" * 4]
        column = pyarrow.Array.from_buffers(
            pyarrow.string(), 4, [None, *map(pyarrow.py_buffer, parts)]
        )
    else:
        kind, first = made
        of = getattr(pyarrow, kind)
        column = pyarrow.array([first + k for k in range(4)], of() if kind == "date32" else of("s"))
    path = parquet(tmp_path / "t.parquet", x=column)
    with pytest.raises(ValueError, match=rf"t\.parquet cannot be read as Parquet: .*{why}"):
        table_data("mine", path)


def test_lists_in_a_table_are_one_value_each(tmp_path: Path) -> None:
    path = parquet(tmp_path / "t.parquet", lists=[[k] for k in range(4)], parts=[{"a": 1}] * 4)
    found = table_data("mine", path).encoding
    assert [column.name for column in found.columns] == ["number", "lists"]


def test_two_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = [pyarrow.array(list("abab"))] * 2
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays(columns, names=["x", "x"]), tmp_path / "t.parquet"
    )
    with pytest.raises(ValueError, match=r"t\.parquet has two columns 'x'; rename"):
        read_table(tmp_path / "t.parquet")


def test_a_small_file_of_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values take no room in a Parquet file, and memory when they are read."""
    path = tmp_path / "t.parquet"
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"x": np.zeros(2_000_000)}), path)
    assert path.stat().st_size < 2**20
    assert len(read_table(path)["x"]) == 2_000_000
    monkeypatch.setattr(tables, "TABLE_BYTES", 2**20)
    with pytest.raises(ValueError, match=r"more than [\d,]+ rows of 1 columns are too many"):
        read_table(path)


# Reports on damaged runs


# Of a run: a file, and how an object in it is changed.
DAMAGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{
        f"{part} of {value!r}": (
            "records.jsonl",
            lambda one, part=part, value=value: one | {part: {"photo": {"held_out": value}}},
        )
        for part in ("accuracy", "calibration_error")
        for value in ("x", None, [], 1e308, -1e308, 5, True)
    },
    **{
        f"{part} of {value!r}": (
            "records.jsonl",
            lambda one, part=part, value=value: one | {part: value},
        )
        for part, one in (
            ("accuracy", {"photo": 5}),
            ("calibration_error", {"photo": 5}),
            ("terms", {"a": {"b": 1}}),
            ("gaps", {"a": {"b": 1}}),
        )
        for value in (5, None, {"a": None}, {"a": "x"}, one)
    },
    **{
        f"{value!r} among {part}": ("run.json", lambda one, p=part, v=value: one | {p: v})
        for part in ("hparams", "protocol")
        for value in ({"lr": [], "steps": 1}, {"steps": None}, {"steps": []}, {"network": 5})
    },
    "no steps": ("run.json", lambda one: one | {"protocol": {"precision": "bf16"}}),
    "averages of texts": ("averages.jsonl", lambda one: one | {"calibration_error": {"photo": 5}}),
    "averages of nothing": ("averages.jsonl", lambda one: one | {"average": 5}),
}
HARMLESS = {"{'steps': None} among hparams", "{'network': 5} among hparams"}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two methods, one with averages."""
    folder = tmp_path_factory.mktemp("sweep")
    for name in ("erm", "irm"):
        run = write_run(folder / "runs", make_run("pacs", name, ("photo",), 0, 0, records=3))
    assert run.path is not None
    lines = [json.loads(line) for line in (run.path / "records.jsonl").read_text().splitlines()]
    with (run.path / "averages.jsonl").open("w") as file:
        file.writelines(json.dumps(line | {"average": "sma"}) + "\n" for line in lines)
    return folder


@pytest.mark.parametrize("name", DAMAGES)
def test_every_report_names_a_damaged_run(
    sweep: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sweep, tmp_path / "sweep")
    file, change = DAMAGES[name]
    path = next((tmp_path / "sweep" / "runs").glob(f"*irm*/{file}"))
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for words in (
        ("report", "--format", "terminal"),
        ("report", "--format", "json"),
        ("report", "--format", "html", "--out", str(tmp_path / "page.html")),
        ("select", "--rule", "test-domain", "--out", str(tmp_path / "selected")),
    ):
        status = main([words[0], str(tmp_path / "sweep"), *words[1:]])
        err = capsys.readouterr().err
        if name not in HARMLESS and (words[0] == "report" or file != "averages.jsonl"):
            assert status == 2 and str(path.parent) in err


def test_hyperparameters_set_by_hand_that_are_no_object_are_left_out(sweep: Path) -> None:
    before = [run.set_hparams for run in read_runs([sweep])]
    names = [run.path.name for run in read_runs([sweep]) if run.path]
    content = {names[0]: 5, names[1]: {"lr": []}}
    try:
        (sweep / "set_hparams.json").write_text(json.dumps(content))
        assert [run.set_hparams for run in read_runs([sweep])] == before == [None, None]
        (sweep / "set_hparams.json").write_text(json.dumps({names[0]: {"lr": 0.1}}))
        assert read_runs([sweep])[0].set_hparams == {"lr": 0.1}
    finally:
        (sweep / "set_hparams.json").unlink()


# Arrays


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
def test_complex_numbers_are_refused(kind: type, tmp_path: Path) -> None:
    values = np.ones((4, 2), kind) * 1j
    saved_model(tmp_path)
    with pytest.raises(ValueError, match=r"must be real numbers, got torch\.complex"):
        shoal.load(tmp_path, "cpu").probabilities(torch.from_numpy(values))
    for given in (values, torch.from_numpy(values)):
        with pytest.raises(ValueError, match="X must hold real numbers, got complex"):
            inputs_of(given)
    with pytest.raises(ValueError, match="must hold real numbers"):
        columns_of({"a": values[:, 0]})


# Syncing


def test_every_move_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        state = os.fstat(handle)
        synced.add((state.st_dev, state.st_ino))
        real(handle)

    def was_synced(folder: Path) -> bool:
        state = folder.stat()
        return (state.st_dev, state.st_ino) in synced

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "a" / "b" / "file", "x")
    assert was_synced(tmp_path) and was_synced(tmp_path / "a") and was_synced(tmp_path / "a" / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "archive").write_bytes(archive_of("x"))
    unpack(tmp_path / "c" / "archive", tmp_path / "c" / "d")
    assert was_synced(tmp_path / "c")
    (tmp_path / "e").mkdir()
    with serving(b"content") as served:
        download(served.url, tmp_path / "e" / "file")
    assert was_synced(tmp_path / "e")
