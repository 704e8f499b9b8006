"""``shoal data``: what there is, where it comes from, and whether it is whole."""

import argparse
import json
from functools import partial
from typing import Any

from .amounts import amounts
from .loading import add_data_folder, add_places, cache_of, dataset_of
from .terminal import table

WHICH = (
    "a name of 'shoal data list', a folder of domain/class/file, or a .csv, .tsv or .json manifest"
)


def add(commands: Any) -> None:
    """Add the command and what it can do."""
    parser = commands.add_parser("data", help="data sets: list, download, verify, cache")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_list(actions)
    _add_download(actions)
    _add_verify(actions)
    _add_cache(actions)


def _add_list(actions: Any) -> None:
    parser = actions.add_parser("list", help="the published data sets, and which are there")
    add_data_folder(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_list, after_interrupt="nothing was written")


def _add_download(actions: Any) -> None:
    parser = actions.add_parser(
        "download",
        help="fetch a data set, or say how to fetch it by hand",
        description="Fetch, check and unpack a published data set; an interrupted download goes "
        "on where it broke off.",
    )
    parser.add_argument("name", metavar="NAME", help="such as domainnet; see 'shoal data list'")
    add_data_folder(parser)
    parser.add_argument("--url", help="an archive of the whole set, in place of its source")
    parser.add_argument("--sha256", metavar="SUM", help="what --url must have")
    parser.add_argument(
        "--keep-archive", action="store_true", help="keep what was downloaded, in DIR/downloads"
    )
    parser.set_defaults(run=_download, after_interrupt="the same command goes on from here")


def _add_verify(actions: Any) -> None:
    parser = actions.add_parser(
        "verify",
        help="read every image, and name what is broken, unexpected or missing",
        description="Read every image; name each broken or unexpected file; compare the counts "
        "with the published ones. The exit status is 1 where something is wrong.",
    )
    parser.add_argument("dataset", metavar="PATH_OR_NAME", help=WHICH)
    add_data_folder(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_verify, after_interrupt="nothing was written")


def _add_cache(actions: Any) -> None:
    parser = actions.add_parser("cache", help="decode every image once, so that training need not")
    parser.add_argument("dataset", metavar="PATH_OR_NAME", help=WHICH)
    add_places(parser)
    parser.set_defaults(run=_cache, after_interrupt="finished domains are kept")


def _list(options: argparse.Namespace) -> int:
    from ..datasets.sources import SOURCES

    if options.json:
        rows = [
            {
                "name": name,
                "domains": source.domains,
                "classes": source.classes,
                "images": source.images,
                "present": source.present(options.data),
                "embedded": source.embedded,
                "download_bytes": source.size,
                "by_hand": bool(source.by_hand),
                "terms": source.terms,
                "page": source.page or None,
            }
            for name, source in SOURCES.items()
        ]
        print(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console, Group
    from rich.filesize import decimal
    from rich.padding import Padding
    from rich.text import Text

    shown = table(f"Data sets, with files under {options.data}", None)
    shown.add_column("Name", no_wrap=True)
    shown.add_column("Domains, and terms of use")
    for heading in ("Classes", "Images", "Download"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, source in SOURCES.items():
        there = "embedded" if source.embedded else "is there"
        fetched = "by hand" if source.size is None else decimal(source.size)
        present = source.present(options.data)
        terms = Padding(Text(source.terms, style="dim"), (0, 0, 0, 2))
        shown.add_row(
            Text(name),
            Group(Text(", ".join(source.domains)), terms),
            f"{source.classes:,}",
            f"{source.images:,}",
            Text(there, style="green") if present else Text(fetched),
        )
    Console().print(shown)
    return 0


def _download(options: argparse.Namespace) -> int:
    from ..checks import choose
    from ..datasets.fetch import fetch
    from ..datasets.sources import SOURCES

    if options.sha256 and not options.url:
        raise ValueError("--sha256 is the sum of --url, and no --url was given")
    source = SOURCES[choose("data set", options.name, SOURCES)]
    if source.embedded:
        print(f"{options.name} comes with shoal: there is nothing to download")
        return 0
    if source.present(options.data):
        print(f"{options.name} is already at {options.data / source.folder}")
        return 0
    with amounts("bytes") as shown:
        shown.say(f"{options.name}: terms of use: {source.terms}; see {source.page}")
        folder = fetch(
            options.name,
            options.data,
            options.url,
            options.sha256,
            options.keep_archive,
            shown,
            shown.say,
        )
    check = f"shoal data verify {options.name} --data {options.data}"
    print(f"{options.name} is at {folder}; to read every image: {check}")
    if source.remark:
        print(f"Note: {source.remark}.")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from ..datasets.verification import examine
    from .verification import as_json, show

    with amounts("images") as shown:
        report = examine(options.dataset, options.data, partial(shown, "reading"))
    if options.json:
        print(json.dumps(as_json(report), indent=2))
    else:
        show(report)
    return 0 if report.good else 1


def _cache(options: argparse.Namespace) -> int:
    dataset = dataset_of(options)
    cache = cache_of(dataset, options)
    if cache is None:
        print(f"{dataset.name} is in memory as it comes: there is nothing to decode")
        return 0
    images = sum(map(len, dataset.domains))
    print(f"{dataset.name}: {images:,} decoded images are in {options.cache}")
    return 0
