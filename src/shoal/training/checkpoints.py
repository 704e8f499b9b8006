"""Checkpoints: written in the background, resumed exactly; the last two are kept."""

import hashlib
import io
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import TENSOR_BYTES, UnfitFile, open_file
from ..storage import FolderLost, remove_asides, write_aside

# The share of a run's time for checkpoints, and the fewest seconds between two of them.
SHARE, SOONEST = 0.02, 15.0
KEPT = 2
SCHEMA = 1


class Checkpoints:
    """The checkpoints in one folder, of the run with this identity.

    The name of a file has its step and the start of its SHA-256, so that any damage shows.

    Args:
        every: seconds between two checkpoints; by default as few as cost 2 % of the time.
        writes: False if another process writes them.
    """

    def __init__(
        self, folder: Path, identity: str, every: float | None = None, writes: bool = True
    ) -> None:
        self.folder, self.identity, self.every, self.writes = folder, identity, every, writes
        self.refused: list[str] = []
        self._ignored: set[Path] = set()
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[float] | None = None
        self._begun = self._last = time.monotonic()
        self._spent, self._cost = 0.0, 0.0  # on all of them, and on the last

    def due(self) -> bool:
        """Return whether the next one is due; raise if the last one could not be written."""
        if not self.writes:
            return False
        if self._writing is not None:
            if not self._writing.done():
                return False
            self._finish()
        now = time.monotonic()
        if self.every is not None:
            return now - self._last >= self.every
        # All of them together with the next, which will cost what the last did, must stay within
        # the share. The cost of the first is not known before it is taken.
        affordable = SHARE * (now - self._begun) >= self._spent + self._cost
        return affordable and now - self._last >= SOONEST

    def take(self, step: int, state: dict[str, Any]) -> None:
        """Write ``state`` after ``step`` updates; tensors are copied before this returns."""
        begin = time.monotonic()
        devices: set[torch.device] = set()
        about = {"schema": SCHEMA, "identity": self.identity, "step": step}
        copy = _copy({**state, **about}, devices)
        for device in devices:
            torch.cuda.synchronize(device)  # updates have a stream of their own
        blocked = time.monotonic() - begin
        self._last = begin
        self._writer = self._writer or ThreadPoolExecutor(1, "checkpoint")
        self._writing = self._writer.submit(self._write, step, copy, blocked)

    def _finish(self) -> None:
        if self._writing is not None:
            written, self._writing = self._writing, None
            try:
                self._cost = written.result()
                self._spent += self._cost
            except FolderLost:
                raise
            except OSError as error:
                raise OSError(
                    f"a checkpoint cannot be written to {self.folder}: {error.strerror or error}; "
                    f"{self._left()}; make room and run the same command again to resume"
                ) from error

    def _left(self) -> str:
        steps = [step for step, _ in self._files()]
        return f"the one of step {max(steps)} is whole" if steps else "there is none before it"

    def _write(self, step: int, state: dict[str, Any], blocked: float) -> float:
        begin = time.monotonic()
        buffer = io.BytesIO()
        torch.save(_to_host(state), buffer)
        content = buffer.getbuffer()
        digest = hashlib.sha256(content).hexdigest()[:16]
        path = self.folder / f"step-{step:07d}-{digest}.pt"
        write_aside(path, lambda file: file.write(content))
        for _, old in self._files()[KEPT:]:
            old.unlink(missing_ok=True)
        return blocked + time.monotonic() - begin

    def _files(self) -> list[tuple[int, Path]]:
        """Return steps and files, the newest first, without those that were refused."""
        found = []
        for path in self.folder.glob("step-*.pt"):
            name = re.fullmatch(r"step-(\d+)-([0-9a-f]{16})\.pt", path.name)
            if name and path not in self._ignored:
                found.append((int(name[1]), path))
        return sorted(found, reverse=True)

    def latest(self) -> dict[str, Any] | None:
        """Return the newest whole checkpoint, or None; ``refused`` has a line for each other."""
        remove_asides(self.folder)
        for _, path in self._files():
            try:
                return self._read(path)
            except ValueError as error:
                self.refused.append(str(error))
                self._ignored.add(path)
        return None

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            # One that is damaged can be larger than memory, so it is not read as a whole before.
            with open_file(path, TENSOR_BYTES) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, UnfitFile) as error:
            raise ValueError(f"{path} cannot be read ({error}); it is ignored") from error
        if found[:16] != path.stem.rpartition("-")[2]:
            raise ValueError(f"{path} is truncated or damaged; it is ignored")
        try:
            with open_file(path, TENSOR_BYTES) as file:
                state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(f"{path} is not a checkpoint of shoal; it is ignored") from error
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            raise ValueError(f"{path} is not a checkpoint of this version; it is ignored")
        if state.get("identity") != self.identity:
            raise ValueError(f"{path} is a checkpoint of another run; it is ignored")
        return state

    def close(self) -> None:
        """Wait until the last one is written."""
        if self._writer is not None:
            self._writer.shutdown(wait=True)
            self._writer = None
        self._finish()

    def delete(self) -> None:
        """Delete all of them: the run is done."""
        for path in self.folder.glob("step-*.pt"):
            path.unlink(missing_ok=True)
        remove_asides(self.folder)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()


def _copy(value: Any, devices: set[torch.device]) -> Any:
    """Return a copy with its own tensors, on the same devices; add the GPUs among them."""
    if isinstance(value, Tensor):
        if value.is_cuda:
            devices.add(value.device)
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copy(item, devices) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item, devices) for item in value]
    return value


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    return (
        {key: _to_host(item) for key, item in value.items()} if isinstance(value, dict) else value
    )
