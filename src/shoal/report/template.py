"""Template: HTML pages from the files of this package, in which every value is escaped."""

import json
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from ..escapes import html_json, printable


def read_part(name: str) -> str:
    """Return a file of this package: a template, a style or a script."""
    return resources.files("shoal.report").joinpath(name).read_text("utf-8")


def render(name: str, filters: Mapping[str, Callable[[Any], str]], **values: Any) -> str:
    """Return the page that a template gives with these filters and values."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(filters)
    return environment.from_string(read_part(name)).render(**values)


def data_block(data: Any) -> str:
    """Return JSON that cannot end the HTML block around it."""
    return html_json(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _shown(value: Any) -> Any:
    """Return text without characters that turn the direction of a page; markup as it is."""
    return printable(value, keep="\n\t") if type(value) is str else value
