"""Names in Markdown and in LaTeX, whatever signs they have."""

import pytest

from shoal.report.grid import Accuracy, Benchmark, GridMethod, grid, published_grid
from shoal.report.views import as_markdown, latex, markdown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("*c*", r"\*c\*"),
        ("_d_ and art_painting", r"\_d\_ and art_painting"),
        ("__init__", r"\_\_init\_\_"),
        ("`e` \\ <b>", r"\`e\` \\ \<b>"),
        ("[f](g) [red] ~~h~~", r"[f\](g) [red] \~~h\~~"),
        ("AT&amp;T & batch < 64, +90%", r"AT\&amp;T & batch < 64, +90%"),
        ("two\n lines", "two lines"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str, shown: str) -> None:
    assert as_markdown(text) == shown


def test_names_do_not_break_a_table() -> None:
    methods = {"m": GridMethod("my*method*", {"x": Accuracy(60.0)})}
    lines = markdown(grid(Benchmark("a|b, by test domain", "tab:x", {"x": "p|q"}, methods)))
    title, _, head, rule, row = lines.splitlines()
    assert title == r"**a\|b, by test domain**" and r"| p\|q |" in head
    assert row.startswith(r"| my\*method\* | **60.0** |")
    assert rule.count("|") == head.replace(r"\|", "").count("|") == row.count("|")


def test_latex_has_no_sign_that_it_does_not_know() -> None:
    def one(mean: float) -> Benchmark:
        return Benchmark(
            "A", "tab:x", {"x": "X"}, {"m": GridMethod("m", {"x": Accuracy(mean, 1.0)})}
        )

    made = published_grid(one(60.0), one(62.0))
    assert made is not None
    text = latex(made)
    assert r"{\scriptsize $\pm$ 1.0 ($-$1.4)}" in text and text.isascii()
