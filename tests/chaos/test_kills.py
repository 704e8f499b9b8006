"""Kills: the family of a driver, and workers of Ray alone; benchmarks/kills.py has a hundred."""

import importlib.util
import random
import time
from pathlib import Path

import pytest

from tests.chaos.kills import FAMILY, WORKER, Moments, carry_out_whole, end_of, start
from tests.chaos.works import content_of, emptied

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.skipif(not HAS_RAY, reason="no ray")
def test_workers_of_ray_die_alone_and_then_all_at_once(tmp_path: Path) -> None:
    carry_out_whole("sweep", tmp_path, emptied(tmp_path / "whole"))
    moments, out = Moments(0, 0), emptied(tmp_path / "out")
    for whom, times in ((WORKER, 2), (FAMILY, 1)):
        life, end = start("ray", tmp_path, out), time.monotonic() + 120
        while times:
            assert time.monotonic() < end and life.process.is_alive(), "no worker to kill"
            busy = life.workers() and len(list(out.glob("runs/*/records.jsonl"))) < 6
            times -= bool(busy) and life.kill(whom, moments)
            time.sleep(random.Random(times).uniform(0, 0.5))
        if whom == WORKER:
            life.kill(FAMILY, moments)
    end_of(start("ray", tmp_path, out), 200)
    assert content_of(out) == content_of(tmp_path / "whole")
