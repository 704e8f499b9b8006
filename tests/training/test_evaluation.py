"""Accuracy, calibration and confusion against plain loops; what an evaluation leaves alone."""

import gc
import math
import weakref
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from shoal.algorithms import ALGORITHMS
from shoal.networks import Network, draw_weights
from shoal.networks.backbones import Features
from shoal.networks.base import Dropout
from shoal.randomness import stream
from shoal.runs.prepare import evaluation_of_run
from shoal.training.batches import Batches, Normalise, scaled
from shoal.training.evaluation import (
    ALONE,
    BINS,
    TOGETHER,
    CapturedCall,
    Evaluation,
    EvaluationSet,
    Outcome,
)
from shoal.training.step import Update
from tests.algorithms.test_contract import CHANNELS, CLASSES, SIDE, make

from .little import training


def outcome(n: int = 500, classes: int = 4, seed: int = 0) -> Outcome:
    draws = stream("outcome", seed)
    confidences = 0.25 + 0.75 * torch.rand(n, generator=draws, dtype=torch.float64)
    # On the edges of bins, too.
    confidences[: BINS - 3] = torch.arange(4, BINS + 1) / BINS
    labels, predictions = (torch.randint(classes, (n,), generator=draws) for _ in range(2))
    return Outcome(labels, torch.where(confidences > 0.6, labels, predictions), confidences)


def test_accuracy() -> None:
    found = outcome()
    right = [int(a) == int(b) for a, b in zip(found.labels, found.predictions, strict=True)]
    assert found.accuracy == sum(right) / 500
    assert Outcome(torch.tensor([1]), torch.tensor([1]), torch.ones(1)).accuracy == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_calibration_error(seed: int) -> None:
    """Σ over bins (k/15, (k+1)/15] of share · |accuracy − mean confidence|."""
    found = outcome(seed=seed)
    expected = 0.0
    for k in range(BINS):
        inside = [
            (float(c), int(a) == int(b))
            for c, a, b in zip(found.confidences, found.labels, found.predictions, strict=True)
            if math.ceil(float(c) * BINS) == k + 1
        ]
        if inside:
            confidence = sum(c for c, _ in inside) / len(inside)
            accuracy = sum(right for _, right in inside) / len(inside)
            expected += len(inside) / 500 * abs(accuracy - confidence)
    assert found.calibration_error == pytest.approx(expected, rel=1e-12)


def test_a_calibration_error_by_hand() -> None:
    # Two bins: (0.5333, 0.6] holds 0.55 and 0.6, one of them right; (0.9333, 1] holds 1.0, wrong.
    confidences = torch.tensor([0.55, 0.6, 1.0], dtype=torch.float64)
    found = Outcome(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]), confidences)
    assert found.calibration_error == pytest.approx(2 / 3 * abs(0.5 - 0.575) + 1 / 3 * 1.0)
    assert found.accuracy == pytest.approx(1 / 3)


def test_confusion() -> None:
    found = outcome()
    expected = [[0] * 4 for _ in range(4)]
    for label, prediction in zip(found.labels.tolist(), found.predictions.tolist(), strict=True):
        expected[label][prediction] += 1
    table = found.confusion(4)
    assert table.tolist() == expected
    assert int(table.diag().sum()) / 500 == found.accuracy
    assert found.confusion(6).shape == (6, 6)  # classes that never came up


def images(n: int, seed: int = 0) -> Tensor:
    shape = (n, CHANNELS, SIDE, SIDE)
    return torch.randint(256, shape, generator=stream("images", seed)).to(torch.uint8)


def part(n: int, seed: int = 0) -> EvaluationSet:
    """Every second of 2n images, in another order."""
    order = 2 * torch.randperm(n, generator=stream("order", seed))
    return EvaluationSet(
        images(2 * n, seed), order, torch.randint(CLASSES, (n,), generator=stream("y", n))
    )


@pytest.mark.parametrize("where", ["device", "host"])
def test_what_a_method_says_of_each_example(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of all sizes and a rest; images elsewhere are read in a thread."""
    monkeypatch.setitem(ALONE, "cpu", (7, 7))
    algorithm = make("erm", dtype=torch.float32)
    parts = {("a", "kept"): part(33), ("a", "held_out"): part(5), ("b", "kept"): part(14, 1)}
    evaluate = Evaluation(algorithm, parts, scaled, nullcontext)
    if where == "host":
        evaluate._device = torch.device("cpu", 0)  # which is another one than the images'
    found = evaluate()
    assert list(found) == list(parts)
    algorithm.eval()
    for place, mine in parts.items():
        for k, index in enumerate(mine.indices.tolist()):
            logits = algorithm.predict(mine.images[index : index + 1] / 255)[0].double()
            probability = logits.softmax(-1).max()
            assert int(found[place].predictions[k]) == int(logits.argmax())
            torch.testing.assert_close(
                found[place].confidences[k], probability.detach(), rtol=1e-5, atol=1e-6
            )
        assert found[place].labels is mine.labels


def sizes_seen(name: str, n: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    algorithm = make(name, dtype=torch.float32)
    seen = []
    predict = algorithm.predict

    def spy(inputs: Tensor) -> Tensor:
        seen.append(len(inputs))
        return predict(inputs)

    monkeypatch.setattr(algorithm, "predict", spy)
    Evaluation(algorithm, {("a", "kept"): part(n)}, scaled, nullcontext)()
    return seen


@pytest.mark.parametrize("name", ["mtl", "arm"])
def test_methods_that_look_at_images_together_have_sets_of_64(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ALGORITHMS[name].predicts_batchwise
    assert sizes_seen(name, 150, monkeypatch) == [TOGETHER, TOGETHER, 22] == [64, 64, 22]


def test_others_have_sets_that_suit_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name, kind in ALGORITHMS.items() if kind.predicts_batchwise] == ["mtl", "arm"]
    assert sizes_seen("erm", 150, monkeypatch) == [128, 22]


def test_the_size_of_sets_does_not_matter_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("erm", "fishr", "sagnet", "dann"):
        algorithm = make(name, dtype=torch.float32)
        found = []
        for size in (5, 64):
            monkeypatch.setitem(ALONE, "cpu", (size, size))
            evaluate = Evaluation(algorithm, {("a", "kept"): part(40)}, scaled, nullcontext)
            found.append(evaluate()["a", "kept"])
        assert torch.equal(found[0].predictions, found[1].predictions)
        torch.testing.assert_close(found[0].confidences, found[1].confidences)


def test_large_images_have_smaller_sets() -> None:
    algorithm = make("erm")
    evaluate = Evaluation(algorithm, {}, scaled, nullcontext)
    small, large = torch.empty(1, 3, 63, 63), torch.empty(1, 3, 64, 64)
    assert (evaluate.size(small), evaluate.size(large)) == ALONE["cpu"]
    assert Evaluation(make("arm"), {}, scaled, nullcontext).size(large) == TOGETHER


def forgetful() -> Network:
    """A network with dropout, and with batch norm that follows the data."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(CHANNELS, 4, 3, 2), nn.BatchNorm2d(4), nn.Flatten())

    body, head = (
        draw_weights(build, stream("body")),
        draw_weights(lambda: nn.Linear(36, CLASSES), stream("head")),
    )
    return Network(Features(body, Dropout(0.5, stream("dropout")), False), head)


@pytest.mark.parametrize("mode", [True, False])
def test_nothing_changes(mode: bool) -> None:
    """Neither the mode nor any state: no draw of a dropout, no statistic, no global random."""
    algorithm = ALGORITHMS["erm"](forgetful(), 3)
    algorithm.train(mode)
    evaluate = Evaluation(algorithm, {("a", "kept"): part(40)}, scaled, nullcontext)
    before = {key: tensor.clone() for key, tensor in algorithm.state_dict().items()}
    assert "model.features.dropout.draws.count" in before
    state = torch.get_rng_state()
    first, again = evaluate()["a", "kept"], evaluate()["a", "kept"]
    assert torch.equal(first.confidences, again.confidences)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], t) for key, t in algorithm.state_dict().items())
    assert all(part.training is mode for part in algorithm.modules())
    assert all(parameter.grad is None for parameter in algorithm.parameters())


def test_the_mode_is_restored_after_an_error() -> None:
    update, evaluate = training()

    def fail(images: Tensor) -> Tensor:
        raise ValueError("of the images")

    evaluate = Evaluation(update.algorithm, evaluate.parts, fail, nullcontext)
    with pytest.raises(ValueError, match="of the images"):
        evaluate()
    assert update.algorithm.training
    assert torch.is_grad_enabled()


def test_it_evaluates_the_weights_of_now() -> None:
    update, evaluate = training(lr=0.05)
    seen = [evaluate()["d", "kept"]]
    for _ in range(3):
        update()
        seen.append(evaluate()["d", "kept"])
        inputs = evaluate.parts["d", "kept"]
        logits = update.algorithm.predict(inputs.images[inputs.indices] / 255)
        torch.testing.assert_close(seen[-1].confidences, logits.double().softmax(-1).amax(-1))
        assert not torch.equal(seen[-1].confidences, seen[-2].confidences)


def test_precision_is_that_of_the_run() -> None:
    entered = []

    def precision() -> AbstractContextManager[object]:
        entered.append(True)
        return torch.autocast("cpu", torch.bfloat16)

    algorithm = make("erm", dtype=torch.float32)
    found = Evaluation(algorithm, {("a", "kept"): part(20)}, scaled, precision)()["a", "kept"]
    plain = Evaluation(algorithm, {("a", "kept"): part(20)}, scaled, nullcontext)()["a", "kept"]
    assert entered
    assert found.confidences.dtype == torch.float64
    assert not torch.equal(found.confidences, plain.confidences)
    torch.testing.assert_close(found.confidences, plain.confidences, rtol=0.05, atol=0.05)


def test_compiled_batches_have_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest is filled up with images that do not count."""
    monkeypatch.setitem(ALONE, "cpu", (16, 16))
    seen: list[int] = []

    def compile(function: nn.Module) -> object:
        def compiled(method: nn.Module, prepare: object, images: Tensor) -> object:
            seen.append(len(images))
            return function(method, prepare, images)

        return compiled

    monkeypatch.setattr(torch, "compile", compile)
    algorithm = make("erm", dtype=torch.float32)
    parts = {("a", "kept"): part(37), ("b", "kept"): part(3)}
    plain = Evaluation(algorithm, parts, scaled, nullcontext)()
    evaluate = Evaluation(algorithm, parts, scaled, nullcontext, "compiled")
    evaluate.warm_up()
    assert seen == [16]
    found = evaluate()
    assert seen == [16] * 5
    for place in parts:
        assert torch.equal(found[place].predictions, plain[place].predictions)
        torch.testing.assert_close(found[place].confidences, plain[place].confidences)
    # Where images matter to each other nothing may be added.
    seen.clear()
    together = Evaluation(make("arm", dtype=torch.float32), parts, scaled, nullcontext, "compiled")
    together.warm_up()
    together()
    assert not seen


def test_one_compiled_judgement_serves_all_runs_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs have other networks, data and normalisations of the same kinds."""
    monkeypatch.setitem(ALONE, "cpu", (16, 16))
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("eager")
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile(function, backend=graphs))
    parts = {("a", "kept"): part(37)}
    for method in ("erm", "erm", "fishr"):
        algorithm = make(method, dtype=torch.float32)
        normalise = Normalise(None, False, torch.device("cpu"))
        evaluate = evaluation_of_run(
            Update(algorithm, Batches([], normalise), "float32"), parts, "compiled"
        )
        evaluate.warm_up()
        found = evaluate()["a", "kept"]
        plain = Evaluation(algorithm, parts, scaled, nullcontext)()["a", "kept"]
        assert torch.equal(found.predictions, plain.predictions)
        torch.testing.assert_close(found.confidences, plain.confidences)
        assert graphs.frame_count == (1 if method == "erm" else 2)


def test_nothing_holds_on_to_an_evaluation_that_is_over() -> None:
    """Nor to its data: they may fill a device, and the next run begins at once."""
    algorithm, mine = make("erm", dtype=torch.float32), part(20)
    evaluate = Evaluation(algorithm, {("a", "kept"): mine}, scaled, nullcontext)
    evaluate()
    gone = weakref.ref(evaluate), weakref.ref(mine)
    gc.disable()
    try:
        del evaluate, mine
        assert [found() for found in gone] == [None, None]
    finally:
        gc.enable()


def test_no_parts_at_all() -> None:
    evaluate = Evaluation(make("erm"), {}, scaled, nullcontext)
    evaluate.warm_up()
    assert evaluate() == {}


def test_an_error_of_reading_arrives() -> None:
    algorithm = make("erm", dtype=torch.float32)
    wrong = EvaluationSet(images(4), torch.tensor([0, 9]), torch.zeros(2, dtype=torch.int64))
    evaluate = Evaluation(algorithm, {("a", "kept"): wrong}, scaled, nullcontext)
    evaluate._device = torch.device("cpu", 0)
    with pytest.raises(IndexError):
        evaluate()


def test_micro_batches_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they were asked for, or memory ran out after the evaluation was made."""
    algorithm = make("erm", dtype=torch.float32)
    evaluate = Evaluation(algorithm, {("a", "kept"): part(37)}, scaled, nullcontext, "compiled")
    monkeypatch.setattr(torch, "compile", lambda _: pytest.fail("compiled"))
    algorithm.micro_batch = 4
    evaluate.warm_up()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_captured_evaluation_follows_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALONE, "cuda", (16, 16))
    cuda = torch.device("cuda")
    algorithm = make("erm", dtype=torch.float32).to(cuda)
    parts = {}
    for name, size in (("a", 37), ("b", 3)):
        one = part(size)
        parts[name, "kept"] = EvaluationSet(one.images.to(cuda), one.indices.to(cuda), one.labels)
    captured = Evaluation(algorithm, parts, scaled, nullcontext, "graph")
    captured.warm_up()
    plain = Evaluation(algorithm, parts, scaled, nullcontext)
    assert isinstance(captured._classify, CapturedCall)
    for _ in range(2):
        for found, expected in zip(captured().values(), plain().values(), strict=True):
            assert torch.equal(found.predictions, expected.predictions)
            torch.testing.assert_close(found.confidences, expected.confidences)
        with torch.no_grad():
            for weight in algorithm.parameters():
                weight.mul_(-1.5)
