"""Two processes give the values, gradients and state of one on the concatenated batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from torch import Tensor

from tests import two_processes
from tests.two_processes import SCENARIOS, WORLD, Result

# Seconds for two processes from start to end; they take about 15.
PATIENCE = 90
# Relative distance of two vectors: the same sums in another order.
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}

Outcome = dict[str, Result | str]


def run(names: list[str], folder: Path) -> list[str]:
    """Run scenarios in two processes, and return what they said; results go to the folder."""
    root = Path(two_processes.__file__).resolve().parent.parent
    paths = [str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, two_processes.__file__]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "meeting"), str(folder), *names],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=PATIENCE)[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return said


def distance(found: Tensor, expected: Tensor) -> float:
    """Return ‖found − expected‖ / ‖expected‖, with a denominator of at least 1e-6."""
    gap, size = (found.double() - expected.double()).norm(), expected.double().norm()
    return float(gap / size.clamp(min=1e-6))


def check(name: str, outcomes: list[Outcome]) -> None:
    """Compare both ranks with each other, bit for bit, and with one process."""
    found = []
    for rank, outcome in enumerate(outcomes):
        one = outcome.get(name, "not reached")
        if isinstance(one, str):
            pytest.fail(f"rank {rank}: {one}")
        found.append(one)
    expected = two_processes.carry_out(name)
    assert found[0].keys() == found[1].keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[0][key], found[1][key]), f"{key} differs between ranks"
        assert found[0][key].shape == tensor.shape, key
        assert found[0][key].dtype == tensor.dtype, key
        gap = distance(found[0][key], tensor)
        assert gap <= CLOSE.get(tensor.dtype, 0), f"{key} is {gap:.1e} from one process's"
        if key in ("value", "gradient"):
            assert tensor.abs().max() > 1e-6, f"{key} says nothing"


# All in one start of two processes, because importing torch takes most of the time. Scenarios in
# which a defect once left one rank waiting for the other come last.
LAST = [name for name in SCENARIOS if name.startswith("covariance") or name.endswith("counted")]
NAMES = [
    *(
        name + precision
        for precision in two_processes.DTYPES
        for name in SCENARIOS
        if name not in LAST and not (precision and name.startswith("training"))
    ),
    *LAST,
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """The results of each rank, from the first of xdist's workers that asks."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of this session, and of all its workers
    folder, said, found = root / "two-processes", [""] * WORLD, []
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            said = run(NAMES, folder)
    for rank in range(WORLD):
        file = folder / f"{rank}.pt"
        if not file.exists():
            pytest.fail(f"rank {rank} left nothing behind:\n{said[rank][-2000:]}")
        found.append(torch.load(file, weights_only=True))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_equal_one(name: str, outcomes: list[Outcome]) -> None:
    check(name, outcomes)


def test_the_split_is_uneven() -> None:
    first, second = two_processes.DOMAINS
    assert len(first) != len(second)
    assert first.count(1) == 1
    assert second.count(1) > 1
    assert first.count(2) > 1
    assert 2 not in second
    assert first.count(3) == second.count(3) == 1
    assert (first + second).count(4) == 1
