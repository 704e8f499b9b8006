"""Files with the same content, in any folder."""

from pathlib import Path

from shoal.datasets import image_folders
from shoal.datasets.images import find_copies
from tests.datasets.pictures import picture


def test_copies_are_found_across_and_within_domains(tmp_path: Path) -> None:
    picture(tmp_path / "a/cat/1.png", (1, 2, 3))
    picture(tmp_path / "b/cat/1.png", (1, 2, 3))
    picture(tmp_path / "a/cat/2.png", (9, 9, 9))
    picture(tmp_path / "a/dog/3.png", (9, 9, 9))
    picture(tmp_path / "b/dog/4.png", (3, 2, 1))  # of the same size, and another
    across, within = find_copies(image_folders("x", tmp_path))
    assert across.across
    assert not across.contradict
    assert {path.name for path in across.paths} == {"1.png"}
    assert not within.across
    assert within.contradict
    assert set(within.classes) == {"cat", "dog"}
