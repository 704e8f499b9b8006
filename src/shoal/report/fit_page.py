"""The page of a fit: one HTML file that opens offline, without a script."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from .fit_chart import chart

__all__ = ["check_drawing", "fit_page"]


def check_drawing() -> None:
    """Raise where pages cannot be made, before hours of training."""
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the page of a fit is made by jinja2, which is not installed: "
            "pip install 'shoal[report]'",
            name="jinja2",
        ) from error


def fit_page(content: Mapping[str, Any]) -> str:
    """Return the page; ``content`` is plain values, and every text of it is escaped."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda value: f"{value:.1f}"
    environment.filters["signed"] = lambda value: f"{value:+z.1f}"
    return environment.from_string(_file("fit.html.jinja")).render(
        **content, style=_file("fit.css"), chart=chart(content)
    )


def _file(name: str) -> str:
    return resources.files("shoal.report").joinpath(name).read_text("utf-8")
