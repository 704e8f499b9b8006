"""Documents: links and paths exist, code runs, results name their origin."""

import json
import re
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest

from shoal.algorithms import ALGORITHMS
from shoal.cli import build_parser
from tests.datasets.pictures import photograph

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# Their commands and snippets need files and run in test_own_data.py; own-algorithm.md has tests in
# tests/algorithms/test_own_algorithm.py.
ELSEWHERE = {"own-data.md", "new-places.md", "getting-started.md", "own-algorithm.md"}
RESULTS = sorted((ROOT / "benchmarks" / "results").rglob("*.json"))

FENCE = re.compile(r"^ *(```+|~~~+)([^\n]*)\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?[^)]*\)"  # [text](target "title"), ![text](target)
    r"|^\[[^\]]+\]:\s*(\S+)"  # [name]: target
    r"""|(?:href|src)=["']([^"']+)["']""",
    re.MULTILINE,
)


def prose(path: Path) -> str:
    """Return a document without its code."""
    return re.sub(r"`[^`\n]*`", "``", FENCE.sub("", path.read_text("utf-8")))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    text = FENCE.sub("", path.read_text("utf-8"))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found) | set(re.findall(r"""(?:id|name)=["']([^"']+)["']""", text))


def links(path: Path) -> list[str]:
    found = ["".join(groups) for groups in LINK.findall(prose(path))]
    return [link for link in found if not re.match(r"[a-z][a-z+.-]*:|//", link, re.IGNORECASE)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_a_file(path: Path) -> None:
    for link in links(path):
        name, _, anchor = unquote(link).partition("#")
        assert not name.startswith("/"), f"{link} is no relative link"
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}: no such heading"


def test_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`, three\n[a](a.md) ![b](b/c.png 'title') [c](<d.md>) [e](https://e.org)\n"
        "[f][g] `[no](no.md)` <img src='h.png'> [i](#one)\n```\n[no](no.md)\n```\n[g]: j.md\n"
        "## One\n# One\n"
    )
    assert links(page) == ["a.md", "b/c.png", "d.md", "h.png", "#one", "j.md"]
    assert anchors(page) == {"one-two-three", "one", "one-1"}


# Named in code, not linked: `tests/paper/test_algorithm1.py`, `src/shoal/catalogue.py`.
PATH = re.compile(r"`((?:benchmarks|docs|src|tests|tools)/[\w./-]+)`")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_code_exist(path: Path) -> None:
    for name in PATH.findall(path.read_text("utf-8")):
        assert (ROOT / name).exists(), f"{name} does not exist"


def test_every_departure_has_a_test() -> None:
    """The last column of fidelity.md; a name without a folder is in tests/algorithms."""
    text = (ROOT / "docs" / "fidelity.md").read_text("utf-8")
    assert len(PATH.findall(text)) > 60
    for name in re.findall(r"`(test_\w+\.py)`", text):
        assert (ROOT / "tests" / "algorithms" / name).exists(), f"{name} does not exist"


def test_the_readme_is_short() -> None:
    """Under 1,200 words, code included, and tables that can be read: 25 words a cell at most."""
    text = README.read_text("utf-8")
    assert len(text.split()) < 1_200
    rows = re.findall(r"^ *\|(.*)\| *$", FENCE.sub("", text), re.MULTILINE)
    assert rows
    for cell in (cell for row in rows for cell in row.split("|")):
        plain = re.sub(r"\]\([^)]*\)", "]", cell)
        assert len(plain.split()) <= 25, plain


def python_blocks(path: Path) -> list[tuple[int, str]]:
    """Return the line number and the code of every Python block, except sketches."""
    text = path.read_text("utf-8")
    return [
        (text.count("\n", 0, match.start(3)), match[3])
        for match in FENCE.finditer(text)
        if match[2].split()[:1] == ["python"] and "# sketch" not in match[3]
    ]


WITH_CODE = [path for path in DOCUMENTS if python_blocks(path) and path.name not in ELSEWHERE]


def test_the_readme_shows_how_to_call_it() -> None:
    assert python_blocks(README)


@pytest.mark.parametrize("path", WITH_CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_the_documents_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block runs by itself, so that a reader can copy it."""
    monkeypatch.chdir(tmp_path)
    made = [Path(f"path/to/images/{domain}/{kind}/1.png") for domain in "ab" for kind in "xy"]
    for number, image in enumerate(made):
        photograph(image, 20, 20, number)
    rows = [f"{image},{image.parts[4]},{image.parts[3]}\n" for image in made]
    Path("images.csv").write_text("".join(["path,class,domain\n", *rows]))
    for line, code in python_blocks(path):
        # Blank lines, so that a traceback names the line of the document.
        program = compile("\n" * line + code, str(path), "exec")
        exec(program, {"__name__": "document"})


def commands(path: Path) -> list[str]:
    """Return every ``shoal`` command in the code of a document, with continued lines joined."""
    text = path.read_text("utf-8").replace("\\\n", " ")
    fenced = "\n".join(match[3] for match in FENCE.finditer(text))
    indented = re.findall(r"^    +(.*)$", FENCE.sub("", text), re.MULTILINE)
    return re.findall(r"^(shoal [a-z].*)$", "\n".join([fenced, *indented]), re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_the_documents_is_understood(path: Path) -> None:
    """Parsed only; test_commands.py runs them."""
    for command in commands(path):
        words = shlex.split(command, comments=True)[1:]
        try:
            options = build_parser(words).parse_args(words)
        except SystemExit:
            pytest.fail(f"{command!r} is not understood")
        assert hasattr(options, "run"), command


def test_commands_are_found() -> None:
    assert sum(len(commands(path)) for path in DOCUMENTS) > 60


def test_readme_says_how_to_try_and_how_to_test() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set()
    for path in (README, CONTRIBUTING):
        named = re.findall(r"(?:`|^    )make ([\w-]+)", path.read_text("utf-8"), re.MULTILINE)
        for target in named:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
        targets |= {(path, target) for target in named}
    assert {(README, target) for target in ("demo", "check", "test")} <= targets


def test_there_are_results() -> None:
    assert RESULTS


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_say_where_they_come_from(path: Path) -> None:
    result = json.loads(path.read_text("utf-8"))
    assert result["benchmark"] == path.stem
    assert re.match(r"python -m benchmarks\.\w+|python tools/\w+\.py|shoal ", result["command"])
    assert re.fullmatch(r"[0-9a-f]{7,40}", result["commit"]), "a commit that can be checked out"
    for key in ("python", "torch", "processor"):
        assert result["machine"][key]


def test_the_variants_in_the_documents_are_those_of_the_registry() -> None:
    from shoal.algorithms import VARIANTS

    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for name, variant in VARIANTS.items():
        given = ", ".join(f"`{key}={value}`" for key, value in variant.settings.items())
        what = f"{variant.summary}: `{variant.algorithm}` with {given}"
        assert f"| `{name}` | {what} | `{variant.table}` |" in text, name


def test_what_an_update_costs_is_as_it_was_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/results/algorithms_cuda.json").read_text())
    page = (ROOT / "docs/methods.md").read_text("utf-8")
    table = page.partition("| Method | ResNet-50 | bar |")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    keys = [name.lower().replace("v-rex", "vrex") for name, *_ in lines]
    # A method needs no measurement; those with one are in the table.
    assert set(keys) >= ALGORITHMS.keys() & measured["resnet-50"].keys()
    for key, (name, *cells) in zip(keys, lines, strict=True):
        large, small = measured["resnet-50"][key], measured["mnist-cnn"][key]
        bar = f"{large['bar']:.2f}" if "bar" in large else "–"
        ratios = [f"{one:.2f}" for one in (large["ratio"], large["operations_ratio"])]
        peak, last = f"{large['peak_gb']:.1f}", f"{small['ratio']:.2f}"
        assert cells == [ratios[0], bar, ratios[1], peak, last], name
