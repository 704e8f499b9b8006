"""Leaving unstable columns out: found without the domain left out, and what it costs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from shoal.datasets.tables import table_data
from shoal.fitting import stable_columns
from shoal.fitting.estimates import Candidate, Estimates
from shoal.fitting.fit import fit
from shoal.fitting.inspection import FitData
from shoal.fitting.stable_columns import (
    Price,
    StableColumns,
    _price_sentence,
    _reason,
    describe_columns,
    without_columns,
)
from shoal.fitting.unstable_columns import GroupEffects
from shoal.results.metrics import METRICS

SITES = ("a", "b", "c", "d")


def write(path: Path, rows: int = 200, turned: str = "d") -> Path:
    """Write a table: x0 helps everywhere, x1 agrees with the class but for one site."""
    random = np.random.default_rng(0)
    lines = ["site,class,x0,z,x1"]
    for site in SITES:
        for _ in range(rows):
            y = int(random.random() < 0.5)
            sign = -1 if site == turned else 1
            x0, x1 = random.normal(1.2 * (2 * y - 1)), random.normal(2.0 * sign * (2 * y - 1))
            lines.append(
                f"{site},{'ny'[y]},{x0:.4f},{'red' if random.random() < 0.5 else 'blue'},{x1:.4f}"
            )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("stable") / "t.csv")


def stable(path: Path) -> StableColumns:
    table = table_data("t", path, domain_column="site")
    return StableColumns(table.dataset, table.encoding)


def test_columns_are_judged_without_the_domains_left_out(path: Path) -> None:
    found = stable(path)
    assert found.flagged() == ("x1",)
    assert found.flagged(("a",)) == ("x1",)
    assert found.flagged(("d",)) == ()  # the only domain that differs
    assert found.dataset_without(("d",)) is found.dataset


def test_the_data_set_has_the_other_columns_in_their_places(path: Path) -> None:
    found = stable(path)
    without = found.dataset_without(("a",))
    assert without.name == "t without x1"
    assert found.datasets[without.name] is without
    assert without is found.dataset_without(("b",))
    assert without.fingerprint != found.dataset.fingerprint
    for name in SITES:
        torch.testing.assert_close(
            without[name].tensor, found.dataset[name].tensor[:, :3], equal_nan=True
        )
        assert torch.equal(without[name].labels, found.dataset[name].labels)


def test_a_table_of_unstable_columns_keeps_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stable(path)
    every = tuple(column.name for column in found.encoding.columns)
    real = stable_columns.unstable_columns

    def all_flagged(*args: object) -> object:
        return replace(
            real(*args),  # type: ignore[arg-type]
            groups=tuple(
                replace(group, flagged=True)
                for group in real(*args).groups  # type: ignore[arg-type]
            ),
        )

    monkeypatch.setattr(stable_columns, "unstable_columns", all_flagged)
    assert set(found.stability().flagged) == set(every)
    assert found.flagged() == ()
    named, told = describe_columns(found, True, made("worst"), None)
    assert named.startswith("Unstable columns: ")
    assert told == "No column is left out, because none would remain."


def test_a_policy_that_can_do_nothing_says_so(path: Path, tmp_path: Path) -> None:
    few = stable(write(tmp_path / "few.csv", rows=12))
    assert describe_columns(few, False, made(), None) == []
    assert describe_columns(few, True, made("worst"), None) == [
        "No column is left out: none could be tested for stability, because fewer than two classes "
        "have 10 rows in more than half of the domains."
    ]
    lines = path.read_text().splitlines()
    without = [line for line in lines if not line.startswith("a,y")]
    (tmp_path / "absent.csv").write_text("\n".join(without) + "\n")
    *_, told = describe_columns(stable(tmp_path / "absent.csv"), True, made("worst"), None)
    assert told == "Their effect is not known on 'a' (fewer than 10 rows of a class)."


def test_a_model_without_them_takes_the_whole_table(path: Path) -> None:
    table = table_data("t", path, domain_column="site")
    data = FitData(dataset=table.dataset, table=table, broken=[], copies=[], empty=[], findings=[])
    found = without_columns(data, StableColumns(table.dataset, table.encoding))
    assert found.table is not None
    assert [column.name for column in found.table.encoding.columns] == ["x0", "z"]
    row = {"x0": [1.0], "z": ["red"], "x1": [2.0]}
    assert found.table.encoding(row, "it").shape == (1, 3)
    assert "x1" in (found.table.encoding.ignored or ())


def made(judge: str = "mean") -> Estimates:
    return Estimates(
        candidates=(Candidate("erm", "ERM", "erm"),),
        judge=judge,
        examples=dict.fromkeys(SITES, 200),
        scores={"erm": {name: [0.8] for name in SITES}},
        guess=dict.fromkeys(SITES, 0.5),
        majority=dict.fromkeys(SITES, 0.5),
        chance=dict.fromkeys(SITES, 0.5),
    )


def test_sentences(path: Path) -> None:
    found = stable(path)
    price = Price(
        name="ERM", columns=("x1",), differences={"a": -0.06, "b": -0.08, "c": 0.0, "d": 0.35}
    )
    named, told = describe_columns(found, False, made(), price)
    assert named == (
        "Unstable column: x1 (its effect has the other sign on 'd'). A new domain may differ again."
    )
    assert told == (
        "Without x1, ERM would have: -7.0 points on 2 domains, +35.0 points on 'd', no difference "
        "on 'c'. --judge worst leaves such columns out."
    )
    assert describe_columns(found, True, made("worst"), None)[1] == (
        "The model does not use it, because the worst domain judges."
    )
    assert describe_columns(found, False, made(), None)[1] == (
        "There was no time to measure the model without it; --judge worst leaves such columns out."
    )
    assert describe_columns(None, False, made(), None) == []
    less = _price_sentence(replace(price, differences={"a": -0.1, "b": 0.02}), METRICS["log-loss"])
    assert "+0.020 on 'b', -0.100 on 'a'." in less  # of a loss, less is better: the cost is first
    none = _price_sentence(replace(price, differences={"a": 0.0, "b": 0.0}), METRICS["accuracy"])
    assert "ERM would have: no difference. --judge" in none
    hidden = replace(price, differences={"a": -0.06, "b": 0.0, "c": 0.0}, unseen=("c",))
    assert _price_sentence(hidden, METRICS["accuracy"]) == (
        "Without x1, ERM would have: -6.0 points on 'a', no difference on 'b'. --judge worst "
        "leaves such columns out. That changes nothing on 'c': the other domains alone give no "
        "reason to leave a column out. --leave-out x1 leaves it out everywhere."
    )


def test_a_sign_is_told_only_of_effects_that_are_sure_of_it() -> None:
    group = GroupEffects(
        names=("x1",),
        p=0.0,
        effects={0: -2.0, 1: -1.9, 2: 0.1},
        errors=dict.fromkeys(range(3), 0.2),
        mean=-1.3,
        spread=1.0,
        turns=False,
        flagged=True,
    )
    assert _reason(group, SITES) == "x1 (its effect is between -0.1 and 2.0, by domain)"
    turned = replace(group, effects={0: -2.0, 1: -1.9, 2: 0.5}, turns=True)
    assert _reason(turned, SITES) == "x1 (its effect has the other sign on 'c')"


@pytest.mark.parametrize("judge", ["mean", "worst"])
def test_a_fit_leaves_them_out_if_the_worst_domain_judges(
    path: Path, tmp_path: Path, judge: str
) -> None:
    result = fit(
        path,
        out=tmp_path / judge,
        domain_column="site",
        only=("logistic-regression",),
        trials=1,
        time=300,
        judge=judge,
    )
    assert result is not None
    told = " ".join(result.verdict.sentences)
    row = next(one for one in result.verdict.decision.rows if one.key == result.verdict.deploy)
    scores = {name: cell.mean for name, cell in row.cells.items()}
    model = shoal.load(tmp_path / judge)
    used = [column.name for column in model.encoding.columns] if model.encoding else []
    assert "Unstable column: x1" in told
    if judge == "worst":
        assert used == ["x0", "z"]
        # Without d nothing is unstable, so x1 misleads there all the same.
        assert min(scores["a"], scores["b"], scores["c"]) > 0.82
        assert scores["d"] < 0.5
    else:
        assert used == ["x0", "z", "x1"]
        assert "Without x1, logistic regression" in told
    new = {"x0": [2.0, -2.0], "z": ["red", "blue"], "x1": [0.0, 0.0]}
    assert [one.label for one in model.predict(new)] == ["y", "n"]
