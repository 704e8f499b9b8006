"""Averages of weights: SMA, the second half and SWAD, against means of all weights kept."""

import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import ALGORITHMS
from shoal.catalogue import AVERAGES, StepKind
from shoal.micro_batches import in_micro_batches
from shoal.randomness import Draws
from shoal.results.records import Record
from shoal.training.averages import (
    END_WINDOW,
    START_WINDOW,
    STATISTICS,
    TOLERANCE,
    UNREACHED,
    AveragePlan,
    Averages,
    Averaging,
    swad_window,
)
from shoal.training.batches import Batches, Normalise, scaled
from shoal.training.checkpoints import Checkpoints
from shoal.training.evaluation import Evaluation
from shoal.training.loop import Schedule, train
from shoal.training.step import Update
from shoal.training.watcher import Progress, Watcher
from shoal.weight_average import StoredWeights, use_weights

from .cut import large
from .little import CPU, averages_of_training, placed, training, watching

# The example of the facts: evaluations 0, 1, 2 …
EXAMPLE = [2.0, 1.0, 0.7, 0.5, 0.42, 0.40, 0.41, 0.43, 0.42, 0.44, 0.45, 0.47, 0.50]
EXAMPLE += [0.56, 0.6, 0.62, 0.65, 0.7, 0.8]


def slow_window(losses: Sequence[float], first: int = 0) -> tuple[int, float, int] | None:
    """Return SWAD's start, threshold and last averaged evaluation, by its definition in words.

    Args:
        first: the evaluation at which the search begins.
    """
    for now in range(first + START_WINDOW - 1, len(losses)):
        seen = losses[now - START_WINDOW + 1 : now + 1]
        if seen[0] <= min(seen):
            break
    else:
        return None
    converged = now - START_WINDOW + 1
    threshold = TOLERANCE * sum(seen) / len(seen)
    start = converged
    for earlier in range(converged - 1, converged - 1 - (END_WINDOW - START_WINDOW), -1):
        if earlier < first or losses[earlier] > threshold:
            break
        start = earlier
    for now in range(converged, len(losses)):
        if now + 1 >= END_WINDOW and min(losses[now - END_WINDOW + 1 : now + 1]) > threshold:
            if now - END_WINDOW == start:  # no update lies between them
                return slow_window(losses, now)
            return start, threshold, now - END_WINDOW
    return start, threshold, len(losses) - 1


def curve(kind: str, seed: int) -> list[float]:
    """Return losses that begin to rise early, late, never, or are soon infinite.

    Others jump after the first evaluation and stay there, or always fall.
    """
    chance = random.Random(f"{kind} {seed}")
    if kind == "falling":
        return [2.0 * 0.9**k for k in range(51)]
    if kind == "jumping":
        return [0.2, *(1 + loss for loss in curve("late", seed)[1:])]
    turn = {"early": 8, "late": 30, "never": 99, "dying": 12}[kind]
    losses = []
    for k in range(51):
        loss = 0.4 + 2.0 * math.exp(-k / 3) + 0.05 * max(0, k - turn)
        losses.append(loss * (1 + 0.1 * chance.random()))
    if kind == "dying":
        losses[20:] = [math.inf] * len(losses[20:])
    return losses


KINDS = {"early": 2, "late": 2, "never": 1, "dying": 2, "jumping": 1, "falling": 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_swad_starts_and_ends_as_defined(kind: str, seed: int) -> None:
    losses = curve(kind, seed)
    ended = set()
    for count in range(len(losses) + 1):
        ours, slow = swad_window(losses[:count]), slow_window(losses[:count])
        assert (ours is None) == (slow is None)
        if ours is not None and slow is not None:
            last = count - 1 if ours.end is None else ours.end
            assert (ours.start, ours.threshold, last) == slow
            ended.add(ours.end)
    assert len(ended) == KINDS[kind], "a curve that does what its name says"


def test_swad_begins_again_after_a_window_without_updates() -> None:
    """The loss before a penalty acts can be the smallest; what follows is another valley."""
    losses = [0.2] + [1.0] * 6
    window = swad_window(losses[:-1])
    assert window is not None and (window.start, window.last, window.end) == (0, 0, None)
    assert swad_window(losses) is None
    window = swad_window([*losses, 0.9, 1.0, 1.0])
    assert window is not None and (window.start, window.last, window.end) == (6, 9, None)
    assert window.threshold == pytest.approx(1.3 * (0.9 + 2.0) / 3)


def test_swad_on_the_worked_example() -> None:
    window = swad_window(EXAMPLE)
    assert window is not None
    assert (window.start + 1, window.end) == (4, 12)
    assert window.threshold == pytest.approx(0.5373, abs=1e-4)
    before = swad_window(EXAMPLE[:-1])
    assert before is not None and before.end is None


@pytest.mark.parametrize(
    ("steps", "warmup", "sma", "half"),
    [(5001, 0, 98, 2500), (5001, 1500, 1498, 2500), (1001, 1500, 498, 500), (120, 0, 58, 60)],
)
def test_the_plan(steps: int, warmup: int, sma: int, half: int) -> None:
    plan = AveragePlan(steps, warmup)
    assert (plan.sma_start, plan.half_start) == (sma, half)
    covered = [k for end, start in plan.segments.items() for k in range(start, end + 1)]
    assert covered == list(range(plan.first, steps)), "every update is in one segment"


def test_a_short_run_has_no_swad() -> None:
    assert AveragePlan(100).evaluated == ()
    assert len(AveragePlan(120).evaluated) == 13
    assert AveragePlan(5001, 1500).evaluated[:2] == (1500, 1600)
    assert AveragePlan(5001, 4200).evaluated == ()


def walk(steps: int, seed: int = 0) -> list[list[Tensor]]:
    """Return the weights after every update, of two tensors, one of them channels-last."""
    draws = torch.Generator().manual_seed(seed)
    first = torch.randn(4, 3, 2, 2, dtype=torch.float64, generator=draws)
    weights = [first.to(memory_format=torch.channels_last), torch.zeros(5, dtype=torch.float64)]
    found = []
    for _ in range(steps):
        weights = [w + torch.randn(w.shape, dtype=w.dtype, generator=draws) for w in weights]
        found.append(weights)
    return found


def mean_of(weights: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(tensors)).mean(0) for tensors in zip(*weights, strict=True)]


def follow(
    path: Sequence[Sequence[Tensor]], plan: AveragePlan, losses: Sequence[float]
) -> tuple[Averages, list[Tensor]]:
    """Return the averages of weights that take this path, checked at many updates."""
    live = [tensor.clone() for tensor in path[0]]
    averages = Averages(live, plan)
    coming = iter(losses)
    seen: list[float] = []
    for step, weights in enumerate(path):
        for tensor, value in zip(live, weights, strict=True):
            tensor.copy_(value)
        averages.add(step)
        if step in plan.evaluated:
            seen.append(next(coming))
        if step in plan.segments or step in plan.evaluated:
            averages.end_segment(step, seen[-1] if step in plan.evaluated else None)
        if step % 7 == 0 or step >= plan.steps - 2:
            check(averages, path, plan, seen, step)
    return averages, live


def check(
    averages: Averages,
    path: Sequence[Sequence[Tensor]],
    plan: AveragePlan,
    seen: Sequence[float],
    step: int,
) -> None:
    expected: dict[str, range] = {}
    if step >= plan.sma_start:
        expected["sma"] = range(plan.sma_start, step + 1)
    if step >= plan.half_start:
        expected["half"] = range(plan.half_start, step + 1)
    about: dict[str, int | bool | None] = {"converged": False, "t_s": None, "t_e": None}
    at = plan.evaluated
    if slow := slow_window(seen):
        expected["swad"] = range(at[slow[0]] + 1, at[slow[2]] + 1)
        about["converged"], about["t_s"] = True, at[slow[0]]
        about["t_e"] = at[slow[2]] if slow[2] < len(seen) - 1 else None
    elif len(seen) > 1:
        expected["swad"] = range(at[len(seen) - 2] + 1, at[len(seen) - 1] + 1)
    for name in ("sma", "half", "swad"):
        found = averages.current(name, step)
        if name not in expected:
            assert found is None, (name, step)
            continue
        assert found is not None and found.updates == expected[name], (name, step)
        assert found.about == (about if name == "swad" else {})
        torch.testing.assert_close(found.weights, mean_of([path[k] for k in found.updates]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [510, 502])
def test_averages_are_means_of_the_weights_of_their_updates(kind: str, steps: int) -> None:
    """With 510 updates, the second half begins between two evaluations."""
    plan = AveragePlan(steps, 40)
    assert (plan.half_start - 1 in plan.evaluated) == (steps == 502)
    follow(walk(steps), plan, curve(kind, 0))


def test_how_many_copies_of_the_weights_there_are() -> None:
    weights = walk(1)[0]
    for steps, copies in ((510, 8), (100, 3)):
        plan = AveragePlan(steps)
        held = sum(b.numel() for name, b in Averages(weights, plan).named_buffers() if "." in name)
        assert held == copies * sum(map(Tensor.numel, weights)) and plan.copies == copies


@pytest.mark.parametrize("steps", [2, 3, 30, 99])
def test_short_runs(steps: int) -> None:
    follow(walk(steps), AveragePlan(steps), [])


@pytest.mark.parametrize("kind", ["late", "jumping"])
@pytest.mark.parametrize("cut", [3, 60, 99, 100, 254, 255, 256, 301, 505])
def test_state_is_all_in_the_state_dict(kind: str, cut: int) -> None:
    """Averages that are saved and loaded after any update end with the same bits."""
    plan, path, losses = AveragePlan(510, 40), walk(510), curve(kind, 1)
    whole, _ = follow(path, plan, losses)
    live = [tensor.clone() for tensor in path[0]]
    averages = Averages(live, plan)
    coming = iter(losses)
    for step, weights in enumerate(path):
        if step == cut:
            saved = {key: value.clone() for key, value in averages.state_dict().items()}
            averages = Averages(live, plan)
            averages.load_state_dict(saved)
        for tensor, value in zip(live, weights, strict=True):
            tensor.copy_(value)
        averages.add(step)
        loss = next(coming) if step in plan.evaluated else None
        if step in plan.segments or loss is not None:
            averages.end_segment(step, loss)
    for key, value in whole.state_dict().items():
        assert torch.equal(averages.state_dict()[key], value), key


# In a training

STEPS = 150
WARMUP = 7


class Stopped(Exception):
    """Raised in the middle of a training."""


def averaged(
    method: str = "fishr",
    checkpoints: Checkpoints | None = None,
    watcher: Watcher | None = None,
    names: Sequence[str] = tuple(AVERAGES),
) -> tuple[Averaging, list[list[Tensor]], list[Record]]:
    """Return the averaging of a whole training, its weights after each update, and its records."""
    hparams = {"warmup_steps": WARMUP} if method == "fishr" else {}
    update, evaluate = training(method, **hparams)
    held = [part for (domain, split), part in evaluate.parts.items() if split == "held_out"]
    averaging = Averaging(update, evaluate, held[:3], STEPS, names)
    path: list[list[Tensor]] = []
    forward = update.forward

    def remember() -> None:
        forward()
        path.append([weight.detach().clone() for weight in averaging.weights])

    update.forward = remember  # type: ignore[method-assign]
    records, _ = train(
        update,
        evaluate,
        Schedule(STEPS, 40),
        "eager",
        checkpoints,
        watcher or Watcher(),
        averaging=averaging,
    )
    return averaging, path, records


def test_records_of_averages_are_those_of_the_mean_weights() -> None:
    averaging, path, records = averaged()
    plan = averaging.averages.plan
    assert plan.warmup == WARMUP and len(plan.evaluated) == 15
    names = [(one.step, one.extra["average"]) for one in averaging.records]
    assert names[-3:] == [(149, "sma"), (149, "half"), (149, "swad")]
    for one in averaging.records:
        first, last = one.extra["updates"]
        with use_weights(averaging.weights, mean_of(path[first : last + 1])):
            found = averaging.evaluate()
        for (domain, split), outcome in found.items():
            assert one.accuracy[domain][split] == outcome.accuracy
    spans = {one.extra["average"]: one.extra["updates"] for one in averaging.records}
    assert spans["sma"] == [73, 149] and spans["half"] == [75, 149]
    window = averaging.averages.window(15)
    assert window is not None
    assert spans["swad"][0] == plan.evaluated[window.start] + 1
    del records


def test_training_is_not_touched() -> None:
    _, path, records = averaged()
    update, evaluate = training("fishr", warmup_steps=WARMUP)
    plain, _ = train(update, evaluate, Schedule(STEPS, 40), "eager")
    assert plain == records
    weights = [weight for weight in update.algorithm.parameters() if weight.requires_grad]
    assert all(map(torch.equal, weights, path[-1]))


def test_the_validation_loss_is_a_mean_over_domains() -> None:
    averaging, _, _ = averaged("erm")
    losses = []
    for part in averaging.validation:
        logits = averaging.evaluate.algorithm.predict(part.images[part.indices].float() / 255)
        chosen = logits.double().log_softmax(1)[torch.arange(len(part)), part.labels]
        losses.append(-float(chosen.mean().detach()))
    assert averaging.validation_loss() == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert averaging.validation_loss() == pytest.approx(float(averaging.averages.losses[-1]))


@pytest.mark.parametrize("cut", [30, 80, 121])
def test_a_stopped_training_resumes_its_averages(tmp_path: Path, cut: int) -> None:
    whole, _, records = averaged()

    def stop(progress: Progress) -> None:
        if progress.done > cut:
            raise Stopped

    checkpoints = Checkpoints(tmp_path, "run", 0.0)
    with pytest.raises(Stopped):
        averaged(checkpoints=checkpoints, watcher=watching(progress=stop))
    again, path, resumed = averaged(checkpoints=Checkpoints(tmp_path, "run", 0.0))
    assert len(path) < STEPS, "it began where it was stopped"
    assert resumed == records and again.records == whole.records
    for key, value in whole.averages.state_dict().items():
        assert torch.equal(again.averages.state_dict()[key], value), key


@pytest.mark.parametrize(
    ("began", "asked", "left", "notes"),
    [
        (["sma"], ["sma", "half", "swad"], ["sma"], ["second half, SWAD"]),
        (["sma", "half", "swad"], ["half"], ["half"], []),
        (["half"], ["swad"], [], ["averages"]),
    ],
)
def test_a_run_resumes_with_other_averages(
    tmp_path: Path, began: list[str], asked: list[str], left: list[str], notes: list[str]
) -> None:
    whole, _, _ = averaged()

    def stop(progress: Progress) -> None:
        if progress.done > 100:
            raise Stopped

    checkpoints = Checkpoints(tmp_path, "run", 0.0)
    with pytest.raises(Stopped):
        averaged(checkpoints=checkpoints, watcher=watching(progress=stop), names=began)
    said: list[str] = []
    again, _, _ = averaged(
        checkpoints=Checkpoints(tmp_path, "run", 0.0),
        watcher=watching(note=said.append),
        names=asked,
    )
    assert said == [f"the run began without {one}: not recorded" for one in notes]
    assert again.names == left
    assert again.records == [one for one in whole.records if one.extra["average"] in left]


def test_a_run_that_began_without_averages_ends_without(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done > 50:
            raise Stopped

    update, evaluate = training("fishr", warmup_steps=WARMUP)
    with pytest.raises(Stopped):
        train(
            update,
            evaluate,
            Schedule(STEPS, 40),
            "eager",
            Checkpoints(tmp_path, "run", 0.0),
            watching(progress=stop),
        )
    notes: list[str] = []
    checkpoints = Checkpoints(tmp_path, "run", 0.0)
    averaging, _, records = averaged(checkpoints=checkpoints, watcher=watching(note=notes.append))
    assert averaging.records == [] and len(records) == 5
    assert notes == ["the run began without averages: not recorded"]


def test_micro_batches_change_no_average(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = averages_of_training()
    cut = Mock(wraps=in_micro_batches)
    monkeypatch.setattr("shoal.training.step.in_micro_batches", cut)
    found = averages_of_training(micro_batch=5)
    assert cut.call_count > 120, "every update, and evaluations"
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def following(
    steps: int, frozen: bool = False, watcher: Watcher | None = None, refuse: Any = None
) -> tuple[Averaging, list[Record]]:
    """Train a large network with averages; its batch norm follows the data unless it is frozen.

    Args:
        refuse: called before each forward, to raise.
    """
    data = placed()
    algorithm = ALGORITHMS["erm"](large(2, 0.0, frozen=frozen).float(), len(data.sources))
    if refuse:
        algorithm.model.features.network.register_forward_pre_hook(refuse)
    batches = Batches(data.sources, Normalise(None, False, CPU))
    update = Update(algorithm, batches, "float32")
    evaluate = Evaluation(algorithm, data.parts, scaled, nullcontext)
    averaging = Averaging(update, evaluate, [], steps, ["half"])
    schedule = Schedule(steps, 4)
    records, _ = train(
        update, evaluate, schedule, "eager", watcher=watcher or Watcher(), averaging=averaging
    )
    return averaging, records


def test_batch_norm_that_follows_the_data_is_estimated_for_an_average() -> None:
    averaging, records = following(12)
    update = averaging.update
    (norm,) = (part for part in update.algorithm.modules() if isinstance(part, nn.BatchNorm2d))
    before = {key: value.clone() for key, value in update.state_dict().items()}
    current = averaging.averages.current("half", 11)
    assert current is not None
    with use_weights(averaging.weights, current.weights), averaging._own_statistics():
        found = norm.running_mean.clone(), norm.running_var.clone()
        # The same by hand: means of each batch's statistics, in front of the norm.
        seen: list[Tensor] = []
        hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for part in update.batches.modules():
            if isinstance(part, Draws):
                part.count.fill_(UNREACHED)
        with torch.no_grad():
            for _ in range(STATISTICS):
                update.algorithm.predict(torch.cat([images for images, _ in update.batches()]))
        hook.remove()
    torch.testing.assert_close(found[0], torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0))
    torch.testing.assert_close(found[1], torch.stack([x.var((0, 2, 3)) for x in seen]).mean(0))
    for key, value in update.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert norm.training and norm.momentum == 0.1
    plain = training_without(12)
    assert plain == records, "training is not touched"


def training_without(steps: int) -> list[Record]:
    data = placed()
    algorithm = ALGORITHMS["erm"](large(2, 0.0, frozen=False).float(), len(data.sources))
    update = Update(algorithm, Batches(data.sources, Normalise(None, False, CPU)), "float32")
    evaluate = Evaluation(algorithm, data.parts, scaled, nullcontext)
    return train(update, evaluate, Schedule(steps, 4), "eager")[0]


# Memory

FULL = "CUDA out of memory. Tried to allocate 20.00 MiB"


def test_training_goes_on_without_averages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StoredWeights] = []

    class Narrow(StoredWeights):
        def __init__(self, weights: Sequence[Tensor]) -> None:
            if len(made) == 5:
                raise torch.OutOfMemoryError(FULL)
            super().__init__(weights)
            made.append(self)

    monkeypatch.setattr("shoal.training.averages.StoredWeights", Narrow)
    notes: list[str] = []
    averaging, _, records = averaged(watcher=watching(note=notes.append))
    size = 8 * sum(weight.numel() * 4 for weight in averaging.weights)
    assert notes == [
        f"there is no memory for averages of the weights, which take {size / 1e9:.2g} GB (8 copies "
        "of the weights): not recorded"
    ]
    assert averaging.names == [] and averaging.records == []
    update, evaluate = training("fishr", warmup_steps=WARMUP)
    assert train(update, evaluate, Schedule(STEPS, 40), "eager")[0] == records


def test_memory_that_runs_out_in_the_first_update() -> None:
    """The network runs in micro-batches, and what did not fit is in no average."""
    whole, _ = following(12, frozen=True)
    notes: list[str] = []

    def refuse(network: nn.Module, inputs: tuple[Tensor]) -> None:
        if network.training and len(inputs[0]) > 5:
            raise torch.OutOfMemoryError(FULL)

    averaging, _ = following(12, frozen=True, watcher=watching(note=notes.append), refuse=refuse)
    assert [line.partition(":")[0] for line in notes] == ["memory ran out"] * 2
    assert averaging.update.algorithm.micro_batch == 3
    for key, value in whole.averages.state_dict().items():
        torch.testing.assert_close(averaging.averages.state_dict()[key], value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", ["graph", "compiled"])
def test_a_captured_training_has_the_averages_of_an_eager_one(kind: StepKind) -> None:
    cuda = torch.device("cuda")
    found = {}
    for one in ("eager", kind):
        update, evaluate = training("fishr", device=cuda, warmup_steps=WARMUP)
        held = [part for (_, split), part in evaluate.parts.items() if split == "held_out"]
        averaging = Averaging(update, evaluate, held[:3], STEPS)
        records, _ = train(update, evaluate, Schedule(STEPS, 40), one, averaging=averaging)
        found[one] = averaging, records
    eager, captured = found["eager"][0], found[kind][0]
    assert [one.extra for one in captured.records] == [one.extra for one in eager.records]
    for key, value in eager.averages.state_dict().items():
        torch.testing.assert_close(captured.averages.state_dict()[key], value, rtol=1e-3, atol=1e-4)


def test_averages_start_after_the_last_warm_up() -> None:
    for first, second in ((2, 5), (5, 2)):
        update, evaluate = training("ib-irm", warmup_steps=first, bottleneck_warmup_steps=second)
        assert Averaging(update, evaluate, [], 9).plan.warmup == 5
