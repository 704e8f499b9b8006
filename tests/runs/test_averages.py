"""A run with averages: the run itself stays as it is, and its averages are in their own file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shoal.cli.options import averages_of
from shoal.results.averages import AVERAGES_FILE, read_averages, with_averages
from shoal.results.records import read_runs
from tests.training.little import watching

from .small import carry_out, tiny_run
from .test_execute import Killed

ALL = ("sma", "half", "swad")
RUN = {"steps": 124, "record_every": 40}


def test_averages_change_no_byte_of_the_run(tmp_path: Path) -> None:
    carry_out(tmp_path / "plain", tiny_run(**RUN))
    carry_out(tmp_path / "averaged", tiny_run(**RUN), machine={"averages": ALL})
    for name in ("records.jsonl", "run.json", "model.safetensors", "model.json"):
        plain, averaged = (tmp_path / one / name for one in ("plain", "averaged"))
        assert plain.read_bytes() == averaged.read_bytes(), name
    assert not (tmp_path / "plain" / AVERAGES_FILE).exists()
    found = read_averages(tmp_path / "averaged")
    # SWAD does not start while the loss keeps falling, as here.
    assert [one.extra["average"] for one in found if one.step == 123] == ["sma", "half"]
    rows = with_averages(read_runs([tmp_path / "averaged"]))
    assert [row.algorithm for row in rows] == ["fishr", "fishr+sma", "fishr+half"]


def test_a_killed_run_ends_with_the_same_averages(tmp_path: Path) -> None:
    carry_out(tmp_path / "whole", tiny_run(**RUN), machine={"averages": ALL})
    for kill in (30, 70, 100):

        def die(progress: object, at: int = kill) -> None:
            if progress.done > at:  # type: ignore[attr-defined]
                raise Killed

        with pytest.raises(Killed):
            carry_out(
                tmp_path / "killed",
                tiny_run(**RUN),
                every=0.0,
                machine={"averages": ALL},
                watcher=watching(progress=die),
            )
    carry_out(tmp_path / "killed", tiny_run(**RUN), every=0.0, machine={"averages": ALL})
    for name in ("records.jsonl", AVERAGES_FILE):
        whole, killed = (tmp_path / one / name for one in ("whole", "killed"))
        assert whole.read_bytes() == killed.read_bytes(), name


def test_a_finished_run_stays_valid_without_averages(tmp_path: Path) -> None:
    carry_out(tmp_path, tiny_run(**RUN))
    carry_out(tmp_path, tiny_run(**RUN), machine={"averages": ALL})
    assert not (tmp_path / AVERAGES_FILE).exists()


def test_logits_of_the_last_weights_and_of_averages(tmp_path: Path) -> None:
    machine = {"averages": ("half",), "predictions": True}
    result = carry_out(tmp_path, tiny_run(**RUN), machine=machine)
    logits = load_file(tmp_path / "logits.safetensors")
    averages = {one.step: one for one in read_averages(tmp_path)}
    for name, record in (("last", result.records[-1]), ("half", averages[123])):
        for domain, splits in record.accuracy.items():
            for split, accuracy in splits.items():
                right = logits[f"{name}/{domain}/{split}"].float().argmax(1)
                labels = logits[f"labels/{domain}/{split}"]
                assert float((right == labels).double().mean()) == pytest.approx(accuracy)
    assert {value.dtype for key, value in logits.items() if key[0] != "l"} == {torch.float16}
    assert not any(key.startswith("swad/") for key in logits)


@pytest.mark.parametrize(
    ("words", "names"),
    [(["all"], ALL), (["none"], ()), (["swad", "sma", "swad"], ("swad", "sma"))],
)
def test_the_option(words: list[str], names: tuple[str, ...]) -> None:
    assert averages_of(words) == names


def test_none_goes_alone() -> None:
    with pytest.raises(ValueError, match="--average none goes alone, got none sma"):
        averages_of(["none", "sma"])
