"""The picture and the page of the architecture: up to date, and true to the imports."""

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    path = ROOT / "tools" / "architecture.py"
    spec = importlib.util.spec_from_file_location("architecture", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["architecture"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_files_are_up_to_date(
    architecture: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    status = architecture.main(["--check"])
    assert status == 0, capsys.readouterr().out


def test_a_changed_source_is_found(
    architecture: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "ARCHITECTURE.md"
    page.write_text(architecture.PAGE.read_text("utf-8") + "one more line\n", "utf-8")
    monkeypatch.setattr(architecture, "REPOSITORY", tmp_path)
    monkeypatch.setattr(architecture, "PAGE", page)
    monkeypatch.setattr(architecture, "PICTURE", tmp_path / "architecture.svg")
    monkeypatch.setattr(architecture, "draw", lambda rooms: str(sorted(rooms)))  # in no time
    assert architecture.main(["--check"]) == 1
    out = capsys.readouterr().out
    assert "ARCHITECTURE.md is out of date: python tools/architecture.py" in out
    assert architecture.main([]) == 0
    assert architecture.main(["--check"]) == 0


def test_arrows_that_follow_from_others_are_left_out(architecture: ModuleType) -> None:
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert architecture.reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert architecture.depths(graph) == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_boxes_do_not_overlap(architecture: ModuleType) -> None:
    graph = {"a": {"d", "e", "f"}, "b": {"d", "e"}, "c": {"f"}, "d": set(), "e": set(), "f": set()}
    boxes, arrows = architecture.layout(graph)
    assert len(arrows) == 6
    for layer in (0, 1):
        places = sorted(box.x for box in boxes.values() if box.layer == layer)
        assert all(b - a >= architecture.WIDTH for a, b in pairwise(places))


def test_the_picture_is_xml_with_every_room(architecture: ModuleType) -> None:
    rooms = architecture.read_rooms(architecture.SOURCE)
    picture = ElementTree.fromstring(architecture.PICTURE.read_text("utf-8"))  # as drawn now
    names = {one.text for one in picture.iter() if one.get("class") == "name"}
    drawn = {name for name in rooms if name not in architecture.NOT_DRAWN}
    assert names == drawn - {architecture.FACE} | {"import shoal"}
    free = architecture.rooms_without_torch(rooms)
    assert {"catalogue", "choices", "reference", "results", "report"} <= free
