"""The stored cells of DomainBed's protocol against the paper's LaTeX and DomainBed's tables."""

import re

import pytest

from shoal.algorithms import ALGORITHMS, VARIANTS
from shoal.catalogue import DATASETS as FACTS
from shoal.datasets import DATASETS
from shoal.reference import BENCHMARKS, PublishedTable, labels, published, published_table, remarks
from tests.reference.latex import LatexCell, latex_rows, shared_text

RULES = ("test-domain", "training-domain")
NO, YES = r"\xmark", r"\cmark"
# Rows of the ablations: our name, and what the paper prints: algorithm (None where it is the one
# above), then the weights, warm-up and moving average that its columns hold.
EMA = [
    ("erm", "ERM", "N/A"),
    ("vrex", "V-REx", NO),
    ("vrex-ema", None, YES),
    ("fishr-no-ema", "Fishr", NO),
    ("fishr", None, YES),
]
IGA = [
    ("erm", "ERM", "N/A", "N/A", "N/A"),
    ("iga", "IGA", "theta", NO, NO),
    ("iga-head", None, "omega", NO, NO),
    ("iga-head-warmup", None, "omega", YES, NO),
    ("iga-head-ema", None, "omega", YES, YES),
    ("fishr-plain", "Fishr", "omega", NO, NO),
    ("fishr-no-ema", None, "", YES, NO),
    ("fishr", None, "", YES, YES),
    ("fishr-iga", "Fishr + IGA", "omega", YES, YES),
]
LAMBDA = [
    ("fishr-lambda-0", "Constant($0$) (= ERM)"),
    ("fishr", r"$10^{\text {Uniform }(1, 4)}$"),
    ("fishr-v15", r"$10^{\text {Uniform }(1, 5)}$"),
]
ABLATIONS = {
    "table:ablationemacmnist": EMA,
    "table:ablationemahome": EMA,
    "table:igacmnist": IGA,
    "table:igahome": IGA,
    "table:v15": LAMBDA,
}
DOMAINBED = {
    "ColoredMNIST": "colored-mnist",
    "RotatedMNIST": "rotated-mnist",
    "VLCS": "vlcs",
    "PACS": "pacs",
    "OfficeHome": "office-home",
    "TerraIncognita": "terra-incognita",
    "DomainNet": "domainnet",
}


@pytest.fixture(scope="module")
def paper() -> str:
    return shared_text("paper/fishr.tex")


@pytest.fixture(scope="module")
def facts() -> str:
    text = shared_text("facts/domainbed.md")
    return text[text.index("### 8.3") : text.index("### 8.4")]


def stored_cells(table: PublishedTable, method: str) -> list[tuple[str, str | None]]:
    """A stored row as it would be printed: cells, average, ranking."""
    row = table.rows[method]
    assert list(row.cells) == list(table.columns)
    shown: list[tuple[str, str | None]] = [
        (f"{mean:.1f}", f"{error:.1f}") for mean, error in row.cells.values()
    ]
    shown.append((f"{row.average:.1f}", None))
    if row.ranking:
        assert list(row.ranking) == ["arithmetic", "geometric", "median"]
        shown += [(f"{row.ranking[name]:.1f}", None) for name in ("arithmetic", "geometric")]
        shown.append((str(row.ranking["median"]), None))
    return shown


def latex_cells(cells: list[LatexCell]) -> list[tuple[str, str | None]]:
    return [(cell.text, cell.error) for cell in cells]


@pytest.mark.parametrize("rule", RULES)
def test_main_tables_equal_the_latex(paper: str, rule: str) -> None:
    table = published_table(BENCHMARKS[rule], rule)
    rows = latex_rows(paper, BENCHMARKS[rule])
    assert [words for words, _ in rows] == [[row.name] for row in table.rows.values()]
    assert len(rows) == 18
    for method, (_, cells) in zip(table.rows, rows, strict=True):
        assert len(cells) == 7 + 1 + 3
        assert stored_cells(table, method) == latex_cells(cells), method


@pytest.mark.parametrize("label", ABLATIONS)
def test_ablations_equal_the_latex(paper: str, label: str) -> None:
    expected = ABLATIONS[label]
    rows = latex_rows(paper, label)
    assert len(rows) == 2 * len(expected)
    for rule, part in zip(RULES, (rows[: len(expected)], rows[len(expected) :]), strict=True):
        table = published_table(label, rule)
        assert list(table.rows) == [method for method, *_ in expected]
        assert rule.capitalize() in part[0][0][0]
        for (method, name, *details), (words, cells) in zip(expected, part, strict=True):
            said = re.sub(r"\\multirow\{\d\}\{\*\}\{(.*)\}$", r"\1", words[1])
            assert said == (name or ""), method
            for detail, word in zip(details, words[2:], strict=True):
                assert detail in word, method
            assert stored_cells(table, method) == latex_cells(cells), (rule, method)


@pytest.mark.parametrize("label", [*BENCHMARKS.values(), *ABLATIONS])
def test_headings_equal_the_latex(paper: str, label: str) -> None:
    before = paper[: paper.index(rf"\label{{{label}}}")]
    head = before[before.rindex(r"\toprule") :].partition(r"\midrule")[0]
    printed = [name.replace(r"\%", "%") for name in re.findall(r"\\textbf\{([^{}]*)\}", head)]
    headings = list(published(label)["columns"].values())
    first = printed.index(headings[0])
    assert printed[first : first + len(headings) + 1] == [*headings, "Avg"]


def test_the_average_without_colored_mnist_is_the_texts(paper: str) -> None:
    said = re.search(r"1\.Fishr\(avg=([\d.]+)\), 2\.CORAL\(([\d.]+)\), 3\.Mixup\(([\d.]+)\)", paper)
    erm = re.search(r"4\.ERM\(([\d.]+)\)", paper)
    assert said and erm
    stored = published("table:db_all_oracle")["without_colored_mnist"]
    assert list(stored) == ["fishr", "coral", "mixup", "erm"]
    assert list(stored.values()) == [float(number) for number in (*said.groups(), erm[1])]


def markdown_table(text: str, title: str) -> tuple[list[str], dict[str, list[str]]]:
    """Headings and rows of the first Markdown table after a title."""
    after = text[text.index(title) :].split("\n\n")[1]
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in after.splitlines()]
    return lines[0], {line[0]: line[1:] for line in lines[2:] if line[0]}


def check_domainbed(table: PublishedTable, head: list[str], rows: dict[str, list[str]]) -> None:
    assert [*table.columns.values(), "Avg"] == head[1:]
    assert [row.name.replace("-", "") for row in table.rows.values()] == list(rows)
    for method, cells in zip(table.rows, rows.values(), strict=True):
        own = [
            mean if error is None else f"{mean}±{error}"
            for mean, error in stored_cells(table, method)
        ]
        assert own == cells, method


@pytest.mark.parametrize("name", DOMAINBED)
def test_domainbeds_tables_by_domain(facts: str, name: str) -> None:
    head, rows = markdown_table(facts, f"**{name}** (cell")
    for place, rule in enumerate(RULES):
        table = published_table(f"domainbed:{DOMAINBED[name]}", rule)
        check_domainbed(
            table, head, {m: [cell.split(" / ")[place] for cell in row] for m, row in rows.items()}
        )


def test_domainbeds_leave_one_domain_out(facts: str) -> None:
    rule = "leave-one-domain-out"
    head, rows = markdown_table(facts, "**Leave-one-domain-out, ColoredMNIST")
    check_domainbed(published_table("domainbed:colored-mnist", rule), head, rows)
    head, rows = markdown_table(facts, "**Leave-one-domain-out averages**")
    table = published_table(f"domainbed:{rule}", rule)
    assert head[1:-1] == list(DOMAINBED)
    check_domainbed(table, ["", *table.columns.values(), "Avg"], rows)


def benchmark_parts() -> list[PublishedTable]:
    tables = {label: published(label) for label in labels()}
    return [
        published_table(label, part["rule"])
        for label, table in tables.items()
        for part in table.get("parts", [table])
        if "rule" in part
    ]


def test_every_name_is_one_of_shoals() -> None:
    short = {
        "vlcs": ["C", "L", "S", "V"],
        "pacs": ["A", "C", "P", "S"],
        "office-home": ["A", "C", "P", "R"],
        "terra-incognita": ["L100", "L38", "L43", "L46"],
        "domainnet": ["clip", "info", "paint", "quick", "real", "sketch"],
    }
    found = benchmark_parts()
    assert len(found) == 2 + 5 * 2 + 7 * 2 + 1 + 1
    for table in found:
        assert set(table.rows) <= ALGORITHMS.keys() | VARIANTS.keys(), table.label
        assert table.caption and table.source
    for rule in RULES:
        columns = list(published_table(BENCHMARKS[rule], rule).columns)
        # Sets that the paper does not have come after its own.
        assert columns == list(DATASETS)[:7]
        for name, headings in short.items():
            # The headings are DomainBed's short names.
            columns = published_table(f"domainbed:{name}", rule).columns
            assert columns == dict(zip(FACTS[name].domains, headings, strict=True))
    for name in ("colored-mnist", "rotated-mnist"):
        data = [domain.name for domain in DATASETS[name](None, 0).domains]
        assert list(published_table(f"domainbed:{name}", "test-domain").columns) == data


def test_domainbeds_averages_are_the_papers_cells() -> None:
    """The two sources agree: fourteen rows of the main tables are averages over the domains."""
    for rule in RULES:
        table = published_table(BENCHMARKS[rule], rule)
        for column in table.columns:
            by_domain = published_table(f"domainbed:{column}", rule)
            assert len(by_domain.rows) == 14
            for method, row in by_domain.rows.items():
                assert row.average == table.rows[method].cells[column][0], (rule, column, method)


def test_remarks_name_methods_of_the_tables() -> None:
    rows = published_table("table:db_all_oracle", "test-domain").rows
    known = remarks()
    assert known.methods.keys() <= rows.keys()
    assert {"mtl", "arm", "mixup", "dann", "cdann"} <= known.methods.keys()
    assert "noise" in known.methods["mtl"] and "0.1" in known.methods["mixup"]
    assert any("4,800" in line for line in known.sweep)


def test_what_is_not_there_says_so() -> None:
    with pytest.raises(ValueError, match="selection rule of table:v15 'oracle'") as caught:
        published_table("table:v15", "oracle")
    assert str(caught.value).endswith("One of: test-domain, training-domain")
    with pytest.raises(ValueError, match="did you mean 'test-domain'"):
        published_table("table:db_all_oracle", "test-domains")
    with pytest.raises(ValueError, match="not a table of DomainBed's protocol"):
        published_table("table:cmnist_25", "test-domain")
