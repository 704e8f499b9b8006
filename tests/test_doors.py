"""The doors: one for files that are opened, one for JSON that is read, one for what is printed.

A FIFO named like an image, a run of a million brackets and a name that clears the screen are
harmless as long as all of shoal goes through them. These tests read the source, and name every call
that goes past.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "shoal"
FILES, DOCUMENTS, STORAGE = "files.py", "documents.py", "storage.py"
SCREEN = "report/screen.py"
PACKAGE = {"report/template.py", "reference/tables.py"}  # read what was installed with them

# Names of functions, and of methods of whatever object, that are called in these files alone.
CALLS: dict[str, set[str]] = {
    # open a file
    "open": set(),
    "os.open": {FILES, STORAGE, "cli/__init__.py"},
    "os.fdopen": {FILES},
    "io.BufferedReader": {FILES},
    "io.open": set(),
    ".read_text": PACKAGE,
    ".read_bytes": set(),
    ".write_text": set(),
    ".write_bytes": set(),
    ".rglob": {"compiled_code.py", "datasets/terra_incognita.py"},  # folders that shoal made
    "os.walk": {FILES},
    # read JSON
    "json.load": set(),
    "json.loads": {"reference/tables.py"},
    # The second counts lines; the third takes numbers out.
    "json.JSONDecoder": {DOCUMENTS, "datasets/manifest.py", "results/packed.py"},
    # decode
    "Image.open": {"datasets/images.py"},
    "torch.load": {"tensor_files.py", "networks/weights.py", "training/checkpoints.py"},
    "safe_open": {"datasets/features.py"},
    "load_file": {"networks/weights.py"},
    "np.load": set(),
    "np.fromfile": set(),
    "np.loadtxt": set(),
    "np.memmap": {"datasets/decoded.py"},
    "tarfile.open": {"datasets/unpack.py"},
    "zipfile.ZipFile": {"datasets/unpack.py"},
    # move into place
    "os.replace": {STORAGE},
    "os.rename": set(),
    "shutil.move": set(),
    ".rename": set(),
    # print
    "print": {SCREEN},
    "Console": set(),
    "Text": {SCREEN},
    "csv.writer": {SCREEN},
    "sys.stdout.write": set(),
    "sys.stderr.write": set(),
    "jinja2.Environment": {"report/template.py"},
}
# Further methods called "open" that open no file by its path, or one that is written anew.
OPENING = {
    STORAGE: {"aside.open"},
    "datasets/unpack.py": {"path.open", "member.open"},
    "datasets/download.py": {"urllib.request.build_opener(_Redirects).open"},
    "cli/reproduce.py": {"restarts.RestartFolder.open", "RestartFolder.open"},
}
# Imports under another name would hide a call.
IMPORTS = {"json": {"load", "loads"}, "os": {"open", "replace"}, "rich.text": {"Text"}}


def breaches(path: Path, where: str) -> Iterator[str]:
    """Yield every call of a file that goes past a door."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module in IMPORTS:
            hidden = {one.name for one in node.names} & IMPORTS[node.module]
            type_only = where.startswith("report/") and node.module == "rich.text"
            if hidden and not type_only:
                yield f"{where}:{node.lineno}: import {node.module} whole, not {min(hidden)}"
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        method = f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else name
        for one in {name, method} & CALLS.keys():
            if where not in CALLS[one]:
                yield f"{where}:{node.lineno}: {name} goes past a door"
        if method == ".open" and name not in CALLS and name not in OPENING.get(where, set()):
            yield f"{where}:{node.lineno}: {name} opens a file; files.open_file does, with care"
        if name == "Image.open" and "formats" not in {one.arg for one in node.keywords}:
            yield f"{where}:{node.lineno}: Image.open needs formats, or EPS runs Ghostscript"


def all_breaches(source: Path) -> list[str]:
    return [
        why
        for path in sorted(source.rglob("*.py"))
        for why in breaches(path, path.relative_to(source).as_posix())
    ]


def test_nothing_goes_past_a_door() -> None:
    found = all_breaches(SOURCE)
    assert not found, "\n".join(found)


def test_the_lists_name_files_that_use_them() -> None:
    """A file that no longer needs its exception loses it."""
    for name, files in CALLS.items():
        for file in files:
            text = (SOURCE / file).read_text("utf-8")
            assert f"{name}(" in text or f"{name}\n" in text, f"{file} does not call {name}"


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("runs/model.py", "card = open(path).read()"),
        ("runs/model.py", "card = path.read_text('utf-8')"),
        ("datasets/cache.py", "with path.open('rb') as file: pass"),
        ("results/records.py", "values = json.loads(line)"),
        ("results/records.py", "from json import loads"),
        ("results/records.py", "sorted(folder.rglob('run.json'))"),
        ("fitting/inputs.py", "for place, folders, files in os.walk(root): pass"),
        ("fitting/inputs.py", "image = Image.open(path)"),
        ("datasets/images.py", "image = Image.open(file)"),
        ("datasets/cache.py", "os.replace(aside, path)"),
        ("cli/predict.py", "print(name)"),
        ("cli/predict.py", "sys.stdout.write(name)"),
        ("cli/status.py", "cell = Text(name)"),
        ("cli/status.py", "from rich.text import Text"),
        ("cli/status.py", "console = Console()"),
        ("report/page.py", "environment = jinja2.Environment()"),
    ],
)
def test_a_call_past_a_door_is_found(tmp_path: Path, file: str, code: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert all_breaches(tmp_path)
