"""Gaps between training domains in records: what they are, and that they change nothing else."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import shoal
from shoal.algorithms import ALGORITHMS, find
from shoal.datasets import splits
from shoal.runs.diagnosis import EXAMPLES, diagonals_of
from shoal.runs.machine import Machine
from shoal.runs.model import load
from shoal.runs.prepare import prepare
from shoal.training.batches import scaled
from shoal.training.evaluation import Evaluation, HeadPass, classifier_of, head_passes
from tests.training.little import watching

from .small import CPU, carry_out, tiny, tiny_run

KEYS = {"risk", "variance", "hessian"}


def test_records_hold_gaps_where_they_are_asked_for(tmp_path: Path) -> None:
    with_gaps = carry_out(tmp_path / "with", tiny_run(), machine={"log": "gaps"}).records
    without = carry_out(tmp_path / "without", tiny_run()).records
    for record, plain in zip(with_gaps, without, strict=True):
        found, cosines = record.gaps, record.extra["cosine"]
        assert list(record.to_json())[4:] == ["gaps", "cosine"]
        assert found.keys() == KEYS and all(value > 0 for value in found.values())
        assert cosines.keys() == {"a", "b"} and all(0 < value <= 1 for value in cosines.values())
        assert replace(record, extra={}) == plain
    for name in ("model.safetensors", "run.json"):
        files = [(tmp_path / folder / name).read_bytes() for folder in ("with", "without")]
        assert files[0] == files[1]


def test_gaps_are_those_of_the_model_on_what_it_is_trained_on(tmp_path: Path) -> None:
    """By plain definitions, on the saved model and the kept images of both training domains."""
    record = carry_out(tmp_path, tiny_run(), machine={"log": "gaps"}).records[-1]
    network, dataset = load(tmp_path, CPU).algorithm.model, tiny()
    risks, variances, hessians = [], [], []
    for name in ("a", "b"):
        kept = splits(dataset, 0)[name].kept[:EXAMPLES]
        with torch.no_grad():
            features = network.features(dataset[name].images[kept].float() / 255).double()
            logits = nn.functional.linear(
                features, network.classifier.weight.double(), network.classifier.bias.double()
            )
        labels = dataset[name].labels[kept]
        risks.append(nn.functional.cross_entropy(logits, labels))
        one = torch.zeros(len(kept), dtype=torch.long)
        variances.append(shoal.head_variance(features, logits, labels, one)[0])
        p = logits.softmax(1)
        ones = torch.cat([features.square(), torch.ones(len(kept), 1)], 1)
        h = ((p * (1 - p))[:, :, None] * ones[:, None]).mean(0)
        hessians.append(torch.cat([h[:, :-1].flatten(), h[:, -1]]))
    for kind, rows in {"risk": risks, "variance": variances, "hessian": hessians}.items():
        expected = float(shoal.spread(torch.stack(rows)))
        assert record.gaps[kind] == pytest.approx(expected, rel=1e-3)
    for number, name in enumerate(("a", "b")):
        cosine = nn.functional.cosine_similarity(hessians[number], variances[number], dim=0)
        assert record.extra["cosine"][name] == pytest.approx(float(cosine), rel=1e-4)


def test_the_sample_is_fixed_and_of_training_domains() -> None:
    for log, expected in (("gaps", {"a", "b"}), (None, set())):
        machine = Machine(device=CPU, step="eager", log=log)
        placed, _ = prepare(tiny_run(), find("fishr"), tiny(), None, machine)
        assert {domain for domain, _ in placed.samples} == expected
        for (domain, split), part in placed.samples.items():
            assert split == "kept"
            kept = splits(tiny(), 0)[domain].kept
            assert torch.equal(part.indices, kept[:EXAMPLES])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_can_record_gaps(name: str, tmp_path: Path) -> None:
    run = tiny_run(name, steps=2)
    last = carry_out(tmp_path, run, machine={"log": "gaps"}).records[-1]
    plain = carry_out(tmp_path / "plain", run).records[-1]
    assert last.gaps.keys() == KEYS
    assert last.accuracy == plain.accuracy and last.terms == plain.terms
    json.dumps(last.to_json(), allow_nan=False)


def test_looking_at_a_head_leaves_no_hook() -> None:
    machine = Machine(device=CPU, step="eager", log="gaps")
    placed, update = prepare(tiny_run(), find("fishr"), tiny(), None, machine)
    evaluate = Evaluation(update.algorithm, placed.samples, scaled, nullcontext)
    first, second = head_passes(evaluate), head_passes(evaluate)
    for place, one in first.items():
        assert len(one.features) == len(one.logits) == len(placed.samples[place])
        assert torch.equal(one.logits, second[place].logits)
    assert not classifier_of(evaluate)._forward_hooks
    assert update.algorithm.training


def test_a_method_that_passes_by_its_classifier_is_told() -> None:
    machine = Machine(device=CPU, step="eager", log="gaps")
    placed, update = prepare(tiny_run(), find("fishr"), tiny(), None, machine)
    update.algorithm.predict = lambda inputs: torch.zeros(len(inputs), 2)  # type: ignore[method-assign]
    evaluate = Evaluation(update.algorithm, placed.samples, scaled, nullcontext)
    with pytest.raises(ValueError, match="got 0 passes for 32 images"):
        head_passes(evaluate)


def test_resumed_records_are_those_of_a_run_that_was_not_stopped(tmp_path: Path) -> None:
    whole = carry_out(tmp_path / "whole", tiny_run(), machine={"log": "gaps"}).records

    class Kill(Exception):
        pass

    def kill(records: list[object]) -> None:
        if len(records) == 2:
            raise Kill

    with pytest.raises(Kill):
        carry_out(
            tmp_path / "cut",
            tiny_run(),
            0.0,
            machine={"log": "gaps"},
            watcher=watching(records=kill),
        )
    resumed = carry_out(tmp_path / "cut", tiny_run(), 0.0, machine={"log": "gaps"}).records
    assert resumed == whole


def test_a_classifier_of_several_layers_goes_by_gauss_newton() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    features, labels = torch.randn(20, 3), torch.randint(2, (20,))
    passes = [
        HeadPass(features[part], layers(features[part]).detach(), labels[part])
        for part in (slice(0, 8), slice(8, 20))
    ]
    found = diagonals_of(layers, passes)
    assert found.sizes == (8, 12) and found.hessian.shape == (2, 26)
    linear = diagonals_of(nn.Linear(3, 2, bias=False), passes)
    assert linear.hessian.shape == (2, 6)
