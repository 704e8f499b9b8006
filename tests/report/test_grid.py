"""Tables of methods on data sets: the paper's own, cell by cell, and tables with gaps."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from shoal.report.grid import (
    Accuracy,
    Benchmark,
    ExtraColumn,
    Grid,
    GridEntry,
    GridMethod,
    grid,
    published_grid,
)
from shoal.report.published import (
    averages_that_differ,
    published_benchmark,
    published_cells,
    published_data,
    published_domains,
    published_notes,
    remark_lines,
)
from shoal.report.views import latex, markdown, terminal
from shoal.results.aggregation import Mark
from tests.reference.latex import latex_rows, shared_text

LABELS = {"test-domain": "table:db_all_oracle", "training-domain": "table:db_all_training"}
# The paper underlines IRM's 78.5 on VLCS as second, where DANN has 78.6.
SLIPS = {"test-domain": set(), "training-domain": {("IRM", "VLCS"), ("DANN", "VLCS")}}


def benchmark(**cells: dict[str, tuple[float, float | None]]) -> Benchmark:
    """A table of two data sets; a method is named by its argument."""
    return Benchmark(
        "Ours",
        "table:ours",
        {"pacs": "PACS", "vlcs": "VLCS"},
        {
            key: GridMethod(key.upper(), {name: Accuracy(*cell) for name, cell in row.items()})
            for key, row in cells.items()
        },
    )


WITH_A_GAP = benchmark(
    erm={"pacs": (85.0, 0.5), "vlcs": (77.0, 0.3)},
    coral={"pacs": (87.04, None)},
    fishr={"pacs": (86.96, 0.2), "vlcs": (76.0, 0.4)},
)


def shown(table: Grid, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for piece in terminal(table, width):
        console.print(piece)
    return out.getvalue()


@pytest.mark.parametrize("rule", LABELS)
def test_the_papers_tables_cell_by_cell(rule: str) -> None:
    """Our LaTeX and the paper's, through one parser: numbers, errors, ranking columns, marks."""
    paper = latex_rows(shared_text("paper/fishr.tex"), LABELS[rule])
    made = grid(published_benchmark(rule))
    ours = latex_rows(latex(made), LABELS[rule])
    assert [words for words, _ in ours] == [words for words, _ in paper]
    headings = [*made.columns, *made.summary]
    numbers, marks = set(), set()
    for ([name], own), (_, printed) in zip(ours, paper, strict=True):
        for heading, a, b in zip(headings, own, printed, strict=True):
            if (a.text, a.error) != (b.text, b.error):
                numbers.add((name, heading))
            if (a.bold, a.underlined, a.gray) != (b.bold, b.underlined, b.gray):
                marks.add((name, heading))
    assert numbers == set()
    assert [line.name for line in made.lines if line.apart] == ["Fishr"]
    assert marks == SLIPS[rule]


def test_the_rows_whose_printed_average_differs() -> None:
    assert averages_that_differ(published_benchmark("test-domain")) == {"mldg": ("68.7", "68.6")}
    assert averages_that_differ(published_benchmark("training-domain")) == {
        "mixup": ("66.7", "66.8"),
        "cdann": ("65.6", "65.7"),
        "sagnet": ("67.2", "67.3"),
        "fish": ("67.1", "67.0"),
    }


def test_notes_say_what_the_paper_says() -> None:
    average, without = published_notes("test-domain")
    assert "differs by 0.1 in 1 of 18 rows: MLDG 68.6 (printed 68.7)." in average
    assert "1. Fishr 71.1, 2. CORAL 71.0, 3. Mixup 70.8, 4. ERM 70.5" in without
    assert "MLDG" not in without
    *_, slip = published_notes("training-domain")
    assert "IRM's 78.5" in slip and "DANN has 78.6" in slip
    lines = remark_lines()
    assert any(line.startswith("DANN, CDANN: ") for line in lines)
    assert any(line.startswith("MTL: ") and "noise" in line for line in lines)


def test_data_holds_the_computed_columns() -> None:
    [table] = published_data(["test-domain"])["tables"]
    fishr = table["methods"]["fishr"]
    assert list(fishr["ranks"].values()) == [1, 12, 3, 5, 2, 2, 2]
    assert fishr["ranking"]["arithmetic"] == pytest.approx(27 / 7)
    assert fishr["cells"]["domainnet"] == {"mean": 41.8, "error": 0.2}
    assert fishr["average_printed"] == 70.8
    assert fishr["average_of_cells"] == pytest.approx(495.3 / 7)
    assert fishr["average_without_colored_mnist"] == pytest.approx(426.5 / 6)


def test_a_missing_cell_leaves_its_row_without_average_and_ranking() -> None:
    made = grid(WITH_A_GAP)
    erm, coral, fishr = made.lines
    assert coral.cells == (GridEntry("87.0", "", Mark(1)), GridEntry("–"))
    assert coral.summary == (GridEntry(), GridEntry(), GridEntry(), GridEntry())
    # On PACS 87.04 and 86.96 are both printed as 87.0: two firsts, and ERM is third.
    assert fishr.cells == (
        GridEntry("87.0", "0.2", Mark(1)),
        GridEntry("76.0", "0.4", Mark(2, worse=True)),
    )
    assert [entry.text for entry in erm.summary] == ["81.0", "2.0", "1.7", "2"]
    assert [entry.text for entry in fishr.summary] == ["81.5", "1.5", "1.4", "1.5"]
    assert fishr.summary[0].mark == Mark(1)
    assert erm.summary[0].mark == Mark(2)
    assert WITH_A_GAP.ranks() == {
        "pacs": {"erm": 3, "coral": 1, "fishr": 1},
        "vlcs": {"erm": 1, "fishr": 2},
    }


def test_an_average_is_the_printed_one_where_there_is_one() -> None:
    cells = {"pacs": Accuracy(80.0), "vlcs": Accuracy(70.0)}
    methods = {
        "erm": GridMethod("ERM", cells, printed_average=75.1),
        "fishr": GridMethod("Fishr", cells),
    }
    table = Benchmark("", "", {"pacs": "PACS", "vlcs": "VLCS"}, methods)
    assert table.shown_averages() == {"erm": 75.1, "fishr": 75.0}
    assert table.averages() == {"erm": 75.0, "fishr": 75.0}
    assert table.averages(frozenset({"pacs"})) == {"erm": 70.0, "fishr": 70.0}
    assert averages_that_differ(table) == {"erm": ("75.1", "75.0")}


def test_published_cells_beside_ours() -> None:
    published = benchmark(
        erm={"pacs": (84.0, 1.2), "vlcs": (77.0, 0.0)},
        coral={"pacs": (86.0, 0.0)},
        irm={"pacs": (1.0, 1.0)},
    )
    ours = benchmark(
        erm={"pacs": (82.7, 0.5), "vlcs": (77.2, 0.4)},
        coral={"pacs": (87.0, 0.0), "vlcs": (1.0, 1.0)},
        fishr={"pacs": (86.0, 0.2)},
    )
    made = published_grid(ours, published)
    assert made is not None
    # (82.7 − 84.0)/√(0.5² + 1.2²) = −1; 0.2/0.4; no error on either side says nothing.
    texts = [(line.name, [(e.text, e.error) for e in line.cells]) for line in made.lines]
    assert texts == [
        ("ERM", [("84.0", "1.2 (−1.0)"), ("77.0", "0.0 (+0.5)")]),
        ("CORAL", [("86.0", "0.0"), ("–", "")]),
    ]
    assert made.summary == () and made.label != ours.label
    assert markdown(made).splitlines()[2] == "| Method | PACS | VLCS |"
    assert r"\cmidrule" not in latex(made)
    assert published_grid(benchmark(fishr={"pacs": (86.0, 0.2)}), published) is None


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [(50.0, 0.3, " (0.0)"), (50.01, 0.3, " (0.0)"), (49.99, 0.3, " (0.0)"), (49.0, None, "")],
)
def test_a_difference_of_nothing_has_no_sign(mean: float, error: float | None, text: str) -> None:
    made = published_grid(
        benchmark(erm={"pacs": (mean, error)}), benchmark(erm={"pacs": (50.0, 0.4)})
    )
    assert made is not None and made.lines[0].cells == (
        GridEntry("50.0", f"0.4{text}"),
        GridEntry(),
    )


def test_published_cells_by_domain() -> None:
    found = published_domains("colored-mnist", "test-domain")
    assert found is not None and list(found.columns) == ["+90%", "+80%", "-90%"]
    # Of DomainBed's table, of the moving average's and of IGA's.
    for key, cell in {"irm": None, "fishr": (58.9, 3.7), "fishr-iga": None}.items():
        mine = found.methods[key].cells["-90%"]
        assert cell is None or mine == Accuracy(*cell)
    assert published_domains("pacs", "training-domain") is not None
    assert published_domains("pacs", "calibrated") is None
    assert published_domains("photos", "test-domain") is None


def test_published_averages_of_every_rule() -> None:
    found = {rule: published_cells(rule) for rule in ("test-domain", "leave-one-domain-out")}
    assert found["test-domain"] is not None and "fishr" in found["test-domain"].methods
    left_out = found["leave-one-domain-out"]
    assert left_out is not None and left_out.methods["erm"].cells["pacs"] == Accuracy(83.0, 0.7)
    assert published_cells("calibrated") is None


def test_markdown_marks_and_gaps() -> None:
    lines = markdown(grid(WITH_A_GAP)).splitlines()
    assert lines[0] == "**Ours**"
    assert lines[2] == "| Method | PACS | VLCS | Avg | Arith. mean | Geom. mean | Median |"
    assert lines[4].startswith("| ERM | 85.0 ± 0.5 | **77.0** ± 0.3 | <ins>81.0</ins> |")
    assert lines[5] == "| CORAL | **87.0** | – | – | – | – | – |"
    assert lines[6].startswith("| FISHR | **87.0** ± 0.2 | <ins>76.0</ins> ± 0.4 ↓ | **81.5** |")


def test_latex_escapes_and_draws_lines() -> None:
    method = GridMethod(r"50 % of_a & b", {"x": Accuracy(1.0)}, apart=True)
    text = latex(grid(Benchmark("A_b", "table:x", {"x": "+90%"}, {"m": method})))
    assert r"50 \% of\_a \& b & \textbf{1.0} & \textbf{1.0}" in text
    assert r"\textbf{+90\%}" in text
    assert r"\caption{A\_b." in text
    assert text.count(r"\midrule") == 2
    assert text.index(r"\midrule") < text.index("50") < text.index(r"\bottomrule")
    tabular = re.search(r"begin\{tabular\}\{(l+c+)\}", text)
    assert tabular and tabular[1] == "lccccc"


@pytest.mark.parametrize("rule", LABELS)
@pytest.mark.parametrize(("width", "pieces"), [(130, 1), (120, 1), (80, 2), (60, 3), (40, 4)])
def test_no_terminal_cuts_a_number(rule: str, width: int, pieces: int) -> None:
    made = grid(published_benchmark(rule))
    assert len(terminal(made, width)) == pieces
    text = shown(made, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for line in made.lines:
        for entry in (*line.cells, *line.summary):
            assert entry.text in text
    found = sorted(re.findall(r"(\d+\.\d) ?± ?(\d+\.\d)", text))
    assert found == sorted((e.text, e.error) for line in made.lines for e in line.cells)


@pytest.mark.parametrize("name", ["ERM", "fishr-rescaled"])
def test_a_narrow_summary_is_spaced_by_itself_or_divided(name: str) -> None:
    """One column of accuracies leaves room; four of the summary in forty columns do not."""
    methods = {"erm": GridMethod(name, {"x": Accuracy(80.0, 1.0)})}
    made = grid(Benchmark("PACS", "tab:pacs", {"x": "PACS"}, methods))
    text = shown(made, 40)
    assert "…" not in text and "80.0 ± 1.0" in text
    assert all(word in text for heading in made.summary for word in heading.split())


def test_columns_beside_the_average() -> None:
    """Seven numbers, six with their errors, stand side by side in eighty columns."""
    domains = {name: name for name in ("art_painting", "cartoon", "photo", "sketch")}
    cells = {name: Accuracy(80.0, 1.0) for name in domains}
    methods = {"erm": GridMethod("erm", cells), "fishr": GridMethod("fishr", cells)}
    worst = ExtraColumn("Worst", {"erm": Accuracy(70.0, 0.5), "fishr": Accuracy(69.0)})
    error = ExtraColumn("ECE", {"erm": Accuracy(10.0, 0.1)}, smallest_first=True)
    made = grid(Benchmark("PACS", "tab:pacs", domains, methods), further=[worst, error])
    erm, fishr = made.lines
    assert erm.summary[1:] == (GridEntry("70.0", "0.5", Mark(1)), GridEntry("10.0", "0.1", Mark(1)))
    assert fishr.summary[1:] == (GridEntry("69.0", "", Mark(2, worse=True)), GridEntry())
    assert len(terminal(made, 80)) == 1 and len(terminal(made, 60)) == 2
    assert "…" not in shown(made, 80) and max(map(len, shown(made, 80).splitlines())) <= 80
    text = latex(made)
    assert r"\begin{tabular}{lccccccc}" in text and "Ranking" not in text
    assert r"69.0}} & -- \\" in text and r"{\scriptsize $\pm$ 0.5} & \textbf{10.0}" in text
    assert "| fishr |" in markdown(made) and "| <ins>69.0</ins> ↓ | – |" in markdown(made)
    bare = grid(Benchmark("PACS", "tab:pacs", domains, methods), further=[])
    assert bare.summary == ("Avg",) and bare.smallest == ()


def test_terminal_marks_by_style() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system="standard")
    [piece] = terminal(grid(published_benchmark("test-domain")), 120)
    console.print(piece)
    text = out.getvalue()
    assert "\x1b[1m68.8\x1b[0m" in text  # Fishr on Colored MNIST, first
    assert "\x1b[4m67.7\x1b[0m" in text  # IRM, second
    assert "\x1b[2m57.0\x1b[0m" in text  # DANN, worse than ERM
    assert "\x1b[2m57.8" not in text  # ERM itself
