"""Power fails at any moment: the same command ends as if nothing had happened."""

import random
from pathlib import Path

import pytest

from tests.chaos.losses import survey
from tests.chaos.power import Crashes, Operation, never_synced

pytestmark = pytest.mark.timeout(240)


def aside(name: str, content: bytes, folder: bool) -> list[Operation]:
    """Return what it takes to write a file aside and move it; and to sync its folder."""
    made = [
        Operation("make", f".{name}"),
        Operation("sync", f".{name}", content=content),
        Operation("move", f".{name}", target=name),
    ]
    return [*made, *([Operation("sync", ".")] if folder else [])]


def states(operations: list[Operation], ordered: bool) -> set[tuple[tuple[str, bytes | None], ...]]:
    crashes, chance = Crashes(operations), random.Random(0)
    return {tuple(sorted(crashes.draw(chance, ordered).items())) for _ in range(400)}


def test_the_states_of_two_files() -> None:
    """All of them, by hand."""
    unsynced = [*aside("a", b"1", folder=False), *aside("b", b"2", folder=False)]
    begun, a, b = (".a", b"1"), ("a", b"1"), ("b", b"2")
    in_order = {(), ((".a", b""),), (begun,), (a,), ((".b", b""), a), ((".b", b"2"), a), (a, b)}
    assert states(unsynced, ordered=True) == in_order
    alone = states(unsynced, ordered=False)
    assert (b,) in alone  # the second is there, the first is not
    synced = [*aside("a", b"1", folder=True), *aside("b", b"2", folder=True)]
    assert (b,) not in states(synced, ordered=False)


def test_what_was_not_synced_is_empty_and_what_lies_in_a_lost_folder_is_lost() -> None:
    operations = [Operation("folder", "f"), Operation("make", "f/x"), Operation("make", "y")]
    assert never_synced(operations) == {"f/x", "y"}
    found = states(operations, ordered=False)
    assert (("f", None), ("f/x", b""), ("y", b"")) in found
    assert (("y", b""),) in found
    assert not any(name == "f/x" and ("f", None) not in one for one in found for name, _ in one)


@pytest.mark.parametrize("name", ["run", "soup"])
def test_a_file_system_that_keeps_the_order(name: str, tmp_path: Path) -> None:
    found = survey(name, tmp_path, losses=12, seed=0, ordered=True)
    assert found.broken == [] and not found.said and found.resumed == 12
    assert {Path(one).suffix or Path(one).name for one in found.unsynced} <= {"lock", ".lock"}


def test_a_file_system_that_keeps_no_order(tmp_path: Path) -> None:
    """Folders are synced after every move, so whatever is left resumes."""
    found = survey("run", tmp_path, losses=25, seed=0, ordered=False)
    assert found.broken == []
    assert not found.said and found.resumed == 25
