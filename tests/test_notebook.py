"""Notebooks: progress is drawn in place, and results show themselves as escaped HTML."""

import sys
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.datasets import Domain, DomainDataset
from shoal.fitting.fit import FitResult
from shoal.fitting.predictor import Prediction
from shoal.fitting.progress import FitBars, TrainingBar, fit_watcher
from shoal.fitting.schedule import FitProgress
from shoal.fitting.verdict import decide
from shoal.monitoring.place import Observed, report_place
from shoal.notebook import Bars, html_table, in_notebook
from shoal.results.records import Record
from shoal.training.watcher import Progress
from tests.fitting.estimated import estimates
from tests.monitoring.test_place import CLASSES, REFERENCE, domain, features

EVIL = "<script>&"
ESCAPED = "&lt;script&gt;&amp;"


class Cells(HTMLParser):
    """Collects the texts of a table's cells, row by row, and checks that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.text, self.open = "", list[str]()
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in {"table", "thead", "tr", "th", "td", "p", "strong", "progress"}, tag
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        data = data.replace("\N{NO-BREAK SPACE}", " ")
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_number_stays_beside_its_unit() -> None:
    assert "70.0\N{NO-BREAK SPACE}%" in html_table([("a", "70.0 %")])


def test_every_text_of_a_table_is_escaped() -> None:
    html = html_table([(EVIL, EVIL)], (EVIL, EVIL), EVIL)
    assert html.count(ESCAPED) == 5
    assert Cells(html).rows == [[EVIL, EVIL], [EVIL, EVIL]]


class Shown:
    """Stands in for IPython: remembers what is displayed, and what replaces it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[str] = []
        shell = SimpleNamespace(kernel=object())
        module = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace())
        monkeypatch.setitem(sys.modules, "IPython", module)
        display = SimpleNamespace(display=self.display)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, bars: Bars, display_id: bool) -> Any:
        assert display_id
        self.outputs.append(bars._repr_html_())
        number = len(self.outputs) - 1

        def update(bars: Bars) -> None:
            self.outputs[number] = bars._repr_html_()

        return SimpleNamespace(update=update)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch)


def at(done: int, steps: int = 10, loss: float | None = None) -> Progress:
    record = None
    if loss is not None:
        record = Record(step=done, terms={"loss": loss}, accuracy={}, calibration_error={})
    return Progress(done=done, steps=steps, rate=1.0, seconds_left=90.0, record=record)


def test_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    # IPython in a terminal has a shell without a kernel; scripts that import it have no shell.
    for shell in (SimpleNamespace(), None):
        module = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", module)
        assert not in_notebook()
        assert not isinstance(fit_watcher(), FitBars)


def test_a_training_is_one_output_that_is_drawn_again(shown: Shown) -> None:
    assert in_notebook()
    bar = TrainingBar(EVIL)
    bar.progress(at(0))
    bar.progress(at(10, loss=0.25))
    (html,) = shown.outputs
    assert Cells(html).rows == [[EVIL, "", "10 of 10", "loss 0.25"]]
    assert 'value="10" max="10"' in html
    assert repr(bar.bars) == f"{EVIL}: 10 of 10, loss 0.25"


def test_bars_are_drawn_at_most_ten_times_a_second_but_the_end_always(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    bars = Bars()
    bars.show("a", 0, 9)
    bars.show("a", 1, 9)
    assert "0 of 9" in shown.outputs[0]  # too soon
    now += 0.2
    bars.show("a", 2, 9)
    assert "2 of 9" in shown.outputs[0]
    bars.show("a", 9, 9)
    assert "9 of 9" in shown.outputs[0]


def test_a_fit_has_a_bar_for_all_runs_and_one_for_the_current_run(shown: Shown) -> None:
    watcher = fit_watcher()
    assert isinstance(watcher, FitBars)
    watcher.amount("reading", 2, 3)
    watcher.amount("reading", 3, 3)
    watcher.run("ERM without a", at(3), FitProgress(0, 4, 30.0))
    watcher.run("ERM without b", at(10), FitProgress(1, 4, 20.0))
    (html,) = shown.outputs
    names = [row[0] for row in Cells(html).rows]
    assert names == ["all runs", "ERM without b"]
    assert "0:00:20 left" in html
    watcher.run("Fishr on all", at(10), FitProgress(0, 1, None))
    watcher.note(f"done {EVIL}")
    assert Cells(shown.outputs[0]).rows == []
    assert f"<p>done {ESCAPED}</p>" in shown.outputs[0]
    assert len(shown.outputs) == 1


def classifier(**more: Any) -> shoal.DomainClassifier:
    X = np.random.RandomState(0).randn(40, 2)
    model = shoal.DomainClassifier("erm", steps=3, **more)
    return model.fit(X, np.where(X[:, 0] > 0, EVIL, "no"), np.repeat(["a", EVIL], 20))


def test_a_classifier_shows_its_training_only_if_asked(
    shown: Shown, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier()
    assert not shown.outputs
    classifier(verbose=True)
    assert "3 of 3" in shown.outputs[0]
    monkeypatch.delitem(sys.modules, "IPython")
    classifier(verbose=True)
    assert capsys.readouterr().err.startswith("step 1: loss ")


def test_a_classifier_and_its_model_show_themselves() -> None:
    assert "not fitted yet" in shoal.DomainClassifier()._repr_html_()
    model = classifier()
    cells = dict(Cells(model._repr_html_()).rows)
    assert cells["steps"] == "3"
    assert cells["classes_"] == f"{EVIL}, no"
    assert cells["domains_"] == f"{EVIL}, a"
    assert float(cells["last loss"]) > 0
    assert ESCAPED in model._repr_html_()
    assert dict(Cells(model.predictor_._repr_html_()).rows)["columns"] == "x0, x1"


def test_a_prediction_shows_its_classes_the_most_probable_first() -> None:
    found = Prediction(
        source=EVIL, label="b", probability=0.75, probabilities={"a": 0.25, "b": 0.75}
    )
    html = found._repr_html_()
    assert Cells(html).rows == [["b", "75.0 %"], ["a", "25.0 %"]]
    assert ESCAPED in html
    wrong = Prediction(source="x", error=EVIL, unseen=("colour",), unusual=("size 9 (1 to 2)",))
    assert Cells(wrong._repr_html_()).rows == [
        ["error", EVIL],
        ["not seen in training", "colour"],
        ["unusual", "size 9 (1 to 2)"],
    ]


def test_a_verdict_is_a_table_and_its_sentences(tmp_path: Any) -> None:
    scores = {"logistic": [0.70, 0.75], "forest": [0.75, None], "erm": [0.8, 0.5]}
    verdict = decide(estimates(scores, names=[EVIL, "b"]))
    cells = Cells(verdict._repr_html_())
    assert cells.rows[0] == ["", EVIL, "b", "average", "worst", "seen domains"]
    first, *_, last = cells.rows[1:]
    assert first == ["Logistic regression (deployed)", "70.0 %", "75.0 %", "72.5 %", "70.0 %", "–"]
    assert last[:3] == ["most frequent class", "50.0 %", "50.0 %"]
    assert all(sentence in cells.text for sentence in verdict.sentences)
    result = FitResult(out=tmp_path, verdict=verdict, failures=("a",), seconds=1.0)
    assert f"1 run failed.Written to {tmp_path}." in Cells(result._repr_html_()).text


def test_a_report_on_a_place_shows_itself() -> None:
    logs, labels = domain(1)
    seen = Observed(
        log_probabilities=logs, features=features(9, labels, 2.0), columns=["a", EVIL, *"cde"]
    )
    html = report_place(REFERENCE, CLASSES, seen, [CLASSES[k] for k in labels])._repr_html_()
    cells = dict(Cells(html).rows)
    assert cells["inputs"] == "120"
    assert cells["measured accuracy"] == f"{100 * (logs.argmax(1) == labels).mean():.0f} %"
    assert cells["unlike every known domain"] == "yes"
    assert cells["nearest known domain"].startswith("site ")
    assert EVIL in cells["columns outside all known domains"] and ESCAPED in html
    assert cells["predicted classes"].startswith("cat ")
    few = report_place(REFERENCE, CLASSES, Observed(log_probabilities=logs))
    cells = dict(Cells(few._repr_html_()).rows)
    assert "measured accuracy" not in cells and "nearest known domain" not in cells
    assert int(cells["for a person to look at"]) == few.unsure


def test_a_data_set_shows_its_counts() -> None:
    domain = Domain(EVIL, torch.tensor([0, 0, 1]), torch.zeros(3, 2))
    found = DomainDataset(EVIL, ("x", EVIL), (domain,))
    assert Cells(found._repr_html_()).rows == [["domain", "x", EVIL, "all"], [EVIL, "2", "1", "3"]]
