"""What names a run: everything that its numbers depend on, and nothing of the machine."""

import hashlib
import json
import tarfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.catalogue import RECORD_EVERY, scale_of
from shoal.runs.machine import Machine
from shoal.runs.run import Protocol, Run

RUN = Run(
    dataset="pacs",
    fingerprint="0" * 64,
    algorithm="fishr",
    test_domains=("sketch",),
    trial=1,
    draw=2,
    hparams={"lr": 5e-05, "batch_size": 32, "centered": True},
    protocol=Protocol(record_every=300, weights="imagenet"),
)


# With its keys in order, and floats as Python writes them.
TEXT = (
    '{"algorithm": "fishr", "dataset": "pacs", "draw": 2, '
    '"fingerprint": "0000000000000000000000000000000000000000000000000000000000000000", '
    '"hparams": {"batch_size": 32, "centered": true, "lr": 5e-05}, '
    '"protocol": {"augment": true, "balanced": false, "clip": null, "evaluate": "needed", '
    '"frozen_statistics": true, "holdout": 0.2, "images": "cached", "network": null, '
    '"optimiser": "adam", "precision": "float32", "record_every": 300, '
    '"schedule": "constant", "steps": 5001, "weights": "imagenet"}, "schema": 1, '
    '"test_domains": ["sketch"], "trial": 1}'
)


def test_an_identity_that_must_never_change() -> None:
    """Folders, checkpoints and sweeps of before are found by it.

    A field that is added to a run or its protocol must not enter at its default.
    """
    assert json.dumps(RUN.canonical(), sort_keys=True) == TEXT
    assert RUN.identity == hashlib.sha256(TEXT.encode()).hexdigest()
    assert RUN.identity.startswith("41f28af0abb2b17e")


OTHERS: dict[str, Any] = {
    "dataset": "vlcs",
    "fingerprint": "1" * 64,
    "algorithm": "erm",
    "test_domains": ("photo",),
    "trial": 0,
    "draw": 0,
    "hparams": {"lr": 5e-05, "batch_size": 33, "centered": True},
    "protocol": Protocol(),
}
OTHER_PROTOCOLS: dict[str, Any] = {
    "steps": 5000,
    "record_every": 301,
    "holdout": 0.3,
    "network": "resnet18",
    "weights": None,
    "precision": "bf16",
    "images": "exact",
    "augment": False,
    "balanced": True,
    "frozen_statistics": False,
    "optimiser": "adamw",
    "schedule": "cosine",
    "clip": 1.0,
    "evaluate": "all",
    "start": "linear-probe",
    "stop": "held-out",
}


def test_everything_that_matters_enters() -> None:
    assert list(OTHERS) == [field.name for field in fields(Run)]
    assert list(OTHER_PROTOCOLS) == [field.name for field in fields(Protocol)]
    found = {RUN.identity}
    found |= {replace(RUN, **{name: value}).identity for name, value in OTHERS.items()}
    for name, value in OTHER_PROTOCOLS.items():
        found.add(replace(RUN, protocol=replace(RUN.protocol, **{name: value})).identity)
    assert len(found) == 1 + len(OTHERS) + len(OTHER_PROTOCOLS)


def test_nothing_of_the_machine_enters() -> None:
    ours = {field.name for field in fields(Machine)}
    assert ours & {field.name for field in (*fields(Run), *fields(Protocol))} == {"weights"}
    # Of weights there is the hash, and the machine has the file.
    text = json.dumps(RUN.canonical())
    assert not any(word in text for word in ("cuda", "cpu", "/", str(Path.home()), "device"))


def test_the_order_of_test_domains_does_not_matter() -> None:
    one, other = (replace(RUN, test_domains=names) for names in (("a", "b"), ("b", "a", "b")))
    assert one == other
    assert one.identity == other.identity
    assert one.test_domains == ("a", "b")
    assert one.identity != replace(RUN, test_domains=("a",)).identity


def test_the_order_of_hyperparameters_does_not_matter() -> None:
    other = replace(RUN, hparams=dict(reversed(RUN.hparams.items())))
    assert other.identity == RUN.identity


def test_floats_are_what_they_are() -> None:
    """However they were written; and their last bit counts."""
    same = replace(RUN, hparams={**RUN.hparams, "lr": float("0.00005")})
    assert same.identity == RUN.identity
    whole, floating = (replace(RUN, protocol=Protocol(clip=x, holdout=x - 1)) for x in (1, 1.0))
    assert whole.identity == floating.identity
    near = replace(RUN, hparams={**RUN.hparams, "lr": float(np.nextafter(5e-05, 1))})
    assert near.identity != RUN.identity


def test_round_trip() -> None:
    text = json.dumps(RUN.canonical())
    found = Run.from_json(json.loads(text))
    assert found == RUN
    assert found.identity == RUN.identity
    assert json.dumps(found.canonical()) == text
    odd = replace(RUN, hparams={"lr": 0.1 + 0.2, "flag": False, "name": "ζ"}, test_domains=())
    assert Run.from_json(json.loads(json.dumps(odd.canonical()))).identity == odd.identity


def test_what_is_canonical_is_a_copy() -> None:
    values = RUN.canonical()
    values["hparams"]["lr"] = 1.0
    values["protocol"]["steps"] = 1
    values["test_domains"].append("x")
    assert RUN.hparams["lr"] == 5e-05
    assert RUN.protocol.steps == 5001
    assert RUN.test_domains == ("sketch",)


def test_a_file_from_before_a_field_was_added() -> None:
    """What it does not say is at its default."""
    values = RUN.canonical()
    for name in ("clip", "evaluate", "augment"):
        del values["protocol"][name]
    del values["trial"]
    assert Run.from_json(values) == replace(RUN, trial=0)


def test_a_start_enters_only_where_it_is_another() -> None:
    """A run of before has no such field, and keeps its name and its file."""
    plain = replace(RUN, protocol=replace(RUN.protocol, start="network"))
    assert plain.identity == RUN.identity
    assert "start" not in plain.canonical()["protocol"]
    given = RUN.canonical()["protocol"] | {"start": "network"}
    assert Run.from_json(change(protocol=given)) == RUN
    probed = replace(RUN, protocol=replace(RUN.protocol, start="linear-probe"))
    assert probed.identity != RUN.identity
    assert probed.canonical()["protocol"]["start"] == "linear-probe"
    assert Run.from_json(probed.canonical()) == probed


ARCHIVES = sorted((Path(__file__).parents[2] / "docs" / "results").rglob("*.tar.gz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_runs_of_the_committed_archives_keep_their_names(archive: Path) -> None:
    """A folder of a sweep is named by the run's identity, whatever was added to runs since."""
    found = 0
    with tarfile.open(archive) as members:
        for member in members:
            path = Path(member.name)
            if path.name == "run.json":
                file = members.extractfile(member)
                assert file is not None
                run = Run.from_json(json.load(file))
                assert run.identity.startswith(path.parent.name), member.name
                assert len(path.parent.name) == 20
                found += 1
    assert found > 0


def test_there_are_archives() -> None:
    assert len(ARCHIVES) >= 6


def change(**changes: Any) -> dict[str, Any]:
    return RUN.canonical() | changes


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "expected a run of schema 1, got"),
        ("run", "expected a run of schema 1, got 'run'"),
        (change(schema=2), "expected a run of schema 1"),
        ({key: v for key, v in RUN.canonical().items() if key != "schema"}, "schema 1"),
        (change(colour="red"), "another version of shoal .*'colour'"),
        (change(protocol=RUN.canonical()["protocol"] | {"warp": 9}), "another version.*'warp'"),
        ({key: v for key, v in RUN.canonical().items() if key != "protocol"}, "'protocol'"),
        ({key: v for key, v in RUN.canonical().items() if key != "dataset"}, "'dataset'"),
        (change(protocol=None), "another version"),
        (change(hparams=[1]), "another version"),
        (change(protocol=RUN.canonical()["protocol"] | {"steps": 0}), "steps must be"),
    ],
)
def test_what_is_no_run(values: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Run.from_json(values)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"steps": 0}, "steps must be a whole number, 1 or more, got 0"),
        ({"steps": 10.5}, "steps must be a whole number"),
        ({"record_every": -1}, "record_every must be"),
        ({"holdout": 1.0}, "holdout must be 0 or more and below 1, got 1.0"),
        ({"holdout": float("nan")}, "holdout"),
        ({"precision": "fp32"}, "precision 'fp32'; did you mean 'bf16'|unknown precision"),
        ({"images": "exakt"}, "did you mean 'exact'"),
        ({"evaluate": "everything"}, "choice of splits"),
        ({"optimiser": "adm"}, "did you mean 'adam'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"start": "probe"}, "unknown start 'probe'.*linear-probe"),
        ({"clip": 0.0}, "clip must be a norm above 0"),
    ],
)
def test_what_a_protocol_refuses(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Protocol(**changes)


@pytest.mark.parametrize("value", [np.int64(3), None, [1], Path("x"), 1j])
def test_hyperparameters_that_cannot_be_saved(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"hyperparameter size must be .* it is saved as JSON, got"
    ):
        replace(RUN, hparams={"size": value})


def test_numbers_of_numpy_that_are_floats_can_be_saved() -> None:
    plain, numpy = (replace(RUN, hparams={"lr": kind(0.1)}) for kind in (float, np.float64))
    assert plain.identity == numpy.identity


def test_how_often_records_are_made_is_domainbed_s() -> None:
    assert [RECORD_EVERY[scale_of(name)] for name in ("colored-mnist", "pacs", "domainnet")] == [
        100,
        300,
        1000,
    ]
    assert scale_of("my own images") == "large"
