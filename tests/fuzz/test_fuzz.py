"""Fuzzing, the short way: some damaged files of every kind, the same ones each time.

``make fuzz`` tries as many as one likes, from any seed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import Target, all_targets

CASES = 100
NAMES = (
    "cards",
    "weights",
    "run.json",
    "plan",
    "records",
    "small files of a run",
    "setups of fits",
    "references",
    "cards of measured models",
    "reports of records",
    "reports of averages",
    "reports of descriptions of runs",
    "reports of settings by hand",
    "reports of DomainBed",
    "lists of images, CSV",
    "lists of images, JSON",
    "tables",
    "tables, Parquet",
    "manifests of caches",
    "features",
    "archives",
    "images",
    "answers of a server",
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    with all_targets(tmp_path_factory.mktemp("fuzz")) as found:
        yield {target.name: target for target in found}


def test_every_target_is_tried(targets: dict[str, Target]) -> None:
    assert tuple(targets) == NAMES


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", NAMES)
def test_only_named_errors_come_out(targets: dict[str, Target], name: str) -> None:
    target = targets[name]
    quiet = settings(
        max_examples=CASES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    quiet(given(target.contents)(target.check))()
    assert target.cases >= CASES // 2
    assert len(target.outcomes) > 1 or "accepted" not in target.outcomes or name.startswith("small")


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    """The fuzzer itself: a traceback, a silent error and a leftover are failures."""

    def target(use: object) -> Target:
        return Target("x", None, use, tmp_path, ("file",))  # type: ignore[arg-type]

    def trace(_: bytes) -> None:
        raise KeyError("a")

    def silent(_: bytes) -> None:
        raise ValueError("")

    def unnamed(_: bytes) -> None:
        raise ValueError("something is wrong")

    with pytest.raises(KeyError):
        target(trace).check(b"")
    with pytest.raises(AssertionError, match="says nothing"):
        target(silent).check(b"")
    with pytest.raises(AssertionError, match="not named"):
        target(unnamed).check(b"")
    with pytest.raises(AssertionError, match="left behind"):
        target(lambda _: (tmp_path / "stray").touch()).check(b"")
