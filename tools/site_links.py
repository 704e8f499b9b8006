"""Site links: every link of the built site leads to a file of it, and to an anchor in that file.

python tools/site_links.py build/site    # exit with 1 and a line for each link that does not
"""

import argparse
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page and the targets of its links and pictures."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value and tag in ("a", "img", "script", "link"):
                self.targets.append(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield a line for each link that leads nowhere; addresses of the web are not tried."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: no pages"
    for path, page in pages.items():
        for target in page.targets:
            scheme, host, name, _, anchor = urlsplit(target)
            if scheme or host:
                continue
            file = (path.parent / unquote(name)).resolve() if name else path
            where = f"{path.relative_to(site.resolve())}: {target}"
            if not file.is_file():
                yield f"{where}: no such file"
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                yield f"{where}: no such anchor"


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the links of a built site.")
    parser.add_argument("site", type=Path, help="the folder with index.html")
    found = list(broken_links(parser.parse_args().site))
    print("\n".join(found) or "All links lead somewhere.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
