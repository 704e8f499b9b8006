"""The overhead of Fishr at a tiny size: alternating methods, next to the paper's numbers."""

from typing import Any

import pytest
import torch

from shoal.experiments import overhead

TINY = overhead.Work(network="mnist-cnn", size=28, batch=2, rounds=3)


def test_medians_and_what_fishr_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    waiting = {"erm": 0.010, "fishr": 0.011}

    def timed(method: Any, *_: object) -> float:
        turns.append(type(method).__name__.lower())
        return waiting[turns[-1]] * (100 if len(turns) <= 10 else 1)

    monkeypatch.setattr(overhead, "_timed", timed)
    result = overhead.run(TINY, torch.device("cpu"))
    assert list(result["heads"]) == ["pacs", "domainnet"]
    pacs = result["heads"]["pacs"]
    # The first five rounds are not counted, and the methods alternate in going first.
    assert pacs["time"] == pytest.approx(10)
    assert turns[:4] in (["fishr", "erm", "erm", "fishr"], ["erm", "fishr", "fishr", "erm"])
    assert pacs["seconds"] == waiting
    assert pacs["memory"] is None and pacs["peak_bytes"] == {"erm": None, "fishr": None}
    assert pacs["paper"] == {"time": 2.7, "memory": 0.2}
    assert result["heads"]["domainnet"]["paper"] == {"time": 6.5, "memory": 7.0}


def test_an_update_changes_weights_and_the_penalty_acts() -> None:
    head, cpu = overhead.HEADS["pacs"], torch.device("cpu")
    method = overhead._method("fishr", head, TINY, cpu)
    found = overhead._batches(head, TINY, cpu)
    assert [(images.shape, labels.shape) for images, labels in found] == [
        ((2, 3, 28, 28), (2,))
    ] * 3
    assert overhead._timed(method, found, TINY) > 0
    assert int(method.steps) == 1
    assert bool(method.variances.active)
