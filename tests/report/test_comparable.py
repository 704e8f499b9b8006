"""What tells a run apart from those behind the published cells, and how that is said."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from shoal.algorithms.hparams import Hparams, draw, search_settings, values_for_run
from shoal.catalogue import DATASETS, record_every
from shoal.cli.methods import with_settings
from shoal.report.comparable import (
    Departure,
    departures,
    network_of,
    not_compared_lines,
)
from shoal.report.published import published_benchmark
from shoal.results.records import Record, RunResult
from shoal.runs.run import Protocol
from shoal.sweeps.plan import set_hparams, with_search

# What the mild search draws for ERM.
MILD = values_for_run(draw(Hparams, "large", 0, 3, search_settings(Hparams, "large", "mild")))


def made(dataset: str, **protocol: Any) -> RunResult:
    given = asdict(Protocol(**{"record_every": record_every(dataset), **protocol}))
    return RunResult(
        dataset=dataset,
        algorithm="erm",
        test_domains=("a",),
        trial=0,
        draw=0,
        hparams={},
        records=(),
        protocol=given,
    )


@pytest.mark.parametrize(
    "run",
    [
        made("pacs", weights="imagenet"),
        made("domainnet", weights="imagenet", network="resnet50", precision="bf16"),
        made("colored-mnist", images="exact", evaluate="all"),
        made("rotated-mnist", network="mnist-cnn"),
    ],
)
def test_runs_as_behind_the_published_cells(run: RunResult) -> None:
    (run,) = with_search([run])
    assert departures(run, 20) == []


@pytest.mark.parametrize(
    ("run", "draws", "said"),
    [
        (
            made("pacs", weights="imagenet", network="resnet18"),
            20,
            ["network resnet18 instead of resnet50"],
        ),
        (
            made("rotated-mnist", network="wide-resnet"),
            20,
            ["network wide-resnet instead of mnist-cnn"],
        ),
        (
            made("vlcs", steps=300),
            1,
            [
                "weights none instead of imagenet",
                "steps 300 instead of 5001",
                "draws 1 instead of 20",
            ],
        ),
        (made("colored-mnist", holdout=0.1), 20, ["holdout 0.1 instead of 0.2"]),
        (made("colored-mnist", augment=False), 20, ["augment off instead of on"]),
        (made("colored-mnist", balanced=True), 20, ["balanced on instead of off"]),
        (
            made("colored-mnist", frozen_statistics=False),
            20,
            ["frozen statistics off instead of on"],
        ),
        (made("colored-mnist", optimiser="sgd"), 20, ["optimiser sgd instead of adam"]),
        (made("colored-mnist", schedule="cosine"), 20, ["schedule cosine instead of constant"]),
        (made("colored-mnist", clip=1), 20, ["clip 1.0 instead of none"]),
        (
            made("colored-mnist", start="linear-probe"),
            20,
            ["start linear-probe instead of network"],
        ),
        (made("colored-mnist", record_every=300), 20, ["record every 300 instead of 100"]),
        (
            replace(made("pacs", weights="imagenet"), hparams={"lr": 0.01, "dropout": 0.0}),
            20,
            ["lr 0.01 instead of what the search draws"],
        ),
        (
            replace(made("pacs", weights="imagenet"), draw=3, hparams=MILD),
            20,
            ["search mild instead of DomainBed's"],
        ),
    ],
)
def test_what_is_not_as_behind_the_published_cells(
    run: RunResult, draws: int, said: list[str]
) -> None:
    (run,) = with_search([run])
    (line,) = not_compared_lines({("set", "erm"): departures(run, draws)})
    assert line == f"Not compared with published cells: set: ERM ({', '.join(said)})"


def test_a_reason_is_said_once_with_all_its_values() -> None:
    def departed(**draws: tuple[int, ...]) -> dict[tuple[str, str], list[Departure]]:
        return {
            ("pacs", name): [Departure("draws", count, 20) for count in counts]
            for name, counts in draws.items()
        }

    def why(found: dict[tuple[str, str], list[Departure]]) -> str:
        (line,) = not_compared_lines(found)
        return line.partition("cells: ")[2]

    assert why(departed(erm=(3, 1, 3))) == "pacs: ERM (draws 1 to 3 instead of 20)"
    several = departed(erm=(1,), coral=(1,), irm=(5, 2))
    assert why(several) == (
        "pacs: ERM, CORAL (draws 1 instead of 20); pacs: IRM (draws 2 to 5 instead of 20)"
    )
    several[("pacs", "irm")].append(Departure("network", "resnet18", "resnet50"))
    several[("pacs", "irm")].append(Departure("network", "vit", "resnet50"))
    assert why(several) == (
        "pacs: ERM, CORAL (draws 1 instead of 20); pacs: IRM (draws 2 to 5 instead of 20, "
        "network resnet18 or vit instead of resnet50)"
    )


def test_the_network_of_a_users_own_data_is_not_known() -> None:
    assert network_of(made("mine")) is None
    assert network_of(made("mine", network="resnet18")) == "resnet18"
    assert network_of(made("colored-mnist")) == "mnist-cnn"


def domainbeds(dataset: str, *steps: int) -> RunResult:
    """Return a run as DomainBed writes it down: without a protocol, with hyperparameters by key."""
    measured = tuple(Record(step=step, accuracy={"a": {"kept": 0.5}}) for step in steps)
    return RunResult(
        dataset=dataset,
        algorithm="erm",
        test_domains=("a",),
        trial=0,
        draw=3,
        hparams={"resnet_dropout": 0.7},
        records=measured,
    )


@pytest.mark.parametrize(
    ("run", "draws", "said"),
    [
        (domainbeds("colored-mnist", *range(0, 5001, 100)), 20, []),
        (domainbeds("pacs", *range(0, 5000, 300)), 20, []),  # its sweep of 2020 ended at 4800
        (domainbeds("pacs", *range(0, 5000, 300), 5000), 20, []),
        (domainbeds("domainnet", *range(0, 5001, 1000)), 20, []),
        (domainbeds("pacs", 0, 300, 600), 20, [Departure("last step", 600, 5000)]),
        (domainbeds("vlcs", *range(0, 5001, 100)), 20, [Departure("record every", 100, 300)]),
        (domainbeds("vlcs", *range(0, 5000, 300)), 3, [Departure("draws", 3, 20)]),
    ],
)
def test_of_domainbeds_runs_the_records_are_looked_at(
    run: RunResult, draws: int, said: list[Departure]
) -> None:
    (run,) = with_search([run])
    assert departures(run, draws) == said


@pytest.mark.parametrize("algorithm", ["fishr", "iga-head"])
def test_what_the_search_draws_was_not_set(algorithm: str) -> None:
    """Also of a variant, whose settings are its own; an option of later may be left out."""
    method, settings = with_settings(algorithm)
    hparams = values_for_run(draw(method.Hparams, "small", 1, 7, settings))
    run = replace(made("colored-mnist"), algorithm=algorithm, trial=1, draw=7, hparams=hparams)
    assert set_hparams(run) == {}
    for other in (replace(run, draw=8), replace(run, trial=0)):
        assert {"lr", "batch_size"} <= set_hparams(other).keys()
    assert set_hparams(replace(run, hparams={**hparams, "lr": 1.0})) == {"lr": 1.0}
    assert set_hparams(replace(run, algorithm="mine.py:Mine@01", draw=8)) == {}
    # A fit has defaults of its own for a user's data.
    assert set_hparams(replace(run, dataset="mine")) == {}


def test_every_published_data_set_has_its_network() -> None:
    assert set(DATASETS) >= set(published_benchmark("test-domain").columns)
