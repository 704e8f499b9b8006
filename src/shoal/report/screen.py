"""Screen: all that is printed; a name from others cannot move the cursor or begin a line.

Nothing else in shoal prints, or makes a console, a text or a progress bar of rich.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from ..escapes import csv_cell, json_text, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table
    from rich.text import Text


def print_lines(*lines: str, stderr: bool = False) -> None:
    """Print lines, each in one line whatever names it contains."""
    for line in lines or ("",):
        print(printable(line), file=sys.stderr if stderr else sys.stdout)


def print_document(content: str, file: IO[str] | None = None) -> None:
    """Print a text of many lines, such as Markdown, in which names are escaped already."""
    print(printable(content, keep="\n\t"), file=file)


def print_parts(parts: Iterable[str], file: IO[str] | None = None) -> None:
    """Print a text that comes in parts, in which names are escaped already."""
    for part in parts:
        print(part, end="", file=file)
    print(file=file)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON."""
    print(json_text(value, indent))


def csv_printer() -> Callable[[Sequence[str | None]], None]:
    """Return a function that prints a row of CSV, which no spreadsheet takes for formulas.

    In a file, names are as they are; on a terminal they are escaped.
    """
    write = csv.writer(sys.stdout).writerow
    shown = printable if sys.stdout.isatty() else str

    def show(cells: Sequence[str | None]) -> None:
        write([csv_cell(shown(cell or "")) for cell in cells])

    return show


def plain(words: str, style: str = "", keep: str = "", **options: Any) -> "Text":
    """Return words for a cell or a line, as they are and without markup.

    Args:
        keep: as in ``printable``.
        options: of rich's ``Text``.
    """
    from rich.text import Text

    return Text(printable(words, keep), style, **options)


def open_console(
    file: IO[str] | None = None,
    *,
    stderr: bool = False,
    quiet: bool = False,
    width: int | None = None,
) -> "Console":
    """Return a console that shows every string as ``plain`` does.

    If its reader has gone, it says so; rich's own ends the process with status 1.
    """
    from rich.console import Console
    from rich.text import Text

    class Screen(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            shown = (plain(one) if isinstance(one, str) else one for one in objects)
            super().print(*shown, **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def render_str(self, text: str, **options: Any) -> Text:  # of cells and headings
            return plain(text, options.get("style", ""), justify=options.get("justify"))

    return Screen(file=file, stderr=stderr, quiet=quiet, width=width)


def rich_table(title: str = "", note: str = "", **options: Any) -> "Table":
    """Return an empty table for a terminal, as all of ours look."""
    from rich import box
    from rich.table import Table

    return Table(
        title=plain(title) if title else None,
        caption=plain(note, keep="\n") if note else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        **options,
    )


def words_column(field: str = "description", width: int = 0) -> "ProgressColumn":
    """Return a column of progress bars with these words of a task."""
    from rich.progress import TextColumn

    name = "task.description" if field == "description" else f"task.fields[{field}]"
    padded = f"{{{name}:{width}}}" if width else f"{{{name}}}"
    return TextColumn(padded, markup=False)


def has_bars(console: "Console") -> bool:
    """Return whether progress is shown by bars: on a terminal, unless it is quiet."""
    return console.is_terminal and not console.quiet


def progress_bars(
    console: "Console", *columns: "str | ProgressColumn", always: bool = False
) -> "Progress":
    """Return progress bars, whose words are shown as ``plain`` shows them.

    Args:
        always: make them where ``has_bars`` is false, too.
    """
    from rich.progress import Progress, TaskID

    def safe(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: printable(one) if isinstance(one, str) else one for key, one in fields.items()}

    class Bars(Progress):
        def add_task(self, description: str, *rest: Any, **fields: Any) -> TaskID:
            return super().add_task(printable(description), *rest, **safe(fields))

        def update(self, task_id: TaskID, **fields: Any) -> None:
            super().update(task_id, **safe(fields))

    return Bars(*columns, console=console, disable=not (always or has_bars(console)))
