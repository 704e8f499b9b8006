"""The demo at a tiny size: what it computes, and that its page shows it."""

import json
from collections import Counter
from typing import Any

import pytest
import torch

from shoal.experiments import demo
from shoal.experiments.colored_mnist import Setup, Training
from shoal.report.demo_page import demo_page, demo_table
from tests.oracles.autograd import individual_gradients, variance

SETUP = Setup(examples=12, hidden=8, jump_step=2, updates=7)
KEYS = ("step", "train", "test", "variance_gap", "risk_gap")


class Ran:
    """The demo's result, its trainings in their final state, and its progress calls."""

    def __init__(self) -> None:
        self.trainings: list[Training] = []
        self.calls: list[tuple[str, int, int, int]] = []

        def keep(*args: Any) -> Training:
            self.trainings.append(Training(*args))
            return self.trainings[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo, "Training", keep)
            patch.setattr(demo, "EVERY", 5)
            self.result = demo.run(lambda *args: self.calls.append(args), SETUP)


@pytest.fixture(scope="module")
def ran() -> Ran:
    return Ran()


def test_page_and_table_show_the_result(ran: Ran) -> None:
    page = demo_page(ran.result)
    assert page.lstrip().startswith("<!DOCTYPE html>")
    for method in ran.result["methods"]:
        assert f"{100 * method['test']:.1f}\xa0%" in page
    assert page.count("data:image/png") == 12
    assert demo_table(ran.result).row_count == 3


def test_result_is_plain_data(ran: Ran) -> None:
    assert json.loads(json.dumps(ran.result, allow_nan=False)) == ran.result
    assert ran.result["examples"] == 12
    assert ran.result["steps"] == 7
    assert ran.result["jump_step"] == 2
    assert (ran.result["colour_only"], ran.result["shape_only"]) == (0.10, 0.75)
    assert ran.result["seconds"] > 0
    assert ran.result["machine"]


def test_methods(ran: Ran) -> None:
    names = [method["name"] for method in ran.result["methods"]]
    assert names == ["ERM", "V-REx", "Fishr"]
    assert [training.method.statistic for training in ran.trainings] == ["none", "risk", "variance"]
    assert {training.method.weights for training in ran.trainings} == {"ω"}
    assert ran.calls == [(name, 0, done, 7) for name in names for done in range(1, 8)]


def test_curves_begin_at_step_0_and_end_at_the_last(ran: Ran) -> None:
    for method in ran.result["methods"]:
        assert set(method["curve"]) == set(KEYS)
        assert method["curve"]["step"] == [0, 5, 7]
        assert {len(values) for values in method["curve"].values()} == {3}


def test_the_last_step_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "EVERY", 2)
    result = demo.run(lambda *_: None, Setup(examples=4, hidden=8, jump_step=2, updates=4))
    assert [method["curve"]["step"] for method in result["methods"]] == [[0, 2, 4]] * 3


def test_all_methods_start_alike(ran: Ran) -> None:
    for key in KEYS:
        assert len({method["curve"][key][0] for method in ran.result["methods"]}) == 1


def test_final_numbers_are_those_of_the_trained_networks(ran: Ran) -> None:
    for method, training in zip(ran.result["methods"], ran.trainings, strict=True):
        assert training.done == 7
        accuracies = training.accuracies()
        assert {key: method[key] for key in accuracies} == accuracies
        assert method["curve"]["train"][-1] == accuracies["train"]
        assert method["curve"]["test"][-1] == accuracies["test"]


def test_gaps_are_squared_distances_of_the_two_domains(ran: Ran) -> None:
    for method, training in zip(ran.result["methods"], ran.trainings, strict=True):
        model, inputs, labels = training.model, training.inputs, training.labels
        ids = torch.arange(24) // 12
        gradients = individual_gradients(model, inputs, labels, list(model.parameters())[4:])
        first, second = variance(gradients.detach().double().cpu(), ids)
        gap = ((first - second) ** 2).sum().item()
        assert method["curve"]["variance_gap"][-1] == pytest.approx(gap, rel=1e-3)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            model(inputs), labels, reduction="none"
        )
        risks = losses.detach().double().reshape(2, 12).mean(1)
        gap = float((risks[0] - risks[1]) ** 2)
        assert method["curve"]["risk_gap"][-1] == pytest.approx(gap, rel=1e-3, abs=1e-9)


def test_twelve_digits_about_evenly_spread(ran: Ran) -> None:
    counts = Counter(digit["digit"] for digit in ran.result["digits"])
    assert sum(counts.values()) == 12
    assert sorted(counts) == list(range(10))
    assert max(counts.values()) == 2


def test_digits_have_honest_labels_and_one_colour(ran: Ran) -> None:
    domain = ran.trainings[0].domains["10%"]
    agree = 0
    for digit in ran.result["digits"]:
        assert digit["label"] == int(digit["digit"] < 5)
        pixels = torch.tensor(digit["pixels"])
        assert pixels.shape == (14, 14, 2)
        assert pixels.min() == 0 and 100 < pixels.max() <= 255
        ink = pixels.amax((0, 1)) > 0
        assert ink.sum() == 1
        agree += int(ink[1]) == digit["label"]
        flat = pixels.permute(2, 0, 1).reshape(392).float() / 255
        difference = (domain.inputs.cpu() - flat).abs().amax(1)
        index = int(difference.argmin())
        assert difference[index] < 1e-6
        assert int(domain.digits[index]) == digit["digit"]
    assert agree <= 5  # colours are reversed in nine of ten


def test_answers_are_each_networks_probability_of_class_1(ran: Ran) -> None:
    for digit in ran.result["digits"]:
        pixels = torch.tensor(digit["pixels"]).permute(2, 0, 1).reshape(1, 392).float() / 255
        for method, training in zip(ran.result["methods"], ran.trainings, strict=True):
            logit = training.model(pixels.to(training.device)).item()
            expected = 1 / (1 + 2.718281828459045**-logit)
            assert digit["answers"][method["name"]] == pytest.approx(expected, abs=1e-5)


def test_curves_of_the_demo_that_ships_show_the_jump_and_the_end() -> None:
    assert demo.SETUP.jump_step % demo.EVERY == 0
    assert demo.SETUP.updates % demo.EVERY == 0
    assert demo.SETUP.updates > demo.SETUP.jump_step
