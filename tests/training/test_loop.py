"""The loop: when it records, what the records say, and that a stopped training goes on exactly."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.algorithms import ALGORITHMS, Optimisation
from shoal.algorithms.base import Algorithm
from shoal.catalogue import StepKind
from shoal.results.records import Record
from shoal.training import checkpoints, loop
from shoal.training.checkpoints import Checkpoints
from shoal.training.loop import Schedule, train
from shoal.training.step import Update
from shoal.training.watcher import Progress
from tests.algorithms.test_contract import make

from .little import training, watching
from .test_evaluation import forgetful

SCHEDULE = Schedule(11, 4)


# When records are made


@pytest.mark.parametrize(
    ("steps", "every", "count", "last"),
    [
        (5001, 100, 51, [4900, 5000]),  # MNIST
        (5001, 300, 18, [4800, 5000]),  # the large sets
        (5001, 1000, 6, [4000, 5000]),  # DomainNet
        (5000, 300, 18, [4800, 4999]),
        (4801, 300, 17, [4500, 4800]),  # the last of both rules: once
        (1, 300, 1, [0]),
        (2, 1, 2, [0, 1]),
    ],
)
def test_records_follow_domainbed(steps: int, every: int, count: int, last: list[int]) -> None:
    schedule = Schedule(steps, every)
    after = [step for step in range(steps) if schedule.records_after(step)]
    assert after[0] == 0
    assert len(after) == count
    assert after[-2:] == last
    before = -1
    for step in after:
        assert schedule.since_record(step) == step - before
        before = step


@pytest.mark.parametrize(
    ("steps", "every", "wanted"),
    [
        (5001, 100, [*range(0, 5000, 300), 5000]),
        (5001, 300, [*range(0, 5000, 300), 5000]),  # 18 records: all of them
        (2001, 100, [*range(0, 2001, 200)]),  # 21 records
        (1, 300, [0]),
    ],
)
def test_averages_are_measured_at_twenty_records_at_most(
    steps: int, every: int, wanted: list[int]
) -> None:
    schedule = Schedule(steps, every)
    records = filter(schedule.records_after, range(steps))
    assert [step for step in records if schedule.averages_after(step)] == wanted


def state_of(update: Update) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in update.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [key for key in one if not torch.equal(one[key], other[key])]
    assert not different


def test_records(tmp_path: Path) -> None:
    update, evaluate = training("fishr")
    seen: list[list[Record]] = []
    records, timing = train(
        update,
        evaluate,
        SCHEDULE,
        "eager",
        watcher=watching(records=lambda r: seen.append(list(r))),
    )
    assert [record.step for record in records] == [0, 4, 8, 10]
    assert [len(some) for some in seen] == [0, 1, 2, 3, 4]
    assert seen[-1] == records
    last = records[-1]
    assert list(last.to_json()) == ["step", "terms", "accuracy", "calibration_error"]
    assert list(last.terms) == ["loss", "risk", "penalty"]
    found = evaluate()
    assert {(d, s) for d, splits in last.accuracy.items() for s in splits} == set(found)
    for (domain, split), outcome in found.items():
        assert last.accuracy[domain][split] == outcome.accuracy
        assert last.calibration_error[domain][split] == outcome.calibration_error
    lines = [json.dumps(record.to_json()) for record in records]
    assert [Record.from_json(json.loads(line)) for line in lines] == records
    assert timing.updates == 11
    assert min(timing.preparing, timing.updating, timing.evaluating) > 0
    assert update.algorithm.steps == 11


@pytest.mark.parametrize("name", ["fishr", "dann", "erm"])
def test_terms_are_means_since_the_last_record(name: str) -> None:
    """Exactly: a plain mean of float64 over the terms of every update."""
    plain, _ = training(name)
    terms: list[dict[str, Tensor]] = []
    for _ in range(SCHEDULE.steps):
        terms.append(plain.algorithm.update(plain.batches()))
    update, evaluate = training(name)
    records, _ = train(update, evaluate, SCHEDULE, "eager")
    begin = 0
    for record in records:
        end = record.step + 1
        for key, mean in record.terms.items():
            total = 0.0
            for one in terms[begin:end]:
                total += float(one[key])
            assert mean == total / (end - begin)
        assert record.terms.keys() == terms[0].keys()
        begin = end
    same(plain.algorithm.state_dict(), update.algorithm.state_dict())


def test_an_evaluation_changes_nothing() -> None:
    often, seldom = (training("fishr", lr=0.02) for _ in range(2))
    first, _ = train(*often, Schedule(9, 1), "eager")
    second, _ = train(*seldom, Schedule(9, 100), "eager")
    same(state_of(often[0]), state_of(seldom[0]))
    assert first[-1].accuracy == second[-1].accuracy
    assert [record.step for record in second] == [0, 8]


# A loss that is not finite


def break_at(step: int, algorithm: Algorithm) -> None:
    """From this step on, what the network says is no number."""

    def hook(_: Any, __: Any, logits: Tensor) -> Tensor:
        return torch.where(algorithm.steps >= step, torch.nan, logits)

    algorithm.model.classifier.register_forward_hook(hook)


def test_nan_stops_with_the_methods_message_and_keeps_the_records() -> None:
    update, evaluate = training("fishr")
    break_at(6, update.algorithm)
    seen: list[list[Record]] = []
    with pytest.raises(FloatingPointError) as caught:
        train(
            update,
            evaluate,
            SCHEDULE,
            "eager",
            watcher=watching(records=lambda r: seen.append(list(r))),
        )
    assert str(caught.value) == (
        "Fishr: loss was not finite at step 6, and no later step has moved a weight; try a smaller "
        "learning rate or penalty weight"
    )
    assert [record.step for record in seen[-1]] == [0, 4]
    whole, evaluate = training("fishr")
    records, _ = train(whole, evaluate, SCHEDULE, "eager")
    assert seen[-1] == records[:2]


# Stopped and gone on


class At(Checkpoints):
    """Takes checkpoints after these many updates, and knows when to stop."""

    def __init__(self, folder: Path, update: Update, *steps: int) -> None:
        super().__init__(folder, "a run")
        self.update, self.steps = update, steps

    def due(self) -> bool:
        if self.update.algorithm.device.type == "cuda":
            torch.cuda.synchronize()  # updates have a stream of their own
        return int(self.update.algorithm.steps) in self.steps


class Stopped(Exception):
    pass


def stop_after(step: int) -> Callable[[list[Record]], None]:
    def recorded(records: list[Record]) -> None:
        if records and records[-1].step >= step:
            raise Stopped

    return recorded


def stopped_and_gone_on(
    folder: Path, build: Callable[[], tuple[Update, Any]], at: int = 6, kind: StepKind = "eager"
) -> tuple[Update, list[Record], list[list[Record]]]:
    """Stop a training after the record of step 8, begin anew from the checkpoint before."""
    update, evaluate = build()
    with pytest.raises(Stopped):
        train(
            update,
            evaluate,
            SCHEDULE,
            kind,
            At(folder, update, at),
            watcher=watching(records=stop_after(8)),
        )
    update, evaluate = build()
    seen: list[list[Record]] = []
    records, timing = train(
        update,
        evaluate,
        SCHEDULE,
        kind,
        At(folder, update),
        watcher=watching(records=lambda r: seen.append(list(r))),
    )
    assert timing.updates == SCHEDULE.steps - at
    return update, records, seen


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_goes_on_exactly(name: str, tmp_path: Path) -> None:
    """Every bit of state, and every digit of every record."""
    whole, evaluate = training(name)
    expected, _ = train(whole, evaluate, SCHEDULE, "eager")
    update, records, seen = stopped_and_gone_on(tmp_path, lambda: training(name))
    same(state_of(update), state_of(whole))
    lines, expected_lines = (
        [json.dumps(r.to_json()) for r in some] for some in (records, expected)
    )
    assert lines == expected_lines
    assert [len(some) for some in seen] == [2, 3, 4]  # those of the checkpoint come first


OPTIMISATIONS = {
    "adamw": Optimisation("adamw", clip=0.5),
    "sgd": Optimisation("sgd", schedule="cosine", steps=11),
    "cosine": Optimisation(schedule="cosine", steps=11, clip=0.1),
}


@pytest.mark.parametrize("chosen", OPTIMISATIONS)
@pytest.mark.parametrize("name", ["erm", "fishr"])
def test_dropout_batch_norm_and_any_optimiser_go_on_exactly(
    name: str, chosen: str, tmp_path: Path
) -> None:
    def build() -> tuple[Update, Any]:
        kind = ALGORITHMS[name]
        hparams = make(name, lr=0.02, penalty_weight=1.0).hparams
        algorithm = kind(forgetful(), 3, hparams)
        algorithm.optimise(OPTIMISATIONS[chosen])
        return training(algorithm)

    whole, evaluate = build()
    expected, _ = train(whole, evaluate, SCHEDULE, "eager")
    update, records, _ = stopped_and_gone_on(tmp_path, build)
    same(state_of(update), state_of(whole))
    assert records == expected
    assert int(whole.state_dict()["algorithm.model.features.dropout.draws.count"]) == 11


@pytest.mark.parametrize("places", [("host", "host"), ("host", "device"), ("device", "host")])
def test_images_may_lie_elsewhere_when_it_goes_on(places: tuple[str, str], tmp_path: Path) -> None:
    whole, evaluate = training("fishr")
    expected, _ = train(whole, evaluate, SCHEDULE, "eager")
    wheres = iter(places)
    update, records, _ = stopped_and_gone_on(
        tmp_path, lambda: training("fishr", where=next(wheres))
    )
    same(state_of(update), state_of(whole))
    assert records == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("where", ["device", "host"])
@pytest.mark.parametrize("name", ["erm", "fishr", "dann"])
def test_captured_updates_go_on_exactly(name: str, where: str, tmp_path: Path) -> None:
    def build() -> tuple[Update, Any]:
        return training(name, where, device=torch.device("cuda"))

    whole, evaluate = build()
    expected, _ = train(whole, evaluate, SCHEDULE, "graph")
    update, records, _ = stopped_and_gone_on(tmp_path, build, kind="graph")
    same(state_of(update), state_of(whole))
    assert records == expected


def test_an_early_checkpoint_knows_the_sums_of_terms(tmp_path: Path) -> None:
    """Of step 2, between two records, and of step 9, between the last ones."""
    whole, evaluate = training("mixup")
    expected, _ = train(whole, evaluate, SCHEDULE, "eager")
    for at in (1, 2, 4, 5, 8):
        update, records, _ = stopped_and_gone_on(
            tmp_path / str(at), lambda: training("mixup"), at=at
        )
        assert records == expected
        same(state_of(update), state_of(whole))


def test_no_checkpoint_after_the_last_update(tmp_path: Path) -> None:
    update, evaluate = training()
    mine = At(tmp_path / "c", update, 11)
    train(update, evaluate, SCHEDULE, "eager", mine)
    assert mine.latest() is None


def test_checkpoints_are_whole_when_training_fails(tmp_path: Path) -> None:
    """Whatever ends it, what was being written is written."""
    update, evaluate = training()
    break_at(6, update.algorithm)
    with pytest.raises(FloatingPointError):
        train(update, evaluate, SCHEDULE, "eager", At(tmp_path, update, 5))
    found = Checkpoints(tmp_path, "a run").latest()
    assert found is not None
    assert (found["step"], len(found["records"])) == (5, 2)


def test_interrupted_in_the_middle_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written to its end, and is what the next go begins with."""
    write = checkpoints.write_aside
    begun, interrupted = threading.Event(), threading.Event()

    def slow(path: Path, content: Any) -> None:
        begun.set()
        assert interrupted.wait(20)
        time.sleep(0.05)
        write(path, content)

    def interrupt(progress: Progress) -> None:
        if begun.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write_aside", slow)
    monkeypatch.setattr(loop, "LOOK", 0.0)
    update, evaluate = training()
    with pytest.raises(KeyboardInterrupt):
        train(
            update,
            evaluate,
            Schedule(10_000, 5000),
            "eager",
            At(tmp_path, update, 5),
            watching(progress=interrupt),
        )
    found = Checkpoints(tmp_path, "a run").latest()
    assert found is not None
    assert found["step"] == 5


def test_a_checkpoint_of_other_code_is_told(tmp_path: Path) -> None:
    update, _ = training("erm")
    mine = At(tmp_path, update)
    mine.take(5, {"update": update.state_dict(), "records": []})
    mine.close()
    other, evaluate = training("dann")
    with pytest.raises(ValueError, match=r"checkpoint of step 5 does not fit .* delete the check"):
        train(other, evaluate, SCHEDULE, "eager", mine)


def test_a_full_disk_ends_it_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, evaluate = training()
    mine = Checkpoints(tmp_path, "a run", every=0.0)
    mine.take(3, {"update": update.state_dict(), "records": []})
    mine.close()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_aside", full)
    with pytest.raises(OSError, match="No space left on device; the one of step 3 is whole"):
        train(update, evaluate, SCHEDULE, "eager", mine)


# What is told meanwhile


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK", 0.0)
    update, evaluate = training()
    told: list[Progress] = []
    records, _ = train(update, evaluate, SCHEDULE, "eager", watcher=watching(progress=told.append))
    assert [one.done for one in told] == list(range(12))
    assert {one.steps for one in told} == {11}
    first, last = told[0], told[-1]
    assert (first.rate, first.seconds_left, first.record) == (0.0, None, None)
    assert last.rate > 0
    assert last.seconds_left == 0
    assert last.record == records[-1]
    assert told[3].record == records[0]
    assert told[3].seconds_left is not None and told[3].seconds_left > 0


def test_it_looks_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK", 1000.0)
    update, evaluate = training()
    told: list[Progress] = []
    train(update, evaluate, SCHEDULE, "eager", watcher=watching(progress=told.append))
    assert [one.done for one in told] == [0, 1, 5, 9, 11]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that only a call of this moves, and every update, by 2 s."""
    now, run = [0.0], Update.forward

    def passes(seconds: float) -> None:
        now[0] += seconds

    def slow(self: Update) -> None:
        passes(2.0)
        run(self)

    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Update, "forward", slow)
    return passes


def test_the_rate_is_of_updates_and_the_time_left_of_everything(
    passes: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation takes 10 s, and the first one 30."""
    update, evaluate = training(size=5)
    say = type(evaluate).__call__

    def slower(self: Any) -> Any:
        passes(10.0 if told[-1].done else 30.0)
        return say(self)

    monkeypatch.setattr(type(evaluate), "__call__", slower)
    told: list[Progress] = []
    _, timing = train(
        update, evaluate, Schedule(4, 2), "eager", watcher=watching(progress=told.append)
    )
    assert told[-1].rate == 3 * 5 / 2
    assert [(one.done, one.seconds_left) for one in told] == [
        (0, None),
        (1, 3 * 2.0 + 2 * 30.0),  # nothing else is known of evaluations
        (2, 2 * 2.0 + 2 * 30.0),
        (3, 2.0 + 10.0),
        (4, 0.0),
    ]
    assert (timing.updating, timing.evaluating) == (8.0, 50.0)


def test_the_time_left_counts_averages_before_the_first_is_measured(
    passes: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation takes 10 s, and what else a record has 1 s; there are two averages."""
    update, evaluate = training(size=5)
    say = type(evaluate).__call__
    monkeypatch.setattr(type(evaluate), "__call__", lambda self: (passes(10.0), say(self))[1])
    averaging = SimpleNamespace(
        names=["sma", "half"],
        begin=lambda _: None,
        after_update=lambda *_: None,
        record=lambda _: passes(20.0),
    )
    told: list[Progress] = []
    train(
        update,
        evaluate,
        Schedule(4, 2),
        "eager",
        watcher=watching(progress=told.append),
        extra_metrics=lambda: (passes(1.0), {})[1],
        averaging=averaging,  # type: ignore[arg-type]
    )
    assert [(one.done, one.seconds_left) for one in told] == [
        (0, None),
        (1, 3 * 2.0 + 2 * (11.0 + 20.0)),
        (2, 2 * 2.0 + 2 * (11.0 + 20.0)),
        (3, 2.0 + 11.0 + 20.0),
        (4, 0.0),
    ]
