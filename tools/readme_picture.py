"""The README's first picture: Colored MNIST, and the accuracy of ERM and Fishr on reversed colours.

    python tools/readme_picture.py

Accuracies are those of ``docs/results/colored-mnist.json``; digits are the embedded MNIST. Needs
the extras ``report`` and ``images``.
"""

import io
import json
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("agg")

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image

from shoal.datasets.mnist import train_digits

DOCS = Path(__file__).resolve().parent.parent / "docs"
SHOWN = 10
COLOURS = np.array([[0, 114, 178], [213, 94, 0]]) / 255  # blue and vermilion: colour-blind safe
BARS = {"train": "#9A9A9A", "test": "#222222"}
METHODS = {"ERM": "erm", "Fishr": "fishr-omega"}
CLASSES = ("0-4", "5-9")


def coloured_digits(agreeing: int) -> NDArray[np.float64]:
    """Return two rows of digits, one per class, ``agreeing`` of each in the colour of its class."""
    images, labels = train_digits()
    rows = []
    for kind, members in enumerate((labels < 5, labels >= 5)):
        ink = images[np.flatnonzero(members)[:SHOWN], :, :, None] / 255
        # The odd ones are at different places in the two rows.
        place = (np.arange(SHOWN) + 3 + 4 * kind) % SHOWN
        colour = COLOURS[np.where(place < agreeing, kind, 1 - kind)]
        rows.append(np.hstack(1 - ink * (1 - colour[:, None, None, :])))
    return np.vstack(rows)


def draw_digits(axes: Axes, title: str, agreeing: int) -> None:
    axes.imshow(coloured_digits(agreeing), interpolation="bilinear")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_yticks([14, 42], CLASSES, fontsize=9)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_accuracies(axes: Axes) -> None:
    records = json.loads((DOCS / "results/colored-mnist.json").read_text("utf-8"))["records"]
    for row, method in enumerate(METHODS.values()):
        chosen = [
            r
            for r in records
            if r["method"] == method and r["flip"] == 0.25 and r["precision"] == "tf32"
        ]
        for offset, split in ((-0.2, "train"), (0.2, "test")):
            accuracy = 100 * mean(record[split] for record in chosen)
            axes.barh(row + offset, accuracy, height=0.36, color=BARS[split])
            label = "colours as trained" if split == "train" else "colours reversed"
            axes.text(accuracy + 1.5, row + offset, f"{accuracy:.0f} %  {label}", va="center")
    axes.set_yticks(range(len(METHODS)), METHODS, fontsize=11)
    axes.set_ylim(len(METHODS) - 0.5, -0.5)
    axes.set_xlim(0, 135)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title("Accuracy", loc="left", fontsize=10)


def main() -> None:
    figure = pyplot.figure(figsize=(9, 2.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.1, 1), wspace=0.08)
    draw_digits(figure.add_subplot(grid[0, 0]), "Training: the colour gives the class away", 9)
    draw_digits(figure.add_subplot(grid[1, 0]), "New domain: the colours are reversed", 1)
    draw_accuracies(figure.add_subplot(grid[:, 1]))
    content = io.BytesIO()
    figure.savefig(content, dpi=130)
    # 64 colours look the same and take a third of the bytes.
    picture = Image.open(content).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(DOCS / "pictures/colored-mnist.png", optimize=True)


if __name__ == "__main__":
    main()
