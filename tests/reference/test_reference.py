"""The stored cells against the paper's LaTeX, cell by cell."""

from __future__ import annotations

import json
import re

import pytest

from shoal.reference import labels, published, published_rows
from tests.reference.latex import shared_text

COLUMNS = ("train", "test", "gray")
CELL = re.compile(r"(\d+\.\d)\s*\$\\pm\$\s*(\d+\.\d)")
METHODS = ["erm", "irm", "vrex", "fishr-theta", "fishr-omega", "fishr-phi"]
STATISTICS = [
    f"{statistic}-{part}"
    for part in ("omega", "theta", "phi")
    for statistic in ("fishr", "covariance", "uncentered")
]


@pytest.fixture(scope="module")
def paper() -> str:
    return shared_text("paper/fishr.tex")


def latex_lines(paper: str, label: str) -> list[str]:
    """The lines of the tabular that stands before this label, from the first row of cells on."""
    before = paper[: paper.index(rf"\label{{{label}}}")]
    tabular = before[before.rindex(r"\begin{tabular}") : before.rindex(r"\end{tabular}")]
    return [line for line in tabular.splitlines() if CELL.search(line) or "Not " in line]


def latex_cells(line: str) -> list[list[float]]:
    return [[float(mean), float(std)] for mean, std in CELL.findall(line)]


@pytest.mark.parametrize(("label", "flip"), [("table:cmnist_25", 0.25), ("table:cmnist_0", 0.0)])
def test_main_tables_equal_the_latex(paper: str, label: str, flip: float) -> None:
    rows = published_rows(label, flip)
    lines = latex_lines(paper, label)
    assert list(rows) == METHODS
    assert len(lines) == len(METHODS)
    starts = ["ERM", "IRM", "V-REx", r"Fishr$_{\theta}", r"Fishr$_{\omega}", r"Fishr$_{\phi}"]
    for method, line, start in zip(METHODS, lines, starts, strict=True):
        cells = rows[method]
        assert cells is not None
        assert line.strip().startswith(start)
        assert [cells[column] for column in COLUMNS] == latex_cells(line), method


def test_statistics_table_equals_the_latex(paper: str) -> None:
    lines = latex_lines(paper, "table:cmnistend")
    noisy = published_rows("table:cmnistend", 0.25)
    clean = published_rows("table:cmnistend", 0.0)
    assert list(noisy) == list(clean) == STATISTICS
    names = {"fishr": "Centered variance", "covariance": "Centered cov", "uncentered": "Uncentered"}
    for method, line in zip(STATISTICS, lines, strict=True):
        assert names[method.split("-")[0]] in line
        left, right = noisy[method], clean[method]
        if left is None or right is None:
            assert left is right is None
            assert method in ("covariance-theta", "covariance-phi")
            assert "possible" in line
        else:
            both = [cells[column] for cells in (left, right) for column in COLUMNS]
            assert both == latex_cells(line), method


def test_each_table_keeps_its_own_cell_where_the_paper_differs() -> None:
    one = published_rows("table:cmnist_0", 0.0)["fishr-theta"]
    other = published_rows("table:cmnistend", 0.0)["fishr-theta"]
    assert one is not None and one["test"] == [93.6, 0.4]
    assert other is not None and other["test"] == [93.5, 0.3]


def test_tables_have_caption_and_source() -> None:
    assert {"table:cmnist_0", "table:cmnist_25", "table:cmnistend"} <= set(labels())
    assert labels() == sorted(labels())
    for label in labels():
        table = published(label)
        assert table["caption"] and table["source"]
    assert published("table:cmnist_25")["flip"] == 0.25
    assert published("table:cmnist_25")["rows"]["erm"]["test"] == [14.0, 0.7]


def test_a_caller_may_change_what_it_was_given() -> None:
    published("table:cmnist_25")["rows"].clear()
    assert list(published("table:cmnist_25")["rows"]) == METHODS


def test_unknown_names_say_what_would_be_right() -> None:
    with pytest.raises(ValueError) as caught:
        published("table:cmnist25")
    assert str(caught.value) == (
        "unknown table 'table:cmnist25'; did you mean 'table:cmnist_25'? "
        f"One of: {', '.join(labels())}"
    )
    with pytest.raises(ValueError, match=r"unknown table 'zzz'\. One of: domainbed:"):
        published("zzz")
    with pytest.raises(ValueError, match=r"no cells for flip 0\.1; one of: 0\.25, 0$"):
        published_rows("table:cmnistend", 0.1)
    with pytest.raises(ValueError, match="not a table of the IRM setup; read it with "):
        published_rows("table:v15", 0.25)


def test_analyses_equal_the_latex(paper: str) -> None:
    """Every number of the small tables and of the text stands in the paper beside its row."""

    def tabular(label: str) -> str:
        before = paper[: paper.index(rf"\label{{{label}}}")]
        return before[before.rindex(r"\begin{tabular}") :]

    linear = [line for line in tabular("tab:appendix-linear").splitlines() if "[" in line]
    for row, line in zip(published("tab:appendix-linear")["rows"].values(), linear, strict=True):
        name, statistic, train, test, weights, bias = (
            field.strip(" \\") for field in line.split("&")
        )
        assert (row["name"], row["statistic"]) == (name, statistic)
        assert (f"{row['train']} \\%", f"{row['test']} \\%") == (train, test)
        assert (row["weights"], row["bias"]) == (json.loads(weights), float(bias))
    cosines = published("table:simhessiangradvar")["rows"]
    text = tabular("table:simhessiangradvar")
    for line, row in zip(("On classifier", "On all network"), cosines.values(), strict=True):
        found = re.findall(r"0\.\d{7}", text[text.index(line) :].splitlines()[0])
        assert [f"{row[domain]:.7f}" for domain in ("90%", "80%")] == found
    gaps = published("table:hessianermfishr")["rows"]
    text = tabular("table:hessianermfishr")
    numbers = re.findall(r"\$(\d\.\d)(?: \\times 10\^\{(-\d)\})?\$", text)
    values = [float(f"{mantissa}e{exponent or 0}") for mantissa, exponent in numbers]
    assert [row[name] for row in gaps.values() for name in ("erm", "fishr")] == values
    costs = published("text:overhead")["rows"]
    said = re.findall(r"\+(\d\.\d)\\%", paper[paper.index("Fishr induces an overhead in memory") :])
    expected = [costs[head][what] for head in costs for what in ("memory", "time")]
    assert expected == [float(number) for number in said[:4]]
