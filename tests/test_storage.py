"""Files and locks: written whole or not at all, read back unchanged, named when damaged."""

import errno
import os
import pickle
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from shoal import storage
from shoal.documents import read_json
from shoal.storage import hold_lock, is_locked, remove_asides, write_aside, write_json, write_text
from shoal.tensor_files import load_tensors, save_tensors


def test_folders_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "θ\n")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == "θ\n".encode()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("existed", [True, False])
def test_a_writer_that_fails_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException], existed: bool
) -> None:
    path = tmp_path / "file"
    if existed:
        path.write_text("old")

    def half(file: IO[bytes]) -> None:
        file.write(b"new, but only ha")
        file.flush()
        raise error

    with pytest.raises(error):
        write_aside(path, half)
    assert [p.name for p in tmp_path.iterdir()] == (["file"] if existed else [])
    assert not existed or path.read_text() == "old"


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    def full(file: IO[bytes]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError) as caught:
        write_aside(tmp_path / "file", full)
    assert str(caught.value) == f"[Errno 28] No space left on device: '{tmp_path / 'file'}'"

    def said(file: IO[bytes]) -> None:
        raise OSError("in words of its own")

    with pytest.raises(OSError, match=r"^in words of its own$"):
        write_aside(tmp_path / "file", said)


def test_what_killed_processes_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: Path, target: Path) -> None:
        raise SystemExit

    kept = [".hidden", ".file.txt", "file.4711.0123abcd", ".nfs0123", "file"]
    for name in kept:
        (tmp_path / name).write_text("kept")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(SystemExit):
            write_text(tmp_path / "file", "half")
    assert len(list(tmp_path.iterdir())) == 6
    remove_asides(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    remove_asides(tmp_path / "nowhere")


def test_old_content_stays_until_the_new_is_complete_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    events = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        state = os.fstat(handle)
        kind = "folder" if os.path.samestat(state, tmp_path.stat()) else "fsync"
        events.append((kind, path.read_text(), state.st_size))
        fsync(handle)

    def moved(source: Any, target: Any) -> None:
        events.append(("replace", path.read_text(), Path(source).parent == path.parent))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", moved)
    write_text(path, "newer")
    # The folder is synced as well, or the power could undo the move.
    assert events[:2] == [("fsync", "old", 5), ("replace", "old", True)]
    assert [kind for kind, *_ in events[2:]] == ["folder"]
    assert path.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_move_that_fails_leaves_no_stray_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        write_text(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_as_readable_as_any_other_new_file(tmp_path: Path) -> None:
    """A page or a record is for others too, as far as the umask lets them."""
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "ours", "text")
        (tmp_path / "plain").write_text("text")
    finally:
        os.umask(before)
    ours, plain = ((tmp_path / name).stat().st_mode for name in ("ours", "plain"))
    assert stat.filemode(ours) == stat.filemode(plain)


def test_json_comes_back(tmp_path: Path) -> None:
    value = {"θ": [1, 2.5, None, True], "nested": {"text": "“80 %”\n"}, "small": 1e-300}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    text = (tmp_path / "a.json").read_bytes().decode("utf-8")
    assert "θ" in text and text.endswith("}\n")
    assert '\n  "nested"' in text  # for people too


def test_json_is_read_as_it_was_written_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(tmp_path / "a.json", {"name": "Fishr θ"})
    plain = Path.read_text

    def ascii_by_default(self: Path, encoding: str | None = None, *rest: Any) -> str:
        return plain(self, encoding or "ascii", *rest)

    monkeypatch.setattr(Path, "read_text", ascii_by_default)
    assert read_json(tmp_path / "a.json") == {"name": "Fishr θ"}


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"{'a': 1}", b"\xff\xfe{}"], ids=repr)
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not valid JSON") as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    assert "move it away" in str(caught.value)


def test_json_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nothing.json")


def test_tensors_come_back(tmp_path: Path) -> None:
    value = {
        "done": 7,
        "model": {"a.weight": torch.randn(3, 4), "half": torch.ones(2, dtype=torch.bfloat16)},
        "optimiser": [{"step": torch.tensor(3.0), "exp_avg": torch.randn(5).double()}, {}],
    }
    save_tensors(tmp_path / "folder" / "a.pt", value)
    found = load_tensors(tmp_path / "folder" / "a.pt")
    assert found["done"] == 7
    for name, tensor in value["model"].items():
        assert torch.equal(found["model"][name], tensor)
        assert found["model"][name].dtype == tensor.dtype
    assert torch.equal(found["optimiser"][0]["exp_avg"], value["optimiser"][0]["exp_avg"])
    assert found["optimiser"][1] == {}
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["a.pt"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_gpu_come_back_on_the_host(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.pt", {"a": torch.arange(3, device="cuda")})
    found = load_tensors(tmp_path / "a.pt")["a"]
    assert found.device.type == "cpu" and found.tolist() == [0, 1, 2]


class Trap:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickled_object_is_refused_and_named(tmp_path: Path, how: str) -> None:
    path, sprung = tmp_path / "evil.pt", tmp_path / "sprung"
    value = {"model": Trap(sprung)}
    if how == "torch":
        torch.save(value, path)
    else:
        path.write_bytes(pickle.dumps(value, protocol=2))
    with pytest.raises(ValueError, match="damaged or not a checkpoint") as caught:
        load_tensors(path)
    assert str(path) in str(caught.value)
    assert not sprung.exists()


def test_damaged_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save_tensors(path, {"a": torch.randn(1000)})
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(ValueError, match="delete it to start again") as caught:
        load_tensors(path)
    assert str(path) in str(caught.value)


def test_tensors_that_are_no_dict_are_named(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt holds list, a dict was expected"):
        load_tensors(tmp_path / "a.pt")


# Locks


@pytest.fixture(params=["flock", "filelock"])
def kind_of_lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of Linux and macOS, and the one that stands in for it on Windows."""
    monkeypatch.setattr(storage, "has_flock", lambda: request.param == "flock")


@pytest.mark.usefixtures("kind_of_lock")
def test_a_lock_is_held_once_and_freed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    assert not is_locked(path)
    for _ in range(2):
        with hold_lock(path):
            assert is_locked(path)
            with pytest.raises(RuntimeError, match="busy"), hold_lock(path, RuntimeError("busy")):
                raise AssertionError("held twice")
    assert not is_locked(path)
    assert not path.exists() or path.read_bytes() == b""


@pytest.mark.usefixtures("kind_of_lock")
def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held, stop = threading.Event(), threading.Event()

    def hold() -> None:
        with hold_lock(path):
            held.set()
            stop.wait(10)

    first = threading.Thread(target=hold)
    first.start()
    held.wait(10)
    begin = time.monotonic()
    with pytest.raises(RuntimeError), hold_lock(path, RuntimeError("busy"), wait=0.05):
        raise AssertionError("held twice")
    assert time.monotonic() - begin >= 0.05
    threading.Timer(0.05, stop.set).start()
    with hold_lock(path):
        first.join()
    with hold_lock(path, RuntimeError("busy"), remove=True):
        pass
    assert not path.exists()


@pytest.mark.usefixtures("kind_of_lock")
def test_a_lock_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(OSError, match=r"file.* cannot be written: .*run the same command again"),
        hold_lock(tmp_path / "file" / "lock"),
    ):
        raise AssertionError("held")


def test_torch_is_loaded_for_tensors_only() -> None:
    code = "import sys, shoal.storage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
