"""A run that ends with its best weights, by the held-out parts of its training domains."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from shoal.results.records import Record
from shoal.runs.run import Run
from shoal.training.checkpoints import Checkpoints
from tests.runs.small import carry_out, tiny_run
from tests.training.little import watching

LOSS = "held_out_loss"


def run_of(**changes: Any) -> Run:
    """Return a run that is best in its middle."""
    given = {"steps": 30, "record_every": 3, "lr": 0.003, "stop": "held-out"} | changes
    return tiny_run("erm", **given)


def all_records(path: Path, run: Run, **more: Any) -> list[Record]:
    """Carry the run out, and return the records as they came."""
    seen: list[Record] = []

    def keep(records: Sequence[Record]) -> None:
        seen[:] = records

    watcher = watching(records=keep)
    carry_out(path, run, watcher=watcher, machine={"predictions": True}, **more)
    return seen


def test_it_ends_with_the_weights_of_its_best_record(tmp_path: Path) -> None:
    run = run_of()
    seen = all_records(tmp_path / "best", run)
    losses = [record.extra[LOSS] for record in seen]
    best = losses.index(min(losses))
    assert 0 < best < len(seen) - 1
    kept = carry_out(tmp_path / "best", run)  # it is done, and has its records
    assert [record.step for record in kept.records] == [record.step for record in seen[: best + 1]]

    # A run that made no more updates has these weights, and says the same of every image.
    short = run_of(steps=seen[best].step + 1, stop="last")
    carry_out(tmp_path / "short", short, machine={"predictions": True})
    for file in ("model.safetensors", "logits.safetensors"):
        mine, its = (load_file(tmp_path / name / file) for name in ("best", "short"))
        assert mine.keys() == its.keys()
        for key, tensor in mine.items():
            assert torch.equal(tensor, its[key]), key
    for file in ("predictions.jsonl", "confusion.json"):
        mine, its = ((tmp_path / name / file).read_text() for name in ("best", "short"))
        assert mine == its

    # The loss is the mean over the training domains, of rows that were not trained on.
    logits = load_file(tmp_path / "best" / "logits.safetensors")
    plain = [
        float(
            functional.cross_entropy(
                logits[f"last/{name}/held_out"].double(), logits[f"labels/{name}/held_out"]
            )
        )
        for name in "ab"
    ]
    assert fmean(plain) == pytest.approx(losses[best], rel=2e-3)  # kept in half precision


@pytest.mark.parametrize("stopped_after", [3, 8])
def test_it_resumes_to_the_same_end(
    tmp_path: Path, stopped_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its best record and after it."""
    run = run_of()
    whole = all_records(tmp_path / "whole", run)
    losses = [record.extra[LOSS] for record in whole]
    assert 3 <= losses.index(min(losses)) < 8
    monkeypatch.setattr(Checkpoints, "due", lambda self: True)

    def stop(records: Sequence[Record]) -> None:
        if len(records) == stopped_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(
            tmp_path / "cut",
            run,
            watcher=watching(records=stop),
            machine={"predictions": True},
        )
    assert all_records(tmp_path / "cut", run) == whole
    for file in ("records.jsonl", "model.safetensors", "model.json", "logits.safetensors"):
        mine, its = ((tmp_path / name / file).read_bytes() for name in ("cut", "whole"))
        assert mine == its, file


def test_without_held_out_rows_it_ends_with_its_last_update(tmp_path: Path) -> None:
    run = run_of(steps=5, holdout=0.0)
    seen = all_records(tmp_path, run)
    assert seen[-1].step == 4
    assert LOSS not in seen[-1].extra
    assert carry_out(tmp_path, run).records[-1].step == 4
