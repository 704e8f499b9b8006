"""How ``shoal data verify`` shows what was found."""

from typing import Any

from ..datasets.images import Verification
from ..datasets.verification import Examination
from .terminal import table


def as_json(report: Examination) -> dict[str, Any]:
    """Return all of it as plain values."""
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


def show(report: Examination) -> None:
    """Print the counts, every fault, every note and the verdict."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    broken: list[tuple[str, str]] = []
    console.print(Text(f" {report.name}: {report.place}"), soft_wrap=True)
    if report.found is not None:
        console.print(_counts(report, report.found))
        broken = [(str(line.path), line.why) for line in report.found.broken]
    for heading, lines in (("Broken", broken), ("Unexpected", report.faults)):
        if lines:
            console.print(Text(f" {heading} ({len(lines):,})", style="bold"))
            for path, why in lines:
                console.print(Text.assemble(f"   {path}: ", (why, "red")), soft_wrap=True)
    if report.notes:
        console.print(Text(" Worth knowing", style="bold"))
        for note in report.notes:
            console.print(Text(f"   {note}"), soft_wrap=True)
    style = "bold green" if report.good else "bold red"
    console.print(Text(f" {_verdict(report)}", style=style), soft_wrap=True)


def _counts(report: Examination, found: Verification) -> Any:
    """Return the table of images and classes, beside the published counts where there are any."""
    from rich.text import Text

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
        cells = [Text(f"{images:,}"), Text(f"{len(kinds):,}"), Text(f"{broken:,}")]
        if published is not None:
            wanted = expected.get(name)
            style = "red" if wanted not in (None, images) else ""
            cells.insert(1, Text("" if wanted is None else f"{wanted:,}", style=style))
        shown.add_row(Text(name), *cells)
    return shown


def _verdict(report: Examination) -> str:
    if report.found is None:
        return "Not good: there is no image to read"
    if report.good:
        counts = ", and the counts are the published ones" if report.published is not None else ""
        return f"Good: every image can be read{counts}"
    wrong = {
        "broken": len(report.found.broken),
        "unexpected": len(report.faults),
        "counts not as published": len(report.found.differences),
    }
    return "Not good: " + ", ".join(f"{count:,} {kind}" for kind, count in wrong.items() if count)
