"""Notebooks: run the tutorials and keep their outputs, so that pages show what the code gives.

    python tools/notebooks.py              # all of docs/tutorials
    python tools/notebooks.py table images # some of them

Every notebook runs in an empty folder of its own. Needs the extra docs.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"


def run(path: Path) -> None:
    """Run a notebook and write its outputs, without what differs from run to run."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOAL_CACHE"] = f"{folder}/cache"
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the tutorials and keep their outputs.")
    names = sorted(path.stem for path in TUTORIALS.glob("*.ipynb"))
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME")
    for name in parser.parse_args().names or names:
        run(TUTORIALS / f"{name}.ipynb")


if __name__ == "__main__":
    main()
