"""One update as a step: as far as the method goes, and compiled once for all batch sizes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.base import Algorithm
from shoal.training.step import TERMS, Step, Update, precision_context
from tests.test_capture_safety import NoQuestions

from .little import CPU, training


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Algorithm]:
    """Methods that were compiled, which here changes nothing."""
    seen: list[Algorithm] = []

    def compile(algorithm: Algorithm) -> None:
        seen.append(algorithm)

    monkeypatch.setattr(Algorithm, "compile", compile)
    return seen


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("fishr", "compiled", "compiled"),
        ("fishr", "graph", "eager"),  # nothing is captured on a CPU
        ("fishr", "eager", "eager"),
        ("dann", "compiled", "eager"),  # captured at most
        ("dann", "graph", "eager"),
    ],
)
def test_as_far_as_asked_and_as_the_method_goes(
    name: str, asked: Any, expected: str, compilations: list[Algorithm]
) -> None:
    update, _ = training(name)
    assert Step(update, asked).kind == expected
    assert compilations == ([update.algorithm] if expected == "compiled" else [])


def test_a_method_that_cannot_be_captured(
    compilations: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    update, _ = training("erm")
    monkeypatch.setattr(update.algorithm, "capture", "eager")
    assert Step(update, "compiled").kind == "eager"
    assert not compilations


def test_an_unknown_kind() -> None:
    with pytest.raises(ValueError, match="kind of step 'compile'; did you mean 'compiled'"):
        Step(training()[0], "compile")  # type: ignore[arg-type]


def test_all_that_is_drawn_and_done_is_state() -> None:
    update, _ = training("fishr")
    keys = update.state_dict().keys()
    assert {f"batches.sources.{k}.sampler.draws.count" for k in range(3)} < keys
    assert "sums" in keys
    assert any(key.startswith("algorithm.optimiser.") for key in keys)
    assert not any("images" in key or "labels" in key for key in keys)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_asks_the_host_nothing(name: str) -> None:
    """From the draw of a batch to the sum of its terms, with all state where it was."""
    update, _ = training(name)
    for _ in range(2):
        update()
    before = {key: t.data_ptr() for key, t in update.state_dict(keep_vars=True).items()}
    with NoQuestions(*update.parameters(), *update.buffers()):
        update()
    assert before == {k: t.data_ptr() for k, t in update.state_dict(keep_vars=True).items()}


def counting(update: Update) -> None:
    """Have the method count its updates in a buffer that the first of them makes."""

    def count(algorithm: nn.Module, _: Any) -> None:
        if not hasattr(algorithm, "late"):
            algorithm.register_buffer("late", torch.zeros(()))
        algorithm.late += 1  # type: ignore[operator]

    update.algorithm.register_forward_pre_hook(count)


def test_what_the_steps_of_a_capture_did_is_taken_back() -> None:
    """As on a GPU: what was there is as before, what only they made begins at zero."""
    update, other = training("fishr")[0], training("fishr")[0]
    for one in (update, other):
        counting(one)
    step = Step(update, "eager")
    step._before = {key: tensor.clone() for key, tensor in update.state_dict().items()}
    for _ in range(4):
        update()
    assert update.algorithm.late == 4
    step._undo()
    assert update.algorithm.late == 0
    for _ in range(5):
        update()
        other()
    assert update.state_dict().keys() == other.state_dict().keys()
    for key, tensor in other.state_dict().items():
        assert torch.equal(update.state_dict()[key], tensor)


class Talkative(nn.Module):
    """As many terms as asked for."""

    micro_batch = None

    def __init__(self, terms: int) -> None:
        super().__init__()
        self.terms = terms
        self.device, self.micro_batch = CPU, None

    def update(self, batches: Any) -> dict[str, Tensor]:
        return {f"term {k}": torch.tensor(float(k)) for k in range(self.terms)}

    def check(self, terms: Any) -> dict[str, float]:
        return {}


def test_a_method_has_sixteen_terms_at_most() -> None:
    batches = training()[0].batches
    update = Update(Talkative(TERMS), batches, "float32")  # type: ignore[arg-type]
    update()
    update()
    assert update.means(2) == {f"term {k}": float(k) for k in range(16)}
    assert update.means(1) == dict.fromkeys((f"term {k}" for k in range(16)), 0.0)
    with pytest.raises(ValueError, match="can report 16 terms at most, got 17"):
        Update(Talkative(TERMS + 1), batches, "float32")()  # type: ignore[arg-type]


def test_images_of_an_update() -> None:
    assert training(size=5)[0].images == 15


def test_precision() -> None:
    with precision_context("float32", CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with precision_context("bf16", CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert not torch.is_autocast_cache_enabled()
    with pytest.raises(ValueError, match="precision 'fp16'; did you mean"):
        precision_context("fp16", CPU)
    with pytest.raises(ValueError, match="precision"):
        Update(training()[0].algorithm, training()[0].batches, "double")


def test_another_batch_size_compiles_nothing(
    fresh_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step, over the end of a warm-up; all methods on their own are in the contract."""
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(1)
        return graph.forward

    # Of the method, and of the draws of batches.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=count))
    update, _ = training("fishr", size=6, sizes=(25,) * 4)
    step = Step(update, "compiled")
    for number in range(4):
        step(number)
    compiled = len(graphs)
    assert compiled == 2  # the draws of domains of one size, and the loss
    for size in (4, 9):
        for source in update.batches.sources:
            source.size = size  # type: ignore[assignment]
        assert {len(labels) for _, labels in update.batches()} == {size}
        for _ in range(2):
            step(0)
    assert len(graphs) == compiled


@pytest.mark.timeout(300)
def test_a_compiled_step_agrees_with_an_eager_one(fresh_compiler: None) -> None:
    """By Inductor, whose sums have another order: to 1e-4 after ten updates in float32."""
    found = []
    for kind in ("eager", "compiled"):
        # Domains of one size, for which one draw of batches is compiled.
        update, _ = training("fishr", sizes=(25,) * 4, lr=0.01, penalty_weight=10.0)
        step = Step(update, kind)  # type: ignore[arg-type]
        for number in range(10):
            step(number)
        found.append((update.state_dict(), update.means(10)))
    (eager, terms), (compiled, others) = found
    assert eager.keys() == compiled.keys()
    for key in eager:
        torch.testing.assert_close(compiled[key], eager[key], rtol=1e-4, atol=1e-5)
    assert others == pytest.approx(terms, rel=1e-4)
