"""The tables that a fit prints, on terminals of every width."""

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli.fit import print_data

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
DOMAINS = ["art_painting", "cartoon", "photo", "sketch"]
COUNTS = {name: dict.fromkeys(CLASSES, 100 * k + 7) for k, name in enumerate(DOMAINS)}


def shown(capsys: Any, classes: list[str] = CLASSES) -> str:
    dataset = SimpleNamespace(name="PACS", classes=classes, domains=[[0]], counts=lambda: COUNTS)
    print_data(
        SimpleNamespace(dataset=dataset, table=None, broken=[], notes=[], shares_differ=False)
    )
    return str(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (120, ["Domain", *CLASSES, "all", "classes"]),
        (80, ["Class", *DOMAINS]),
        (40, ["Domain", "all", "classes"]),
    ],
)
def test_no_name_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, width: int, head: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = shown(capsys)
    assert "…" not in out
    assert next(line for line in out.splitlines()[1:] if line.strip()).split() == head
    assert f"{7 * 307:,}" in out  # all of the last domain


def test_many_classes_are_counted_only(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "dog" not in shown(capsys, [*CLASSES, "a", "b"])
