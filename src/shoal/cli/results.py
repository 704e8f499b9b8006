"""What a run found, as a table."""

from pathlib import Path
from typing import Any

from .terminal import table


def show_record(result: Any, run: Any, out: Path) -> None:
    """Show the accuracies of the last record, and where everything lies."""
    from rich.console import Console

    from ..runs.best_weights import KEPT_MODELS

    record = result.records[-1]
    console = Console()
    title = f"{run.algorithm} on {run.dataset}, after {record['step'] + 1} updates"
    console.print(accuracies(record, run, title))
    if result.timing is None:
        print("The run was done already.")
    else:
        took = result.timing
        print(
            f"{took.updates} updates in {took.updating:.1f} s, evaluations {took.evaluating:.1f} s,"
            f" preparation {took.preparing:.1f} s"
        )
    print(f"Records, model and card: {out}")
    for kept in sorted((out / KEPT_MODELS).glob("step-*")):
        print(f"Weights that a rule may choose: {kept}")


def accuracies(record: Any, run: Any, title: str) -> Any:
    """Return accuracies and calibration errors of a record as a table, a domain in each row."""
    from rich.text import Text

    shown = table(title, "Accuracy in %, and expected calibration error; –: not evaluated.")
    shown.add_column("Domain")
    out = 100 * run.protocol.holdout
    heads = (f"kept {100 - out:g} %", f"held out {out:g} %", "error kept", "error held out")
    for head in heads:
        shown.add_column(head, justify="right")
    for domain, found in record["accuracy"].items():
        name = Text(domain, style="bold" if domain in run.test_domains else "")
        if domain in run.test_domains:
            name.append(" (test)")
        errors = record["calibration_error"][domain]
        cells = [_percent(found.get(split)) for split in ("kept", "held_out")]
        cells += [_error(errors.get(split)) for split in ("kept", "held_out")]
        shown.add_row(name, *cells)
    return shown


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _error(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
