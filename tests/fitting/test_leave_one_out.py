"""Several processes that fit one model: the others follow the first."""

from pathlib import Path

import pytest
import torch

from shoal.algorithms import find
from shoal.datasets import Domain, DomainDataset
from shoal.fitting import leave_one_out
from shoal.fitting.setup import FitWorkspace
from shoal.runs.machine import Machine
from shoal.runs.run import Run
from shoal.sweeps import attempt as attempts
from shoal.sweeps.attempt import attempt
from shoal.sweeps.status import RunState
from tests.training.little import watching


def test_the_others_take_part_in_what_begins_and_outlive_what_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [
        Run(dataset="x", fingerprint="", algorithm=name, test_domains=("a",))
        for name in ("erm", "fishr", "coral")
    ]
    words, assisted = iter([2, 0, leave_one_out.END]), list[str]()

    class Assistant:
        def assist(self, run: Run) -> None:
            assisted.append(run.algorithm)
            raise FloatingPointError("in all processes alike")

    monkeypatch.setattr(leave_one_out, "broadcast_int", lambda _: next(words))
    leave_one_out.assist_until_done(Assistant(), runs)  # type: ignore[arg-type]
    assert assisted == ["coral", "erm"]


@pytest.mark.parametrize(
    ("error", "processes", "raised"),
    [
        (FloatingPointError("loss"), 2, False),
        (RuntimeError("of this process alone"), 1, False),
        (RuntimeError("of this process alone"), 2, True),
    ],
)
def test_what_fails_in_one_process_ends_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    processes: int,
    raised: bool,
) -> None:
    data = DomainDataset("x", ("n", "y"), (Domain("a", torch.arange(2), torch.zeros(2, 1)),))
    run = Run(dataset="x", fingerprint=data.fingerprint, algorithm="erm", test_domains=())
    begun: list[int] = []

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(attempts, "execute", fails)
    monkeypatch.setattr(attempts, "processes", lambda: processes)

    def tried() -> RunState:
        machine = Machine(device=torch.device("cpu"), step="eager")
        workspace = FitWorkspace({"erm": (find("erm"), {})}, data, None, machine)
        watcher = watching(starts=lambda: begun.append(1))
        return attempt(run, workspace, tmp_path, machine, watcher=watcher)

    if raised:
        with pytest.raises(RuntimeError, match="alone"):
            tried()
    else:
        assert tried() is RunState.FAILED
        assert tried() is RunState.FAILED  # and does not begin again
    assert begun == [1]


def test_a_single_process_keeps_its_own_number() -> None:
    assert leave_one_out.broadcast_int(lambda: 3) == 3
