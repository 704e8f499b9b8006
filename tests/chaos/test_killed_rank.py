"""torchrun with a rank killed: all end soon with an error, and the same command resumes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.works import content_of
from tests.fitting.made import write_table

SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE = 100


def start(folder: Path, out: Path) -> "subprocess.Popen[str]":
    (folder / "sitecustomize.py").write_text("import sys; sys.modules['onnx'] = None")
    data = write_table(folder / "t.csv", rows=20, domains=("a", "b", "c"))
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "shoal"]
    words = ["fit", str(data), "--device", "cpu", "--steps", "150", "--trials", "1", "--runs", "3"]
    words += ["--only", "erm", "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, *two, *words],
        env=os.environ
        | {
            "PYTHONPATH": f"{folder}:{SOURCE}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def rank_of(torchrun: int, number: int) -> int:
    """Return the process of a rank."""
    for child in Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split():
        if f"LOCAL_RANK={number}".encode() in Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise AssertionError("no such rank")


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_the_others_end_and_the_same_command_resumes(tmp_path: Path) -> None:
    whole = start(tmp_path, tmp_path / "whole")
    assert whole.communicate(timeout=PATIENCE) and whole.returncode == 0
    out = tmp_path / "out"
    for number in (1, 0):
        torchrun, end = start(tmp_path, out), time.monotonic() + PATIENCE
        before = len(list(out.glob("runs/*/records.jsonl")))
        while len(list(out.glob("runs/*/records.jsonl"))) <= before:
            assert time.monotonic() < end and torchrun.poll() is None, "no run was begun"
            time.sleep(0.01)
        os.kill(rank_of(torchrun.pid, number), signal.SIGKILL)
        begin = time.monotonic()
        _, said = torchrun.communicate(timeout=PATIENCE)
        assert torchrun.returncode == 1 and time.monotonic() - begin < 45
        assert f"local_rank: {number}" in said and "Signal 9 (SIGKILL)" in said
    again = start(tmp_path, out)
    assert again.communicate(timeout=PATIENCE) and again.returncode == 0
    assert content_of(out) == content_of(tmp_path / "whole")
