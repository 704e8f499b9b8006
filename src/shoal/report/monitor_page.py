"""The page of a monitoring run: one HTML file that opens offline, without a script."""

from collections.abc import Mapping
from typing import Any

from .template import read_part, render


def monitor_page(content: Mapping[str, Any]) -> str:
    """Return the page; ``content`` is plain values, and every text of it is escaped."""
    filters = {
        "number": lambda value: f"{value:,}",
        "percent": lambda value: f"{100 * value:.1f}",
        # A number and its unit stay on one line.
        "together": lambda text: text.replace(" %", "\u00a0%"),
    }
    return render("monitor.html.jinja", filters, **content, style=read_part("fit.css"))
