"""API reference: every public name has an entry with a signature, and an example that runs.

An entry is a line ``.. autofunction:: name`` of a page in docs/api. Its example is in the docstring
(run here), in a Python block of the same section (run by test_documents.py), or in a document,
example or notebook that the section links to (each run by its own test).
"""

import ast
import doctest
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from tests.docs.test_documents import FENCE, LINK, python_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
ENTRY = re.compile(r"^\.\. auto(function|class|data):: (\w+)$", re.MULTILINE)
MODULE = re.compile(r"^\.\. currentmodule:: ([\w.]+)$", re.MULTILINE)
# Packages and modules with an __all__ that are not public, and whom they serve.
PRIVATE = {
    "shoal.report": "the pages and tables of commands",
    "shoal.algorithms.hparams": "shoal.algorithms, which has its public names",
}


@dataclass(frozen=True)
class Entry:
    """A name on a page: its module, the kind of its directive, and the section it is in."""

    module: str
    name: str
    kind: str
    page: Path
    section: str

    @property
    def value(self) -> Any:
        return getattr(import_module(self.module), self.name)


def sections(page: Path) -> list[str]:
    """Return the parts of a page, each with its heading; code has no headings."""
    text = page.read_text("utf-8")
    fences = [match.span() for match in FENCE.finditer(text)]
    heads = [
        match.start()
        for match in re.finditer(r"^## ", text, re.MULTILINE)
        if not any(low < match.start() < high for low, high in fences)
    ]
    ends = [*heads, len(text)]
    return [text[low:high] for low, high in zip([0, *heads], ends, strict=True)]


def entries() -> list[Entry]:
    found = []
    for page in PAGES:
        for section in sections(page):
            for block in FENCE.finditer(section):
                if block[2] == "{eval-rst}":
                    (module,) = MODULE.findall(block[3])
                    found += [
                        Entry(module, name, kind, page, section)
                        for kind, name in ENTRY.findall(block[3])
                    ]
    return found


ENTRIES = entries()
PUBLIC = sorted({entry.module for entry in ENTRIES})


def documented(value: Any) -> bool:
    return any(entry.value is value for entry in ENTRIES)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry(module: str) -> None:
    """One entry of an object is enough: shoal.spread is also shoal.penalties.spread."""
    public = import_module(module)
    names = [name for name in public.__all__ if name != "__version__"]
    missing = [name for name in names if not documented(getattr(public, name))]
    assert not missing, f"add a line for each to docs/api: {missing}"


def modules_with_all() -> Iterator[str]:
    for path in sorted((ROOT / "src" / "shoal").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        targets = [
            one for node in tree.body if isinstance(node, ast.Assign) for one in node.targets
        ]
        if any(isinstance(one, ast.Name) and one.id == "__all__" for one in targets):
            parts = path.relative_to(ROOT / "src").with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_a_module_with_all_is_public_or_says_why_not() -> None:
    assert set(modules_with_all()) == set(PUBLIC) | PRIVATE.keys()


def test_every_page_is_in_the_list_of_modules() -> None:
    index = (ROOT / "docs/api/index.md").read_text("utf-8")
    pages = {page.stem for page in PAGES} - {"index"}
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == pages
    toctree = index.partition("{toctree}")[2]
    assert set(re.findall(r"^(\w+)$", toctree, re.MULTILINE)) == pages


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: f"{one.module}.{one.name}")
def test_an_entry_is_public_and_says_what_it_is(entry: Entry) -> None:
    assert entry.name in import_module(entry.module).__all__
    value = entry.value
    if entry.kind == "data":
        return
    assert inspect.isclass(value) == (entry.kind == "class")
    inspect.signature(value)
    first = (inspect.getdoc(value) or "").partition("\n")[0]
    assert len(first) > 15, f"{entry.name} needs a docstring"
    if entry.kind == "class":
        assert value.__doc__ and not value.__doc__.startswith(f"{entry.name}("), "made by Python"


def code_of(target: Path) -> str:
    """Return the code of a document, an example or a notebook."""
    if target.suffix == ".ipynb":
        cells = json.loads(target.read_text("utf-8"))["cells"]
        return "\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "code")
    if target.suffix == ".md":
        return "\n".join(code for _, code in python_blocks(target))
    return target.read_text("utf-8") if target.suffix == ".py" else ""


def example_of(entry: Entry) -> str:
    """Return the code that must show the name: of its docstring, its section, and links of it."""
    shown = (inspect.getdoc(entry.value) or "") if entry.kind != "data" else ""
    code = [line for line in shown.splitlines() if line.lstrip().startswith(">>>")]
    code += [block[3] for block in FENCE.finditer(entry.section) if block[2] == "python"]
    for link in ("".join(groups) for groups in LINK.findall(FENCE.sub("", entry.section))):
        target = (entry.page.parent / link.partition("#")[0]).resolve()
        if target.parent != entry.page.parent and target.exists():
            code.append(code_of(target))
    return "\n".join(code)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: f"{one.module}.{one.name}")
def test_every_entry_has_an_example(entry: Entry) -> None:
    used = re.search(rf"(?<!\w){re.escape(entry.name)}(?!\w)", example_of(entry))
    assert used, f"use {entry.name} in its docstring, its section, or a document linked there"


def examples_in(module: ModuleType) -> Iterator[doctest.DocTest]:
    """Yield the examples of a module's public docstrings, methods of classes included."""
    finder = doctest.DocTestFinder(recurse=True, exclude_empty=True)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            names = {"torch": torch, "np": np, "shoal": shoal} | vars(module)
            yield from finder.find(value, name, module=False, globs=names)


@pytest.mark.parametrize("module", PUBLIC)
def test_examples_in_docstrings_run(module: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    lines: list[str] = []
    for found in examples_in(import_module(module)):
        runner.run(found, out=lines.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(lines)


def test_examples_in_docstrings_are_found() -> None:
    found = list(examples_in(shoal))
    with_examples = {one.name for one in found if one.examples}
    assert {"Fishr", "spread", "gradient_variance", "DomainClassifier"} <= with_examples


def test_what_is_missing_would_be_noticed() -> None:
    """The example of an entry is its own: another section or an index page does not count."""
    entry = next(one for one in ENTRIES if one.name == "mmd")
    assert "mmd(" in example_of(entry)
    elsewhere = sections(entry.page)[1]
    moved = Entry(entry.module, entry.name, entry.kind, entry.page, elsewhere)
    assert "mmd" not in example_of(moved)
    assert not documented(shoal.penalties._gaussians)  # type: ignore[attr-defined]
