"""Names as they are, in a document whose signs mean something."""

from __future__ import annotations

import re

__all__ = ["as_markdown"]

# What would end a cell, or begin markup. A sign that stands where it means nothing is left alone.
_SIGNS = re.compile(
    r"[\\|*`]|<(?=[A-Za-z/!?])|(?<![^\W_])_|_(?![^\W_])|\](?=\()|~(?=~)|&(?=#|\w+;)",
)


def as_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    return " ".join(_SIGNS.sub(r"\\\g<0>", text).split())
