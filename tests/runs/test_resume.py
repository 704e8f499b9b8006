"""A run that was stopped at any moment ends like one that never was, bit for bit."""

import random
from pathlib import Path

import pytest

from tests.runs.killing import content, finish_with_kills, timed, tiny_in


@pytest.mark.timeout(300)
def test_killed_runs_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    moments, kills, lives = random.Random(0), 0, 0
    whole = {}
    for algorithm in ("fishr", "dann"):
        seconds = timed(tmp_path / algorithm, tiny_in, algorithm)
        whole[algorithm] = content(tmp_path / algorithm), seconds
    while kills < 5:
        algorithm = ("fishr", "dann")[lives % 2]
        expected, seconds = whole[algorithm]
        path = tmp_path / f"killed-{lives}"
        kills += finish_with_kills(path, tiny_in, algorithm, moments, seconds, limit=6)
        assert content(path) == expected
        assert {"averages.jsonl", "logits.safetensors", "model.safetensors"} <= expected.keys()
        lives += 1
