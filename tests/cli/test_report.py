"""``shoal report``: the paper's main tables in every format."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import main
from tests.reference.latex import latex_rows
from tests.report.made_up import make_run, write_run

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ("report", "--published")


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*PUBLISHED, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_document_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    document = (ROOT / "docs" / "results" / "published.md").read_text("utf-8")
    assert document == output(capsys, "--format", "markdown")


def test_terminal_shows_both_tables_and_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys)
    assert text.count("Method") == 2
    titles = [line for line in text.splitlines() if line.startswith("DomainBed in the paper, ")]
    assert [title.rpartition(" on the ")[2] for title in titles] == [
        "test domain",
        "training domains",
    ]
    fishr = [line.split() for line in text.splitlines() if line.startswith("  Fishr ")]
    assert fishr[0][-4:] == ["70.8", "3.9", "2.8", "2"]
    assert fishr[1][-4:] == ["67.1", "5.6", "4.8", "5"]
    text = " ".join(text.split())
    assert "MLDG 68.6 (printed 68.7)" in text
    assert "Fish 67.0 (printed 67.1)" in text
    assert "MTL: the embedding was overwritten by noise" in text
    assert "Marks:" not in text  # no terminal, no styles: nothing to explain


@pytest.mark.parametrize(
    ("rule", "labels"),
    [
        ("all", ["table:db_all_oracle", "table:db_all_training"]),
        ("test-domain", ["table:db_all_oracle"]),
        ("training-domain", ["table:db_all_training"]),
    ],
)
def test_one_rule_or_all(capsys: pytest.CaptureFixture[str], rule: str, labels: list[str]) -> None:
    text = output(capsys, "--format", "json", "--rule", rule)
    found = json.loads(text)
    assert [table["label"] for table in found["tables"]] == labels
    assert "mtl" in found["remarks"]["methods"]
    text = output(capsys, "--format", "latex", "--rule", rule)
    assert text.count(r"\begin{table}") == len(labels)
    for label in labels:
        assert len(latex_rows(text, label)) == 18


@pytest.mark.parametrize("name", ["terminal", "markdown", "latex", "json"])
def test_a_file_holds_what_would_be_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    printed = output(capsys, "--format", name)
    path = tmp_path / "new" / "report"
    assert output(capsys, "--format", name, "--out", str(path)) == f"wrote {path}\n"
    assert path.read_text("utf-8") == printed


def test_a_report_of_a_sweep_loads_no_torch(tmp_path: Path) -> None:
    """The sweep wrote which hyperparameters were set, so that the search is not drawn again."""
    run = write_run(tmp_path / "runs", make_run("colored-mnist", "erm", ("-90%",), 0, 0))
    assert run.path is not None
    (tmp_path / "set_hparams.json").write_text(json.dumps({run.path.name: {"lr": 0.5}}))
    code = (
        "import sys; from shoal.cli import main; main(['report', sys.argv[1]]); "
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert "lr set to 0.5" in " ".join(found.stdout.split())
