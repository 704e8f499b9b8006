"""The page of a monitoring run: one HTML file that opens offline, without a script."""

from collections.abc import Mapping
from typing import Any

from .fit_page import page_file


def monitor_page(content: Mapping[str, Any]) -> str:
    """Return the page; ``content`` is plain values, and every text of it is escaped."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda value: f"{100 * value:.1f}"
    # A number and its unit stay on one line.
    environment.filters["together"] = lambda text: text.replace(" %", "\u00a0%")
    template = environment.from_string(page_file("monitor.html.jinja"))
    return template.render(**content, style=page_file("fit.css"))
