"""The folder of a fit: never inside the data or among other files, checked before reading."""

from pathlib import Path

import pytest

from shoal.fitting.setup import check_folder, default_folder


def test_a_folder_keeps_its_dots_and_a_file_loses_its_suffix(tmp_path: Path) -> None:
    for name in ("photos.v1", "photos.v2"):
        (tmp_path / name).mkdir()
        assert default_folder(tmp_path / name) == Path(f"out/{name}-fit")
    (tmp_path / "t.csv").touch()
    assert default_folder(tmp_path / "t.csv") == Path("out/t-fit")
    (tmp_path / "mine").symlink_to("photos.v1")
    assert default_folder(tmp_path / "mine") == Path("out/mine-fit")


@pytest.mark.parametrize("inside", [".", "out/data-fit", "a/../b"])
def test_it_is_not_in_the_data(tmp_path: Path, inside: str) -> None:
    with pytest.raises(ValueError, match="would be read as a domain; choose another --out"):
        check_folder(tmp_path / inside, tmp_path)
    check_folder(tmp_path / "../elsewhere", tmp_path)


def test_what_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    out = tmp_path / "out"
    out.touch()
    with pytest.raises(ValueError, match="is a file"):
        check_folder(out, tmp_path / "data")
    out.unlink()
    out.mkdir()
    (out / ".DS_Store").touch()
    (out / "inspection.json").touch()
    check_folder(out, tmp_path / "data")
    (out / "report.html").touch()
    with pytest.raises(ValueError, match=r"holds report\.html and is not the folder of a fit"):
        check_folder(out, tmp_path / "data")
    (out / "fit.json").touch()
    check_folder(out, tmp_path / "data")


def test_what_cannot_be_written_is_known_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def access(path: Path, mode: int) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr("os.access", access)
    with pytest.raises(OSError, match="is not writable; make it writable, or choose another"):
        check_folder(tmp_path / "not/there", tmp_path / "data")
    assert asked == [tmp_path]
    assert not (tmp_path / "not").exists()
