"""``shoal data``: list, download, verify and cache data sets."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..catalogue import FIT_BACKBONE, own_dataset
from ..report.screen import open_console, plain, print_json, print_lines
from .extras import for_images, for_weights, require
from .loading import (
    add_data_folder,
    add_places,
    decode_with_progress,
    features_with_progress,
    load_and_report,
)
from .notes import add_quiet
from .options import add_device, device
from .progress import amounts
from .terminal import table

if TYPE_CHECKING:
    from ..datasets.images import Verification
    from ..datasets.verification import Examination

WHICH = (
    "a name from 'shoal data list', a folder of domain/class/file, or a .csv, .tsv or .json file "
    "that lists images (a manifest)"
)


def add(commands: Any) -> None:
    """Add the command and its actions."""
    parser = commands.add_parser(
        "data",
        help="list, download, verify and cache data sets",
        examples="""
            shoal data list
            shoal data download pacs --data DIR
        """,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_list(actions)
    _add_download(actions)
    _add_verify(actions)
    _add_cache(actions)
    _add_features(actions)


def _add_list(actions: Any) -> None:
    parser = actions.add_parser(
        "list",
        help="list the published data sets, and which are present",
        examples="""
            shoal data list --data DIR
            shoal data list --json
        """,
    )
    add_data_folder(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_list, after_interrupt="nothing was written")


def _add_download(actions: Any) -> None:
    parser = actions.add_parser(
        "download",
        help="download a data set, or print how to download it by hand",
        description="Download, check and unpack a published data set. An interrupted download "
        "resumes.",
        examples="""
            shoal data download domainnet --data DIR
            shoal data download pacs --data DIR --url https://example.org/pacs.zip --keep-archive
        """,
    )
    parser.add_argument(
        "name",
        type=own_dataset,
        metavar="NAME",
        help="a data set such as domainnet; see 'shoal data list'",
    )
    add_data_folder(parser)
    parser.add_argument("--url", help="address of an archive of the whole set, to use instead")
    parser.add_argument(
        "--sha256", metavar="SUM", help="the SHA-256 sum that the archive at --url must have"
    )
    parser.add_argument(
        "--keep-archive", action="store_true", help="keep the downloaded files in DIR/downloads"
    )
    add_quiet(parser)
    parser.set_defaults(run=_download, after_interrupt="the same command resumes here")


def _add_verify(actions: Any) -> None:
    parser = actions.add_parser(
        "verify",
        help="read every image, and list broken, unexpected and missing files",
        description="Read every image, list each broken or unexpected file, and compare the counts "
        "with the published ones. The exit status is 1 if something is wrong.",
        examples="""
            shoal data verify pacs --data DIR
            shoal data verify photos --json
        """,
    )
    parser.add_argument("dataset", metavar="PATH_OR_NAME", help=WHICH)
    add_data_folder(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_quiet(parser)
    parser.set_defaults(run=_verify, after_interrupt="nothing was written")


def _add_cache(actions: Any) -> None:
    parser = actions.add_parser(
        "cache",
        help="decode every image once, ahead of training",
        examples="""
            shoal data cache pacs --data DIR
            shoal data cache photos --cache DIR
        """,
    )
    parser.add_argument("dataset", metavar="PATH_OR_NAME", help=WHICH)
    add_places(parser)
    add_quiet(parser)
    parser.set_defaults(run=_cache, after_interrupt="finished domains are kept")


def _add_features(actions: Any) -> None:
    parser = actions.add_parser(
        "features",
        help="compute the features of a network for every image, as a data set of vectors",
        description="Run every image through a network with ImageNet weights once, and write "
        "its features. The file is a data set for 'shoal sweep' and 'shoal train', which "
        "train linear heads on it in seconds.",
        examples="""
            shoal data features pacs --data DIR --out pacs.safetensors
            shoal data features photos --network resnet18 --out photos.safetensors
        """,
    )
    parser.add_argument("name", metavar="NAME", help=WHICH)
    add_places(parser)
    parser.add_argument("--network", metavar="NAME", help=f"the network (default: {FIT_BACKBONE})")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a .safetensors file to write"
    )
    add_device(parser)
    add_quiet(parser)
    parser.set_defaults(run=_features, after_interrupt="nothing was written")


def _features(options: argparse.Namespace) -> int:
    require("rich", "safetensors", *for_images(options.name), *for_weights(options.network))
    if options.out.suffix != ".safetensors":
        raise ValueError(f"--out must be a .safetensors file, got {options.out}")
    dataset = load_and_report(options.name, options.data)
    if dataset.in_memory:
        raise ValueError(f"{dataset.name} is in memory; only image files have features to compute")
    on = device(options.device)
    features_with_progress(dataset, options.network, on, options.cache, options.out)
    print_lines(f"wrote {options.out}: {sum(map(len, dataset.domains)):,} images")
    return 0


def _list(options: argparse.Namespace) -> int:
    require(*([] if options.json else ["rich"]))
    from ..datasets import SOURCES

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
        print_json(rows, indent=2)
        return 0
    from rich.console import Group
    from rich.filesize import decimal
    from rich.padding import Padding

    shown = table(f"Data sets, with files under {options.data}", None)
    shown.add_column("Name", no_wrap=True)
    shown.add_column("Domains, and terms of use")
    for heading in ("Classes", "Images", "Download"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, source in SOURCES.items():
        there = "embedded" if source.embedded else "present"
        fetched = "by hand" if source.size is None else decimal(source.size)
        present = source.present(options.data)
        terms = Padding(plain(source.terms, style="dim"), (0, 0, 0, 2))
        shown.add_row(
            plain(name),
            Group(plain(", ".join(source.domains)), terms),
            f"{source.classes:,}",
            f"{source.images:,}",
            plain(there, style="green") if present else plain(fetched),
        )
    open_console().print(shown)
    return 0


def _download(options: argparse.Namespace) -> int:
    require("rich")
    from ..choices import choose
    from ..datasets import SOURCES
    from ..datasets.fetch import fetch

    if options.sha256 and not options.url:
        raise ValueError("--sha256 is the sum of the archive at --url, and no --url was given")
    source = SOURCES[choose("data set", options.name, SOURCES)]
    if source.embedded:
        print_lines(f"{options.name} comes with shoal: there is nothing to download")
        return 0
    if source.present(options.data):
        print_lines(f"{options.name} is already at {options.data / source.folder}")
        return 0
    with amounts("bytes") as shown:
        shown.note(f"{options.name}: terms of use: {source.terms}; see {source.page}")
        folder = fetch(
            options.name,
            options.data,
            url=options.url,
            sha256=options.sha256,
            keep_archive=options.keep_archive,
            progress=shown,
            note=shown.note,
        )
    check = f"shoal data verify {options.name} --data {options.data}"
    print_lines(f"{options.name} is at {folder}; to check every image: {check}")
    if source.remark:
        print_lines(f"Note: {source.remark}.")
    return 0


def _verify(options: argparse.Namespace) -> int:
    require("rich", *for_images(options.dataset))
    from ..datasets.verification import examine

    with amounts("images") as shown:
        report = examine(options.dataset, options.data, partial(shown, "reading"))
    if options.json:
        print_json(as_json(report), indent=2)
    else:
        show(report)
    return 0 if report.good else 1


def _cache(options: argparse.Namespace) -> int:
    require("rich", *for_images(options.dataset))
    dataset = load_and_report(options.dataset, options.data)
    cache = decode_with_progress(dataset, options.cache)
    if cache is None:
        print_lines(f"{dataset.name} comes decoded: there is nothing to do")
        return 0
    images = sum(map(len, dataset.domains))
    print_lines(f"{dataset.name}: {images:,} decoded images are in {options.cache}")
    return 0


def as_json(report: "Examination") -> dict[str, Any]:
    """Return the report as plain values."""
    found = report.found
    return {
        "name": report.name,
        "place": report.place,
        "good": report.good,
        "counts": found.counts if found else {},
        "published": report.published,
        "differences": [line._asdict() for line in found.differences] if found else [],
        "broken": [
            {"domain": line.domain, "path": str(line.path), "why": line.why}
            for line in (found.broken if found else ())
        ],
        "faults": [{"path": path, "why": why} for path, why in report.faults],
        "missing_classes": found.missing_classes if found else {},
        "notes": report.notes,
    }


def show(report: "Examination") -> None:
    """Print the counts, every fault, every note and the verdict."""
    screen = open_console()
    broken: list[tuple[str, str]] = []
    screen.print(plain(f" {report.name}: {report.place}"), soft_wrap=True)
    if report.found is not None:
        screen.print(_counts(report, report.found))
        broken = [(str(line.path), line.why) for line in report.found.broken]
    for heading, lines in (("Broken", broken), ("Unexpected", report.faults)):
        if lines:
            screen.print(plain(f" {heading} ({len(lines):,})", style="bold"))
            for path, why in lines:
                screen.print(plain(f"   {path}: ").append_text(plain(why, "red")), soft_wrap=True)
    if report.notes:
        screen.print(plain(" Worth knowing", style="bold"))
        for note in report.notes:
            screen.print(plain(f"   {note}"), soft_wrap=True)
    style = "bold green" if report.good else "bold red"
    screen.print(plain(f" {_verdict(report)}", style=style), soft_wrap=True)


def _counts(report: "Examination", found: "Verification") -> Any:
    """Return the table of images and classes, with the published counts if there are any."""

    published = report.published
    expected = {"all": published} if isinstance(published, int) else dict(published or {})
    expected.setdefault("all", sum(expected.values()))
    names = [name for name in dict.fromkeys([*expected, *found.counts]) if name != "all"]
    shown = table(None, None)
    shown.add_column("Domain")
    for heading in ("Images", "Published", "Classes", "Broken"):
        if heading != "Published" or published is not None:
            shown.add_column(heading, justify="right")
    for name in [*names, "all"]:
        domains = [name] if name != "all" else names
        counts = [found.counts[domain] for domain in domains if domain in found.counts]
        images = sum(sum(classes.values()) for classes in counts)
        kinds = {kind for classes in counts for kind, count in classes.items() if count}
        broken = sum(line.domain in domains for line in found.broken)
        cells = [plain(f"{images:,}"), plain(f"{len(kinds):,}"), plain(f"{broken:,}")]
        if published is not None:
            wanted = expected.get(name)
            style = "red" if wanted not in (None, images) else ""
            cells.insert(1, plain("" if wanted is None else f"{wanted:,}", style=style))
        shown.add_row(plain(name), *cells)
    return shown


def _verdict(report: "Examination") -> str:
    if report.found is None:
        return "Not good: there is no image"
    if report.good:
        counts = ", and the counts are the published ones" if report.published is not None else ""
        return f"Good: every image can be read{counts}"
    wrong = {
        "broken": len(report.found.broken),
        "unexpected": len(report.faults),
        "counts not as published": len(report.found.differences),
    }
    return "Not good: " + ", ".join(f"{count:,} {kind}" for kind, count in wrong.items() if count)
