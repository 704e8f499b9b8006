"""Links of the built site: what leads nowhere is found, and nothing else."""

from pathlib import Path

from tools.site_links import broken_links


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "picture.png").touch()
    (tmp_path / "index.html").write_text(
        "<h1 id='top'>x</h1><a href='guides/one.html#here'>ok</a><a href='#top'>ok</a>"
        "<a href='https://example.org/x'>not tried</a><img src='picture.png'>"
        "<a href='guides/one.html#there'>no anchor</a><a href='two.html'>no file</a>"
        "<img src='guides/picture.png'>"
    )
    (tmp_path / "guides/one.html").write_text("<h2 id='here'>x</h2><a href='../index.html'>ok</a>")
    assert list(broken_links(tmp_path)) == [
        "index.html: guides/one.html#there: no such anchor",
        "index.html: two.html: no such file",
        "index.html: guides/picture.png: no such file",
    ]


def test_an_empty_folder_is_no_site(tmp_path: Path) -> None:
    assert list(broken_links(tmp_path)) == [f"{tmp_path}: no pages"]
