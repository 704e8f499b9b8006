"""Console: rich's, which leaves a closed pipe to the command."""

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def open_console(
    file: IO[str] | None = None, *, stderr: bool = False, quiet: bool = False
) -> "Console":
    """Return a console; rich's own ends the process with status 1 if its reader has gone."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Piped(file=file, stderr=stderr, quiet=quiet)
