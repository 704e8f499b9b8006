"""PyPI metadata: addresses, and README.md with absolute links; hatchling asks for them in a build.

PyPI shows the readme on a page of its own, where links into the repository lead nowhere. They
become links to the tag of the version, so that the page of a release stays as it was.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def addresses(repository: str, paper: str, version: str) -> dict[str, str]:
    """Return the addresses beside the page on PyPI, by name."""
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/v{version}/docs/README.md",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Paper": paper,
    }


def absolute_links(text: str, repository: str, version: str) -> str:
    """Return Markdown whose links and pictures lead to files of the repository at a version."""

    def absolute(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({repository}/{kind}/v{version}/{target})"

    return LINK.sub(absolute, text)


class PyPIMetadata(MetadataHookInterface):
    """Adds the dynamic fields of pyproject.toml, except the version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` and ``urls``."""
        repository, paper = self.config["repository"], self.config["paper"]
        version = metadata["version"]
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["urls"] = addresses(repository, paper, version)
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute_links(text, repository, version),
        }
