#!/usr/bin/env python3
"""Journeys: how many source files take part in what a user does.

Runs six journeys in this process and counts the files of the package whose functions were called,
without code that only ran while a module was being imported. Prints one number a journey, and with
--files the files.

    python tools/journeys.py [--files] [NAME ...]

Names: fishr, variance, train, sweep, report, fit. Everything runs on a CPU in a temporary folder.
"""

import contextlib
import io
import os
import random
import sys
import tempfile
import threading
from pathlib import Path

PACKAGE = "shoal"
FUNCTION = 0x1 | 0x2  # CO_OPTIMIZED | CO_NEWLOCALS: a function, not a module or a class body


def traced(action):
    """Return the files of the package whose functions ran while ``action`` did."""
    import importlib.util

    root = os.path.dirname(importlib.util.find_spec(PACKAGE).origin) + os.sep
    found, importing = set(), threading.local()

    def note(frame, event, _):
        code = frame.f_code
        inside = code.co_filename.startswith(root)
        if code.co_name == "<module>" and event in ("call", "return"):
            importing.depth = getattr(importing, "depth", 0) + (1 if event == "call" else -1)
        elif (
            event == "call"
            and inside
            and not getattr(importing, "depth", 0)
            and code.co_flags & FUNCTION == FUNCTION
        ):
            found.add(code.co_filename[len(root) :])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(found)


def command(*words):
    """Run the command line in this process, quietly; raise where it fails."""
    from shoal.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = main(list(words))
        except SystemExit as ended:
            status = ended.code
    if status:
        raise RuntimeError(f"shoal {' '.join(words)}: {out.getvalue()[-400:]}")


def fishr():
    import torch

    import shoal

    module = shoal.Fishr(num_domains=3, warmup_steps=0)
    module(torch.randn(12, 5), torch.randn(12, 4), torch.randint(0, 4, (12,)), torch.arange(12) % 3)


def variance():
    import torch

    import shoal

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 3),
    )
    shoal.gradient_variance(
        net, torch.randn(12, 3, 8, 8), torch.randint(0, 3, (12,)), torch.arange(12) % 3
    )


def train():
    command(
        "train",
        "--dataset",
        "colored-mnist",
        "--algorithm",
        "fishr",
        "--test-domain=-90%",
        "--steps",
        "2",
        "--device",
        "cpu",
        "--out",
        "run",
    )


def table(rows=240):
    chance = random.Random(0)
    with open("table.csv", "w") as file:
        file.write("v,w,site,label\n")
        for i in range(rows):
            file.write(
                f"{chance.gauss(i % 2, 1):.3f},{chance.random():.3f},s{i % 3},{'yn'[i % 2]}\n"
            )


def sweep():
    command(
        "sweep",
        "--algorithms",
        "erm",
        "--datasets",
        "colored-mnist",
        "--trials",
        "1",
        "--draws",
        "1",
        "--steps",
        "2",
        "--device",
        "cpu",
        "--workers",
        "1",
        "--out",
        "sweep",
    )


def report():
    if not Path("sweep").exists():
        sweep()
    return lambda: command("report", "sweep")


def fit():
    table()
    command(
        "fit",
        "table.csv",
        "--domain-column",
        "site",
        "--class-column",
        "label",
        "--runs",
        "6",
        "--steps",
        "5",
        "--device",
        "cpu",
        "--out",
        "fit",
    )


JOURNEYS = {
    "fishr": fishr,
    "variance": variance,
    "train": train,
    "sweep": sweep,
    "report": report,
    "fit": fit,
}


def main():
    words = sys.argv[1:]
    show = "--files" in words
    names = [word for word in words if word != "--files"] or list(JOURNEYS)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in names:
            action = report() if name == "report" else JOURNEYS[name]
            files = traced(action)
            print(f"{name}: {len(files)} files", flush=True)
            if show:
                print("  " + "\n  ".join(files))
        os.chdir("/")


if __name__ == "__main__":
    main()
