"""Power loss: what a process does to a folder, and every state that a crash may leave of it.

Only what was synced is sure to be there after the power fails. Bytes of a file are, once the file
was synced; an entry of a folder (a file made, moved or removed) is, once the folder was synced.
Other entries may be there or not, in any combination that keeps the order of changes to one name:
so POSIX allows. File systems with a journal also keep the order of all changes (``ordered``).
"""

import os
import pickle
import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A folder in a state, beside the bytes of files.
FOLDER = None
State = dict[str, bytes | None]


@dataclass(frozen=True)
class Operation:
    """A change: "make" a file, "folder", "move", "remove", or "sync".

    Args:
        path: relative to the recorded folder, "." for itself.
        target: of a move.
        content: the bytes of a file that was synced; None for a folder.
    """

    kind: str
    path: str
    target: str = ""
    content: bytes | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.path, self.target) if self.kind == "move" else (self.path,)


def record(log: Path, root: Path, work: Callable[..., object], *arguments: object) -> None:
    """Do the work and write what it did to ``root`` to the file ``log``.

    It listens to this process until its end, so it needs a process of its own.
    """
    root = root.resolve()
    operations: list[Operation] = []
    lock = threading.Lock()

    def inside(path: Any, folder: int = -1) -> str | None:
        """Return the path relative to the root; None if it lies elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        place = Path(os.fsdecode(path))
        if folder >= 0:  # as shutil.rmtree removes files
            place = Path(os.readlink(f"/proc/self/fd/{folder}")) / place
        place = place.absolute()
        return str(place.relative_to(root)) if place.is_relative_to(root) else None

    def add(kind: str, path: str | None, **more: Any) -> None:
        if path is not None:
            with lock:
                operations.append(Operation(kind, path, **more))

    def exists(path: str | None) -> bool:
        return path is not None and os.path.lexists(root / path)

    def listen(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = given
            if flags & os.O_CREAT and isinstance(path, str | bytes | os.PathLike):
                name = inside(path)
                if not exists(name):
                    add("make", name)
                elif flags & os.O_TRUNC:
                    raise AssertionError(f"{name} is overwritten in place: it can be torn")
        elif event == "os.mkdir":
            name = inside(given[0], given[2])
            if not exists(name):
                add("folder", name)
        elif event == "os.rename":
            source, target = inside(given[0], given[2]), inside(given[1], given[3])
            if (source is None) != (target is None):
                raise AssertionError(f"{given[0]} is moved to {given[1]}, across the root")
            if exists(source):
                add("move", source, target=target)
        elif event in ("os.remove", "os.rmdir"):
            name = inside(given[0], given[1])
            if exists(name):
                add("remove", name)
        elif event in ("os.link", "os.symlink", "os.truncate") and inside(given[0]):
            raise AssertionError(f"{event} of {given[0]} is not understood here")

    sync = os.fsync

    def fsync(file: Any) -> None:
        sync(file)
        number = file if isinstance(file, int) else file.fileno()
        place = os.readlink(f"/proc/self/fd/{number}")
        content = None if os.path.isdir(place) else Path(place).read_bytes()
        add("sync", inside(place), content=content)

    os.fsync = fsync
    sys.addaudithook(listen)
    work(*arguments)
    log.write_bytes(pickle.dumps(operations))


class Crashes:
    """The states that a crash may leave, at any moment of recorded operations."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.needs: list[set[int]] = []
        for number in range(len(operations)):
            self.needs.append(self._needs(number))

    def _needs(self, number: int) -> set[int]:
        """Return the earlier changes that must be there if this one is."""
        mine, found = self.operations[number], set[int]()
        for before in range(number):
            other = self.operations[before]
            same = set(mine.names) & set(other.names)
            # A folder is removed when it is empty.
            within = mine.kind == "remove" and any(
                name.startswith(f"{mine.path}/") for name in other.names
            )
            if other.kind != "sync" and (same or within):
                found |= {before} | self.needs[before]
        return found

    def changes(self, moment: int) -> set[int]:
        """Return all changes of entries before this moment."""
        return {k for k in range(moment) if self.operations[k].kind != "sync"}

    def sure(self, moment: int) -> set[int]:
        """Return the changes that are there whatever happens: their folders were synced since."""
        found, synced = set[int](), set[str]()
        for k in reversed(range(moment)):
            one = self.operations[k]
            if one.kind == "sync":
                synced |= {one.path} if one.content is None else set()
            elif {os.path.dirname(name) or "." for name in one.names} <= synced:
                found |= {k} | self.needs[k]
        return found

    def draw(self, chance: random.Random, ordered: bool) -> State:
        """Return the state after a crash at a random moment.

        It has all changes; or, unless the file system keeps their order, only the sure ones; those
        and one more; all but one, or all but some, with what needs them.
        """
        moment = chance.randrange(len(self.operations) + 1)
        every = self.changes(moment)
        sure = every if ordered else self.sure(moment)
        pending = sorted(every - sure)
        lost = set[int]()
        match chance.randrange(4) if pending else 0:
            case 1:
                one = chance.choice(pending)
                lost = every - sure - self.needs[one] - {one}
            case 2:
                lost = {chance.choice(pending)}
            case 3:
                lost = {k for k in pending if chance.random() < 0.3}
            case _:
                lost = set(pending)
        lost |= {k for k in pending if self.needs[k] & lost}
        return self.state(every - lost, moment)

    def state(self, changes: set[int], moment: int) -> State:
        """Return files and folders after these changes, with what was synced of each file."""
        tree: dict[str, int | None] = {}  # the number of the operation that made a file
        content: dict[int, bytes] = {}
        where: dict[str, int] = {}  # as the process saw it, by which it synced
        for k, one in enumerate(self.operations[:moment]):
            if one.kind == "make":
                where[one.path] = k
            elif one.kind == "move":
                _move(where, one.path, one.target)
            elif one.kind == "sync" and one.content is not None and one.path in where:
                content[where[one.path]] = one.content
            if k not in changes:
                continue
            if one.kind in ("make", "folder"):
                tree[one.path] = k if one.kind == "make" else FOLDER
            elif one.kind == "move":
                _move(tree, one.path, one.target)
            elif one.kind == "remove":
                tree.pop(one.path, None)
        return {
            name: FOLDER if maker is None else content.get(maker, b"")
            for name, maker in tree.items()
            if all(tree.get(str(above), -1) is FOLDER for above in list(Path(name).parents)[:-1])
        }


def _move(tree: dict[str, Any], source: str, target: str) -> None:
    """Move a file, or a folder with all that it holds."""
    for name in [one for one in tree if one == source or one.startswith(f"{source}/")]:
        tree[target + name.removeprefix(source)] = tree.pop(name)


def lay_out(state: State, root: Path) -> None:
    """Make the root look as it does in a state."""
    for name, content in sorted(state.items()):
        if content is None:
            (root / name).mkdir(parents=True)
        else:
            (root / name).write_bytes(content)


def never_synced(operations: Sequence[Operation]) -> set[str]:
    """Return the last names of the files that were never synced."""
    names: dict[str, str] = {}  # of a file now, by the name that it was made with
    synced = set[str]()
    for one in operations:
        if one.kind == "make":
            names[one.path] = one.path
        elif one.kind == "move":
            for made in [m for m, now in names.items() if now == one.path]:
                names[made] = one.target
        elif one.kind == "sync" and one.content is not None:
            synced |= {made for made, now in names.items() if now == one.path}
    return {names[made] for made in names.keys() - synced}
