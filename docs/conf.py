"""The documentation site: Sphinx reads the Markdown of this folder as it is on GitHub.

make docs builds it in build/site; every warning is an error there, broken links included.
"""

import inspect
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.osutil import relative_uri

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "src"))

from shoal._version import __version__  # noqa: E402

HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]

project = "shoal"
author = "the shoal authors"
version = release = __version__
root_doc = "index"
# The front page includes the list of documents.
exclude_patterns = ["README.md"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
]
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
# Notebooks are shown with the outputs that are committed; a test runs their code.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_default_options = {"members": True, "no-value": True, "exclude-members": "Hparams"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False
toc_object_entries_show_parents = "hide"

html_title = f"shoal {version}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["league.html"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c77", "color-brand-content": "#0b5c77"},
    "dark_css_variables": {"color-brand-primary": "#6cc3dd", "color-brand-content": "#6cc3dd"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"

# Pages of the site for files of the repository that are no pages themselves, by path.
PAGES = {
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "README.md": "index",
    "docs/README.md": "index",
}
# Copied to the site as they are.
COPIED = {"docs/league.html": "league.html"}
# Where the files are shown that are not on the site; without it they are downloads.
SOURCE = HATCH.get("metadata", {}).get("hooks", {}).get("custom", {}).get("repository", "")


def title_results(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the tables that commands write, which begin without a heading, the folder's name."""
    if re.fullmatch(r"results/[\w-]+/results", page):
        source[0] = f"# Tables of {page.split('/')[1]}\n\n{source[0]}"


def lead_links(app: Sphinx, doctree: nodes.document) -> None:
    """Lead links to files of the repository to their page, else to the source, if it has a web
    address; a link to a folder without one becomes plain text."""
    page = app.env.docname
    here = app.builder.get_target_uri(page)
    links = [*doctree.findall(addnodes.download_reference)]
    links += [one for one in doctree.findall(addnodes.pending_xref) if one["reftype"] == "myst"]
    for node in links:
        file = linked_file(app, page, node)
        if file is None:
            continue
        path = file.relative_to(ROOT).as_posix()
        if path in COPIED:
            uri = relative_uri(here, COPIED[path])
        elif PAGES.get(path) in app.env.found_docs:
            uri = relative_uri(here, app.builder.get_target_uri(PAGES[path]))
            uri += "".join(node["reftarget"].partition("#")[1:])
        elif path.startswith("docs/examples/"):
            example = app.builder.get_target_uri("examples/index")
            uri = f"{relative_uri(here, example)}#{file.stem.replace('_', '-')}"
        elif SOURCE and not (path.startswith("docs/") and file.is_file()):
            uri = f"{SOURCE}/{'tree' if file.is_dir() else 'blob'}/v{version}/{path}"
        elif file.is_dir():
            node.replace_self(node.children)
            continue
        else:
            continue
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def linked_file(app: Sphinx, page: str, node: Any) -> Path | None:
    """Return the file or folder that a link names; None if it is a page, or does not exist."""
    if node.get("refdomain") == "doc":
        found = None if node["reftarget"] in app.env.found_docs else f"{node['reftarget']}.md"
        return None if found is None else (DOCS / found).resolve()
    # A page that is a file of the repository has its links, which lead from the repository's root.
    folders = [(DOCS / page).parent, *([ROOT] if page in PAGES.values() else [])]
    files = [(one / node["reftarget"].partition("#")[0]).resolve() for one in folders]
    return next((one for one in files if one.exists() and one.is_relative_to(ROOT)), None)


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return the web address of a name's source; None if the repository or the source has none."""
    value: Any = import_module(info["module"])
    for part in info["fullname"].split("."):
        value = getattr(value, part, None)
    value = inspect.unwrap(getattr(value, "fget", None) or value)
    try:
        path = Path(inspect.getsourcefile(value) or "").relative_to(ROOT)
        lines, first = inspect.getsourcelines(value)
    except (TypeError, ValueError, OSError):
        return None
    place = f"{path.as_posix()}#L{first}-L{first + len(lines) - 1}"
    return f"{SOURCE}/blob/v{version}/{place}" if SOURCE else None


# Marks of reStructuredText that stand for themselves in docstrings: |𝓔|, F̃_e*.
MARKS = re.compile(r"``.*?``|([|*])|(?<=\w)(_)(?!\w)", re.DOTALL)


def comment_of(name: str) -> list[str]:
    """Return the comment ``#:`` of a constant, which can be defined below the package it is in."""
    package, _, constant = name.rpartition(".")
    for module in sorted(module for module in sys.modules if module.startswith(package)):
        found = ModuleAnalyzer.for_module(module).find_attr_docs()
        if ("", constant) in found:
            return found["", constant]
    raise ValueError(f"{name} needs a comment that begins with #:")


def keep_marks(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what reStructuredText would read as markup, outside code."""
    if what == "data":
        lines[:] = comment_of(name)
    text = MARKS.sub(lambda m: m[0] if m[0].startswith("``") else f"\\{m[0]}", "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Sphinx) -> None:
    app.connect("source-read", title_results)
    app.connect("doctree-read", lead_links)
    app.connect("autodoc-process-docstring", keep_marks, priority=900)
