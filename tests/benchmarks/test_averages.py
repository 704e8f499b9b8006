"""The cost of averages: a small measurement from its command to its file."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import averages
from shoal.training.averages import AveragePlan, Averages, Averaging

SMALL = "--device cpu --networks mnist-cnn --step eager --precision float32 --side 8 --batch 2"
LOSS = 0.3


def test_the_loss_of_swad_is_timed_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Averaging, "validation_loss", lambda _: time.sleep(LOSS))
    command = f"averages {SMALL} --images 10 --steps 120 --blocks 2 --out {tmp_path}"
    monkeypatch.setattr(sys, "argv", command.split())
    averages.main()
    (row,) = json.loads((tmp_path / "averages.json").read_text())["rows"]
    assert row["validation_images"] == 3 * 2
    assert row["validation_loss_s"] == pytest.approx(LOSS, rel=0.5)
    per_update = 1000 * LOSS / row["updates_in_a_block"]
    assert 0 < row["with_averages_ms"] < per_update, "a block has one loss, which is not its time"
    alone = Averages([torch.zeros(row["weights"])], AveragePlan(120))
    held = sum(tensor.nbytes for tensor in alone.state_dict().values())
    assert row["held_by_averages_gb"] == pytest.approx(held / 1e9, abs=1e-3)


def test_blocks_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"averages {SMALL} --images 10 --steps 120 --blocks 12"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(ValueError, match=r"12 blocks .* do not fit into 120 updates"):
        averages.main()
