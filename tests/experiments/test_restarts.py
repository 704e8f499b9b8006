"""Restarts on disk: interrupted and resumed, never trained twice, and shown in tables."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.experiments import restarts
from shoal.experiments.colored_mnist import METHODS, TABLES, Setup, Training
from shoal.experiments.restarts import RestartFolder, run, table, tables_of
from shoal.reference import published_rows

CPU = torch.device("cpu")
SETUP = Setup(examples=40, hidden=6, jump_step=4, updates=8)


class Calls:
    """A progress callback that remembers its calls, and can raise at one of them."""

    def __init__(self, at: int | None = None, error: type[BaseException] = KeyboardInterrupt):
        self.seen: list[tuple[str, int, int, int]] = []
        self.at, self.error = at, error

    def __call__(self, method: str, restart: int, done: int, total: int) -> None:
        self.seen.append((method, restart, done, total))
        if len(self.seen) == self.at:
            raise self.error


@pytest.fixture
def folder(tmp_path: Path) -> RestartFolder:
    return RestartFolder.open(tmp_path / "out", SETUP)


def train(
    folder: RestartFolder,
    progress: Callable[..., None] | None = None,
    methods: tuple[str, ...] = ("vrex",),
    count: int = 1,
    setup: Setup = SETUP,
) -> None:
    run(methods, count, setup, CPU, folder, progress or Calls())


def record(folder: RestartFolder, method: str = "vrex", restart: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.record(method, 0.25, restart).read_text())
    return found


def numbers(folder: RestartFolder, method: str = "vrex", restart: int = 0) -> dict[str, Any]:
    """Return a record without its seconds."""
    return {
        key: value for key, value in record(folder, method, restart).items() if key != "seconds"
    }


def undisturbed(tmp_path: Path, method: str = "vrex", restart: int = 0) -> dict[str, Any]:
    other = RestartFolder.open(tmp_path / "undisturbed", SETUP)
    train(other, methods=(method,), count=restart + 1)
    return numbers(other, method, restart)


def test_records(folder: RestartFolder) -> None:
    calls = Calls()
    train(folder, calls, methods=("erm", "vrex"), count=2)
    assert [(m, r) for m, r, done, _ in calls.seen if done == 8] == [
        *(("erm", 0), ("erm", 1), ("vrex", 0), ("vrex", 1))
    ]
    assert [done for m, r, done, _ in calls.seen if (m, r) == ("vrex", 1)] == list(range(1, 9))
    assert {total for *_, total in calls.seen} == {8}
    for method in ("erm", "vrex"):
        for restart in (0, 1):
            found = record(folder, method, restart)
            training = Training(METHODS[method], SETUP, CPU)
            training.start(restart)
            for _ in range(8):  # accuracies are those after the last update
                training.step()
            accuracies = training.accuracies()
            assert {key: found[key] for key in accuracies} == accuracies
            assert (found["method"], found["restart"], found["flip"]) == (method, restart, 0.25)
            assert found["torch"] == torch.__version__
            assert "CPU" in found["device"]
            assert found["seconds"] >= 0
    assert list((folder.path / "checkpoints").glob("*")) == []
    assert len(list((folder.path / "records").iterdir())) == 4


def test_each_share_of_flips_has_records_of_its_own(folder: RestartFolder) -> None:
    train(folder)
    assert RestartFolder.open(folder.path, replace(SETUP, flip=0.0)) == folder
    train(folder, setup=replace(SETUP, flip=0.0))
    assert folder.record("vrex", 0.0, 0) != folder.record("vrex", 0.25, 0)
    for flip in (0.0, 0.25):
        assert [found["flip"] for found in folder.records("vrex", flip, 10)] == [flip]


@pytest.mark.parametrize(
    "change",
    [{"examples": 41}, {"hidden": 7}, {"jump_step": 5}, {"updates": 9}, {"tf32": True}],
    ids=str,
)
def test_a_folder_of_another_setup_is_refused(
    folder: RestartFolder, change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="another setup") as caught:
        RestartFolder.open(folder.path, replace(SETUP, **change))
    assert str(folder.path) in str(caught.value)
    assert "choose another --out" in str(caught.value)
    assert RestartFolder.open(folder.path, SETUP) == folder


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 7])
def test_an_interrupted_run_resumes(folder: RestartFolder, tmp_path: Path, stop: int) -> None:
    """Before, at and after the jump."""
    with pytest.raises(KeyboardInterrupt):
        train(folder, Calls(at=stop))
    assert folder.checkpoint("vrex", 0.25, 0).exists()
    assert not folder.record("vrex", 0.25, 0).exists()
    calls = Calls()
    train(folder, calls)
    assert [done for *_, done, _ in calls.seen] == list(range(stop + 1, 9))
    assert numbers(folder) == undisturbed(tmp_path)
    assert not folder.checkpoint("vrex", 0.25, 0).exists()


def test_an_interrupted_second_restart_resumes(folder: RestartFolder, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(folder, Calls(at=8 + 6), count=2)
    calls = Calls()
    train(folder, calls, count=2)
    assert calls.seen == [("vrex", 0, 8, 8), ("vrex", 1, 7, 8), ("vrex", 1, 8, 8)]
    assert numbers(folder, restart=1) == undisturbed(tmp_path, restart=1)


def test_interrupted_twice(folder: RestartFolder, tmp_path: Path) -> None:
    for stop in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            train(folder, Calls(at=stop))
    calls = Calls()
    train(folder, calls)
    assert calls.seen[0][2] == 6
    assert numbers(folder) == undisturbed(tmp_path)


@pytest.mark.parametrize("after_update", [True, False])
def test_an_interrupt_in_the_middle_of_a_step(
    folder: RestartFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_update: bool
) -> None:
    """Ctrl-C can come at any moment, even between an update and its count."""
    plain = Training._step

    def interrupted(self: Training) -> None:
        if self.done == 3 and not after_update:
            raise KeyboardInterrupt
        plain(self)
        if self.done == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(folder)
    weights = final_weights(monkeypatch, lambda: train(folder))
    expected = final_weights(monkeypatch, lambda: undisturbed(tmp_path))
    for mine, theirs in zip(weights, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert numbers(folder) == undisturbed(tmp_path)


def final_weights(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]
) -> list[torch.Tensor]:
    """Return the weights whose accuracies are read while ``action`` runs."""
    seen: list[torch.Tensor] = []
    plain = Training.accuracies

    def look(self: Training) -> dict[str, float]:
        seen[:] = [p.detach().clone() for p in self.model.parameters()]
        return plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "accuracies", look)
        action()
    return seen


def test_a_crash_loses_only_the_steps_after_the_last_checkpoint(
    folder: RestartFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "CHECKPOINT_EVERY", 0.0)
    with pytest.raises(RuntimeError):
        train(folder, Calls(at=6, error=RuntimeError))
    calls = Calls()
    train(folder, calls)
    assert calls.seen[0][2] == 6  # the fifth was saved
    assert numbers(folder) == undisturbed(tmp_path)


def test_checkpoints_are_not_written_at_every_step(
    folder: RestartFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[object] = []
    monkeypatch.setattr(restarts, "save_tensors", lambda *what: saved.append(what))
    train(folder)
    assert saved == []
    assert restarts.CHECKPOINT_EVERY >= 10


def test_a_finished_restart_is_not_trained_again(
    folder: RestartFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(folder)
    before = folder.record("vrex", 0.25, 0).read_bytes()
    changed = folder.record("vrex", 0.25, 0).stat().st_mtime_ns

    def refuse(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(restarts, "Training", refuse)
    calls = Calls()
    train(folder, calls)
    assert calls.seen == [("vrex", 0, 8, 8)]
    assert folder.record("vrex", 0.25, 0).read_bytes() == before
    assert folder.record("vrex", 0.25, 0).stat().st_mtime_ns == changed


def test_only_missing_restarts_are_trained(folder: RestartFolder) -> None:
    train(folder, count=3)
    folder.record("vrex", 0.25, 1).unlink()
    calls = Calls()
    train(folder, calls, count=3)
    assert [told for told in calls.seen if told[2] < 8] == [
        ("vrex", 1, done, 8) for done in range(1, 8)
    ]


def test_an_unknown_method_is_refused_before_anything_is_trained(folder: RestartFolder) -> None:
    calls = Calls()
    with pytest.raises(ValueError, match="unknown method 'v-rex'; did you mean 'vrex'"):
        train(folder, calls, methods=("erm", "v-rex"))
    assert calls.seen == []


@pytest.mark.parametrize("damage", ["garbage", "half", "empty"])
def test_a_damaged_checkpoint_is_named(folder: RestartFolder, damage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(folder, Calls(at=3))
    file = folder.checkpoint("vrex", 0.25, 0)
    content = file.read_bytes()
    damaged = {"garbage": b"not a checkpoint", "half": content[: len(content) // 2], "empty": b""}
    file.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match="damaged") as caught:
        train(folder)
    assert str(file) in str(caught.value)
    file.unlink()  # as the message advises
    train(folder)
    assert folder.record("vrex", 0.25, 0).exists()


def test_a_damaged_record_is_named(folder: RestartFolder) -> None:
    train(folder)
    file = folder.record("vrex", 0.25, 0)
    file.write_text(file.read_text()[:40])
    with pytest.raises(ValueError, match="not valid JSON") as caught:
        table("table:cmnist_25", 1, 0.25, folder)
    assert str(file) in str(caught.value)


def test_a_damaged_setup_is_named(folder: RestartFolder) -> None:
    (folder.path / "setup.json").write_text("{")
    with pytest.raises(ValueError, match=r"setup\.json is not valid JSON"):
        RestartFolder.open(folder.path, SETUP)


@pytest.mark.parametrize("tf32", [False, True])
def test_precision_of_products_is_the_setups_and_then_restored(tmp_path: Path, tf32: bool) -> None:
    before = torch.get_float32_matmul_precision()
    setup = replace(SETUP, tf32=tf32)
    seen = []

    def look(*_: object) -> None:
        seen.append(torch.get_float32_matmul_precision())
        if len(seen) == 3:
            raise KeyboardInterrupt

    try:
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(KeyboardInterrupt):
            train(RestartFolder.open(tmp_path, setup), look, setup=setup)
        assert set(seen) == {"high" if tf32 else "highest"}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_restarts_side_by_side() -> None:
    """Five on a GPU, unless a covariance of all weights needs the memory; one on a CPU."""
    cuda = torch.device("cuda")
    alone = {method for method in METHODS if restarts.side_by_side(method, cuda) == 1}
    assert alone == {"covariance-theta", "covariance-phi"}
    assert {restarts.side_by_side(m, cuda) for m in set(METHODS) - alone} == {5}
    assert {restarts.side_by_side(m, CPU) for m in METHODS} == {1}


@pytest.mark.parametrize(("count", "groups"), [(3, [[0, 1], [2]]), (4, [[0, 1], [2, 3]])])
def test_restarts_that_share_a_device_have_the_records_they_have_alone(
    folder: RestartFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    groups: list[list[int]],
) -> None:
    monkeypatch.setattr(restarts, "side_by_side", lambda *_: 2)
    calls = Calls()
    train(folder, calls, count=count)
    order = [restart for _, restart, done, _ in calls.seen if done == 1]
    assert order == [restart for group in groups for restart in group]
    assert [told[1] for told in calls.seen[:4]] == [0, 1, 0, 1]
    monkeypatch.setattr(restarts, "side_by_side", lambda *_: 1)
    for restart in range(count):
        assert numbers(folder, restart=restart) == undisturbed(tmp_path, restart=restart)


def test_restarts_that_share_a_device_resume_separately(
    folder: RestartFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "side_by_side", lambda *_: 2)
    with pytest.raises(KeyboardInterrupt):
        train(folder, Calls(at=7), count=2)  # the first did four steps, the second three
    calls = Calls()
    train(folder, calls, count=2)
    assert [told[1:3] for told in calls.seen[:3]] == [(0, 5), (1, 4), (0, 6)]
    monkeypatch.setattr(restarts, "side_by_side", lambda *_: 1)
    for restart in (0, 1):
        assert numbers(folder, restart=restart) == undisturbed(tmp_path, restart=restart)


# Tables


def write(
    folder: RestartFolder, method: str, flip: float, values: list[tuple[float, float, float]]
) -> None:
    for restart, (train_, test, gray) in enumerate(values):
        file = folder.record(method, flip, restart)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"train": train_, "test": test, "gray": gray}))


def test_table_has_means_and_population_deviations_in_percent(folder: RestartFolder) -> None:
    write(folder, "irm", 0.25, [(0.5, 0.1, 0.7), (0.7, 0.1, 0.1), (0.6, 0.4, 0.1)])
    rows = {row["method"]: row for row in table("table:cmnist_25", 10, 0.25, folder)}
    assert tuple(rows) == TABLES["table:cmnist_25"]
    cells = rows["irm"]["cells"]
    assert cells["train"]["mean"] == pytest.approx(60)
    assert cells["train"]["std"] == pytest.approx((200 / 3) ** 0.5)  # 10 with n − 1
    assert cells["test"]["mean"] == pytest.approx(20)
    assert cells["test"]["std"] == pytest.approx(200**0.5)
    assert cells["gray"]["mean"] == pytest.approx(30)
    assert {cell["count"] for cell in cells.values()} == {3}
    assert rows["irm"]["name"] == "IRM"
    assert rows["irm"]["paper"] == {"train": [71.0, 0.5], "test": [65.6, 1.8], "gray": [66.1, 0.2]}


def test_table_has_none_for_missing_runs(folder: RestartFolder) -> None:
    write(folder, "irm", 0.25, [(0.5, 0.1, 0.7)])
    rows = {row["method"]: row for row in table("table:cmnist_25", 10, 0.25, folder)}
    assert rows["irm"]["cells"]["train"] == {"mean": 50.0, "std": 0.0, "count": 1}
    assert rows["vrex"]["cells"] == {"train": None, "test": None, "gray": None}
    assert rows["vrex"]["paper"]["test"] == [67.2, 1.5]


def test_table_takes_the_given_restarts_and_flips(folder: RestartFolder) -> None:
    write(folder, "erm", 0.25, [(0.2, 0.2, 0.2), (0.4, 0.4, 0.4), (0.9, 0.9, 0.9)])
    write(folder, "erm", 0.0, [(0.8, 0.8, 0.8)])
    (first, *_) = table("table:cmnist_25", 2, 0.25, folder)
    assert first["cells"]["test"]["mean"] == pytest.approx(30)
    (first, *_) = table("table:cmnist_0", 2, 0.0, folder)
    assert first["cells"]["test"]["mean"] == pytest.approx(80)
    assert first["paper"]["test"] == [91.8, 0.2]


@pytest.mark.parametrize("flip", [0.25, 0.0])
def test_every_row_has_its_own_cells_of_the_paper(folder: RestartFolder, flip: float) -> None:
    paper = published_rows("table:cmnistend", flip)
    rows = {row["method"]: row for row in table("table:cmnistend", 10, flip, folder)}
    # The paper's covariance on ω is the one of the released code.
    assert rows["covariance-omega-released"]["paper"] == paper["covariance-omega"]
    assert "paper" not in rows["covariance-omega"]
    for method, cells in paper.items():
        if method != "covariance-omega":
            assert rows[method]["paper"] == cells
    assert rows["covariance-theta"]["paper"] is None
    assert set(rows) == set(paper) | {"covariance-omega-released"}


@pytest.mark.parametrize(
    ("methods", "flip", "labels"),
    [
        (["erm"], 0.25, ["table:cmnist_25"]),
        (["erm"], 0.0, ["table:cmnist_0"]),
        (["covariance-phi"], 0.25, ["table:cmnistend"]),
        (["covariance-phi"], 0.0, ["table:cmnistend"]),
        (["vrex", "uncentered-omega"], 0.25, ["table:cmnist_25", "table:cmnistend"]),
        (["fishr-omega"], 0.0, ["table:cmnist_0", "table:cmnistend"]),
        ([], 0.25, []),
    ],
)
def test_tables_of(methods: list[str], flip: float, labels: list[str]) -> None:
    assert tables_of(methods, flip) == labels
