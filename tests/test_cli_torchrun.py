"""``torchrun … -m shoal train``: two processes end with one's numbers, and one of them writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shoal.cli import main
from shoal.cli.processes import joined
from shoal.training.checkpoints import Checkpoints
from tests.datasets.pictures import photograph

PATIENCE = 100


def images(root: Path) -> Path:
    for number in range(18):
        domain, kind = "abc"[number % 3], ("cat", "dog")[number // 3 % 2]
        photograph(root / domain / kind / f"{number}.png", 230, 240, number)
    return root


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.mark.serial
def test_two_processes_train_what_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="no efficientnet_lite_pytorch")
    command = ["train", "--dataset", images(tmp_path / "data"), "--test-domain", "c"]
    command += ["--algorithm", "fishr", "--set", "batch_size=3", "warmup_steps=0"]
    command += ["--network", "efficientnet-lite0", "--steps", 2, "--record-every", 1]
    command += ["--holdout", 0.4, "--device", "cpu", "--json"]
    one, two = (
        [*map(str, command), "--out", str(tmp_path / name), "--cache", str(tmp_path / f"{name}-")]
        for name in ("one", "two")
    )
    source = Path(__file__).resolve().parent.parent / "src"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with subprocess.Popen(
        [sys.executable, *torchrun, "-m", "shoal", *two],
        env=os.environ
        | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as processes:
        try:
            assert main(one) == 0  # meanwhile
            stdout, stderr = processes.communicate(timeout=PATIENCE)
        finally:
            processes.kill()
    assert processes.returncode == 0, stderr[-3000:]
    # The last record, printed once.
    assert json.loads(stdout)["step"] == 1
    assert len(stdout.splitlines()) == 1
    records_of = [records(tmp_path / name) for name in ("one", "two")]
    for ours, theirs in zip(*records_of, strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert ours["terms"] == pytest.approx(theirs["terms"], rel=1e-5)
    mine, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert mine.keys() == other.keys()
    for key, tensor in mine.items():
        gap = (tensor.double() - other[key].double()).norm()
        assert gap <= 1e-4 * tensor.double().norm().clamp(min=1e-6), key
    capsys.readouterr()


def test_without_torchrun_there_is_one_process() -> None:
    with joined(torch.device("cpu")) as device:
        assert device == torch.device("cpu")
        assert not torch.distributed.is_initialized()


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(ValueError, match=r"has started process 2 .* 1 GPUs; give --nproc-per-node"),
        joined(torch.device("cuda")),
    ):
        pass


def test_checkpoints_that_another_process_writes_are_never_due(tmp_path: Path) -> None:
    assert not Checkpoints(tmp_path, "identity", every=0.0, writes=False).due()
    assert Checkpoints(tmp_path, "identity", every=0.0).due()
