"""Checkpoints: copies, whole or refused by name, two at a time, for 2 % of the time."""

import errno
import hashlib
import io
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from shoal.training import checkpoints as module
from shoal.training.checkpoints import KEPT, SCHEMA, SHARE, SOONEST, Checkpoints

IDENTITY = "this run"


def state(number: int = 0) -> dict[str, Any]:
    return {
        "update": {
            "weights": torch.arange(6.0).view(2, 3) + number,
            "count": torch.tensor(2**40 + number),
            "sound": torch.tensor(True),
        },
        "records": [{"step": number, "terms": {"loss": 0.1 + number}, "accuracy": {"a": {}}}],
    }


def keep(folder: Path, *steps: int, identity: str = IDENTITY) -> list[Path]:
    """Write checkpoints of these steps, as a run does, and return all that are there."""
    mine = Checkpoints(folder, identity, every=0.0)
    for step in steps:
        mine.take(step, state(step))
        mine.close()
    return sorted(folder.glob("*"))


def foreign(folder: Path, step: int, content: bytes) -> Path:
    """Write any bytes under the name of a checkpoint."""
    digest = hashlib.sha256(content).hexdigest()[:16]
    path = folder / f"step-{step:07d}-{digest}.pt"
    path.write_bytes(content)
    return path


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_what_comes_back_is_what_was_saved(tmp_path: Path) -> None:
    keep(tmp_path / "deep" / "folder", 12)
    found = Checkpoints(tmp_path / "deep" / "folder", IDENTITY).latest()
    assert found is not None
    assert (found["step"], found["identity"], found["schema"]) == (12, IDENTITY, SCHEMA)
    expected = state(12)
    assert found["records"] == expected["records"]
    for key, tensor in expected["update"].items():
        assert found["update"][key].dtype == tensor.dtype
        assert torch.equal(found["update"][key], tensor)


def test_none_at_the_beginning(tmp_path: Path) -> None:
    mine = Checkpoints(tmp_path / "none", IDENTITY)
    assert mine.latest() is None
    assert mine.refused == []
    assert not (tmp_path / "none").exists()
    mine.close()
    mine.delete()


def test_strides_are_kept(tmp_path: Path) -> None:
    """Filters whose channels lie last come back as they were, and as the optimiser wants them."""
    filters = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    mine = Checkpoints(tmp_path, IDENTITY)
    mine.take(1, {"update": {"filters": filters}, "records": []})
    mine.close()
    found = mine.latest()
    assert found is not None
    assert found["update"]["filters"].stride() == filters.stride()
    assert torch.equal(found["update"]["filters"], filters)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    assert KEPT == 2
    names = [path.name[:13] for path in keep(tmp_path, 5, 9_999_999, 10_000_000)]
    assert names == ["step-10000000", "step-9999999-"]
    found = Checkpoints(tmp_path, IDENTITY).latest()
    assert found is not None
    assert found["step"] == 10_000_000  # by number, not by name


# What may be wrong with a file


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def unreadable(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (truncated, "is truncated or damaged"),
        (emptied, "is truncated or damaged"),
        (one_bit, "is truncated or damaged"),
        (longer, "is truncated or damaged"),
        (a_folder, "cannot be read"),
        (unreadable, "cannot be read"),
    ],
)
def test_a_damaged_file_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: Any, why: str
) -> None:
    _, newest = keep(tmp_path, 5, 9)
    damage(newest)
    mine = Checkpoints(tmp_path, IDENTITY)
    found = mine.latest()
    assert found is not None
    assert found["step"] == 5
    (told,) = mine.refused
    assert str(newest) in told
    assert why in told
    assert "ignored" in told


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"nothing that torch wrote", "is not a checkpoint of shoal"),
        (pickle.dumps(Evil(), 2), "is not a checkpoint of shoal"),
        (
            saved({"schema": SCHEMA, "identity": IDENTITY, "x": Evil()}),
            "is not a checkpoint of shoal",
        ),
        (saved([1, 2]), "is not a checkpoint of this version"),
        (saved({"identity": IDENTITY}), "is not a checkpoint of this version"),
        (
            saved({"schema": SCHEMA + 1, "identity": IDENTITY}),
            "is not a checkpoint of this version",
        ),
        (saved({"schema": SCHEMA}), "is a checkpoint of another run"),
    ],
    ids=("text", "pickle", "evil", "list", "no schema", "another schema", "no identity"),
)
def test_a_foreign_file_is_named_and_never_unpickled(
    tmp_path: Path, content: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep(tmp_path, 5)
    path = foreign(tmp_path, 9, content)
    mine = Checkpoints(tmp_path, IDENTITY)
    found = mine.latest()
    assert found is not None
    assert found["step"] == 5
    (told,) = mine.refused
    assert str(path) in told
    assert why in told
    assert not (tmp_path / "evil").exists()


def test_another_run_s_checkpoint(tmp_path: Path) -> None:
    (theirs,) = keep(tmp_path, 7, identity="another run")
    mine = Checkpoints(tmp_path, IDENTITY)
    assert mine.latest() is None
    assert mine.refused == [f"{theirs} is a checkpoint of another run; it is ignored"]


def test_other_names_are_not_looked_at(tmp_path: Path) -> None:
    for name in (
        "step-1.pt",
        "step-0000009-notahash.pt",
        "other.pt",
        "step-9-0123456789abcdef.bin",
    ):
        (tmp_path / name).write_text("x")
    mine = Checkpoints(tmp_path, IDENTITY)
    assert mine.latest() is None
    assert mine.refused == []


def test_refused_files_do_not_push_out_what_is_written(tmp_path: Path) -> None:
    """Two damaged files with later steps: new checkpoints of earlier ones are there to stay."""
    for path in keep(tmp_path, 800, 900):
        truncated(path)
    mine = Checkpoints(tmp_path, IDENTITY, every=0.0)
    assert mine.latest() is None
    for step in (10, 20, 30):
        mine.take(step, state(step))
        mine.close()
    assert mine._left() == "the one of step 30 is whole"
    again = Checkpoints(tmp_path, IDENTITY)
    found = again.latest()
    assert found is not None
    assert found["step"] == 30
    assert len(again.refused) == 2
    assert len(list(tmp_path.glob("step-00000[123]0-*"))) == 2


def test_what_a_kill_left_half_written_goes(tmp_path: Path) -> None:
    keep(tmp_path, 5)
    half = tmp_path / ".step-0000009-0123456789abcdef.pt.4711.89abcdef"
    half.write_bytes(b"half")
    mine = Checkpoints(tmp_path, IDENTITY)
    found = mine.latest()
    assert found is not None
    assert found["step"] == 5
    assert not half.exists()
    assert mine.refused == []


def test_all_are_deleted_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    keep(folder, 5, 9)
    (folder / ".step-0000009-0123456789abcdef.pt.4711.89abcdef").write_bytes(b"half")
    Checkpoints(folder, IDENTITY).delete()
    assert not folder.exists()
    keep(folder, 5)
    (folder / "notes.txt").write_text("a user's")
    Checkpoints(folder, IDENTITY).delete()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


# Copies


def test_it_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed in place while the file is written does not get into it."""
    gate = threading.Event()
    write = module.write_aside

    def wait(path: Path, content: Any) -> None:
        assert gate.wait(20)
        write(path, content)

    # Nothing is looked at before the gate opens: neither tensors nor records.
    to_host = module._to_host
    monkeypatch.setattr(module, "_to_host", lambda value: gate.wait(20) and to_host(value))
    monkeypatch.setattr(module, "write_aside", wait)
    mine, changing = Checkpoints(tmp_path, IDENTITY), state(3)
    mine.take(3, changing)
    changing["update"]["weights"].zero_()
    changing["update"]["count"] += 1
    changing["records"][0]["terms"]["loss"] = -1.0
    changing["records"].append({"step": 4})
    gate.set()
    mine.close()
    found = mine.latest()
    assert found is not None
    assert torch.equal(found["update"]["weights"], state(3)["update"]["weights"])
    assert torch.equal(found["update"]["count"], state(3)["update"]["count"])
    assert found["records"] == state(3)["records"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_no_later_update_overtakes_the_copy(tmp_path: Path) -> None:
    """Updates have a stream of their own, which does not wait for that of the copy."""
    weights = torch.ones(10_000_000, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(10**9)  # some time before the copy begins
    mine = Checkpoints(tmp_path, IDENTITY)
    mine.take(1, {"update": {"weights": weights}, "records": []})
    with torch.cuda.stream(torch.cuda.Stream()):
        weights.zero_()
    mine.close()
    found = mine.latest()
    assert found is not None
    assert bool((found["update"]["weights"] == 1).all())


def test_it_goes_on_while_a_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = module.write_aside
    monkeypatch.setattr(
        module, "write_aside", lambda path, content: gate.wait(20) and write(path, content)
    )
    mine = Checkpoints(tmp_path, IDENTITY, every=0.0)
    mine.take(1, state())
    assert not mine.due()  # one at a time
    assert list(tmp_path.iterdir()) == []
    gate.set()
    mine.close()
    assert mine.due()
    assert len(list(tmp_path.iterdir())) == 1


# When they are due


class Clock:
    """A clock that goes on only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    yield found


def slow(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float) -> None:
    def write(path: Path, content: Any) -> None:
        clock.now += seconds

    monkeypatch.setattr(module, "write_aside", write)


def test_not_before_fifteen_seconds(tmp_path: Path, clock: Clock) -> None:
    mine = Checkpoints(tmp_path, IDENTITY)
    assert SOONEST == 15.0
    assert not mine.due()
    clock.now += 14.9
    assert not mine.due()
    clock.now += 0.2
    assert mine.due()


def test_one_that_costs_much_waits_for_its_share(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of two seconds are the share of two hundred: then the second is due."""
    assert SHARE == 0.02
    slow(monkeypatch, clock, 2.0)
    mine = Checkpoints(tmp_path, IDENTITY)
    begun = clock.now
    clock.now += 20
    mine.take(1, state())
    mine.close()
    assert clock.now == begun + 22
    clock.now = begun + 199.9
    assert not mine.due()
    clock.now = begun + 200.1
    assert mine.due()


def test_copies_count(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = module._copy

    def slowly(value: Any, devices: set[torch.device]) -> Any:
        if value is not None and isinstance(value, dict) and "schema" in value:
            clock.now += 1.0
        return copied(value, devices)

    monkeypatch.setattr(module, "_copy", slowly)
    mine = Checkpoints(tmp_path, IDENTITY)
    begun = clock.now
    mine.take(1, state())
    mine.close()
    clock.now = begun + 99.9
    assert not mine.due()
    clock.now = begun + 100.1
    assert mine.due()


@pytest.mark.parametrize("cost", [0.001, 0.31, 1.0, 30.0])
def test_two_percent_of_a_long_run(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, cost: float
) -> None:
    slow(monkeypatch, clock, cost)
    mine = Checkpoints(tmp_path, IDENTITY)
    begin, taken = clock.now, 0
    while clock.now < begin + 25 * max(SOONEST, cost / SHARE):
        clock.now += max(SOONEST, cost / SHARE) / 7
        if mine.due():
            mine.take(taken, state())
            mine.close()
            taken += 1
            # The first is taken before anyone knows what it costs.
            assert taken == 1 or taken * cost <= SHARE * (clock.now - begin)
    assert taken >= 20


def test_every_so_often_on_request(tmp_path: Path, clock: Clock) -> None:
    mine = Checkpoints(tmp_path, IDENTITY, every=60.0)
    clock.now += 59
    assert not mine.due()
    clock.now += 2
    assert mine.due()


# A disk that is full, and a folder that nobody may write to


def full(file: IO[bytes], *_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("steps", [(), (5,)])
def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...]
) -> None:
    keep(tmp_path, *steps)
    mine = Checkpoints(tmp_path, IDENTITY, every=0.0)
    real = Path.open

    class Full(io.BytesIO):
        write = full

    def opened(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if "x" in mode:
            real(path, mode, *rest, **more).close()
            return Full()
        return real(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", opened)
    mine.take(9, state(9))
    with pytest.raises(OSError, match="No space left on device") as caught:
        mine.close()
    monkeypatch.undo()
    left = "the one of step 5 is whole" if steps else "there is none before it"
    assert str(caught.value) == (
        f"a checkpoint cannot be written to {tmp_path}: No space left on device; {left}; "
        "make room and run the same command again to resume"
    )
    assert len(list(tmp_path.iterdir())) == len(steps)  # nothing half written stays
    found = mine.latest()
    assert (found["step"] if found else None) == (5 if steps else None)
    mine.close()  # which has been told


def test_a_failure_shows_when_the_next_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, content: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(module, "write_aside", fail)
    mine = Checkpoints(tmp_path, IDENTITY, every=0.0)
    mine.take(9, state(9))
    with pytest.raises(OSError, match=f"written to {tmp_path}: Permission denied; there is none"):
        while not mine.due():
            pass
    assert mine.due()


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    mine = Checkpoints(tmp_path / "checkpoints", IDENTITY, every=0.0)
    assert mine.latest() is None
    mine.take(9, state(9))
    with pytest.raises(OSError, match=r"a checkpoint cannot be written to .*checkpoints: "):
        mine.close()
