"""The overhead of Fishr over ERM: time and memory of an update, heads of PACS and DomainNet.

As in the paper's text: a ResNet-50, 32 images of each training domain. Updates of both methods
alternate on the same images, and medians are reported. Memory is the peak of an update, on a GPU
only.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..algorithms import find
from ..algorithms.base import Algorithm
from ..algorithms.forward import Batch
from ..networks import for_data
from ..randomness import stream
from ..reference import published
from ..report.figures import INK, canvas
from ..report.views import Sheet
from ..training.step import precision_context
from .restarts import device_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LABEL = "text:overhead"
SETTINGS: dict[str, dict[str, Any]] = {"erm": {}, "fishr": {"warmup_steps": 0}}
WARM = 5


@dataclass(frozen=True)
class Head:
    """The size of a data set: its classes and training domains."""

    name: str
    classes: int
    domains: int


HEADS = {"pacs": Head("PACS", 7, 3), "domainnet": Head("DomainNet", 345, 5)}


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work that is timed: the network, the sizes of images and batches, and the rounds."""

    network: str = "resnet50"
    size: int = 224
    batch: int = 32
    rounds: int = 100
    precision: str = "float32"


def run(work: Work, device: torch.device) -> dict[str, Any]:
    """Return medians of both methods, and Fishr's overhead in percent next to the paper's."""
    paper = published(LABEL)["rows"]
    heads = {}
    for key, head in HEADS.items():
        heads[key] = measure(head, work, device) | {"name": head.name, "paper": paper[key]}
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"work": vars(work), "device": device_name(device), "heads": heads}


def measure(head: Head, work: Work, device: torch.device) -> dict[str, Any]:
    """Return seconds and peak bytes of an update of each method, and Fishr's overhead."""
    methods = {name: _method(name, head, work, device) for name in SETTINGS}
    batches = _batches(head, work, device)
    peaks = {name: _peak(method, batches, work) for name, method in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(WARM + work.rounds):
        # The first can pay for the second, so they take turns.
        for name in list(methods) if turn % 2 else list(methods)[::-1]:
            took = _timed(methods[name], batches, work)
            if turn >= WARM:
                seconds[name].append(took)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "seconds": medians,
        "quartiles": {n: statistics.quantiles(taken, n=4)[::2] for n, taken in seconds.items()},
        "peak_bytes": peaks,
        "time": 100 * (medians["fishr"] / medians["erm"] - 1),
        "memory": _more(peaks["fishr"], peaks["erm"]),
    }


def _method(name: str, head: Head, work: Work, device: torch.device) -> Algorithm:
    kind = find(name)
    network = for_data(
        (3, work.size, work.size),
        head.classes,
        name=work.network,
        weights=None,
        generator=stream("experiments", "overhead"),
    )
    return kind(network.to(device), head.domains, kind.Hparams(**SETTINGS[name])).to(device)


def _batches(head: Head, work: Work, device: torch.device) -> list[Batch]:
    draws = stream("experiments", "overhead", "images")
    shape = (work.batch, 3, work.size, work.size)
    found = []
    for _ in range(head.domains):
        images = torch.randn(shape, generator=draws)
        labels = torch.randint(head.classes, (work.batch,), generator=draws)
        found.append((images.to(device), labels.to(device)))
    return found


def _update(method: Algorithm, batches: list[Batch], work: Work) -> None:
    with precision_context(work.precision, method.device):
        method.update(batches)
    if method.device.type == "cuda":
        torch.cuda.synchronize(method.device)


def _timed(method: Algorithm, batches: list[Batch], work: Work) -> float:
    begin = time.perf_counter()
    _update(method, batches, work)
    return time.perf_counter() - begin


def _peak(method: Algorithm, batches: list[Batch], work: Work) -> int | None:
    """Return the peak of the second update: the first creates the optimiser's state."""
    _update(method, batches, work)
    if method.device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(method.device)
    _update(method, batches, work)
    return torch.cuda.max_memory_allocated(method.device)


def _more(mine: int | None, other: int | None) -> float | None:
    return 100 * (mine / other - 1) if mine is not None and other is not None else None


# The table


def overhead_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return times and peaks of an update, and Fishr's overhead next to the paper's numbers."""
    rows = []
    for head in result["heads"].values():
        seconds, peaks, paper = head["seconds"], head["peak_bytes"], head["paper"]
        times = [f"{1000 * seconds[name]:.2f}" for name in ("erm", "fishr")]
        bytes_ = [_gigabytes(peaks[name]) for name in ("erm", "fishr")]
        more = [_percent(head[key]) for key in ("time", "memory")]
        theirs = [_percent(paper[key]) for key in ("time", "memory")]
        rows.append(
            (
                head["name"],
                " / ".join(times),
                f"{more[0]} ({theirs[0]})",
                " / ".join(bytes_),
                f"{more[1]} ({theirs[1]})",
            )
        )
    work = result["work"]
    return Sheet(
        "Overhead of Fishr over ERM (paper)",
        ("Head", "ms, ERM / Fishr", "time", "peak GB, ERM / Fishr", "memory"),
        rows,
        f"{work['network']}, {work['size']} px, {work['batch']} images of each domain, "
        f"{work['precision']}, medians of {work['rounds']} updates. {result['device']}.",
    )


def _gigabytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e9:.3f}"


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:+z.1f} %".replace("-", "−")


# The figure

BARS = {"ours": ("#0072B2", ""), "paper": ("#FFFFFF", "///")}


def overhead_figure(result: Mapping[str, Any]) -> "Figure":
    """Return bars of Fishr's overhead in time and memory, for each head."""
    from matplotlib.patches import Patch

    heads = result["heads"].values()
    with canvas(1, 2, width=3.4, height=2.6) as (figure, axes):
        for axis, key in zip(axes[0], ("time", "memory"), strict=True):
            for place, head in enumerate(heads):
                for shift, (whose, value) in enumerate(
                    (("ours", head[key]), ("paper", head["paper"][key]))
                ):
                    _bar(axis, place + 0.36 * shift - 0.18, whose, value)
            axis.set_xticks(range(len(heads)), [head["name"] for head in heads])
            axis.set(title=f"{key} over ERM in %")
            axis.axhline(0, color=INK, linewidth=0.7)
            axis.margins(y=0.18)
            axis.grid(False, axis="x")
            axis.set_xlim(-0.6, len(heads) - 0.4)
        names = {"ours": result["device"], "paper": "paper, Tesla V100"}
        patches = [
            Patch(facecolor=BARS[whose][0], edgecolor=INK, hatch=BARS[whose][1], label=name)
            for whose, name in names.items()
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=2)
    return figure


def _bar(axis: Any, place: float, whose: str, value: float | None) -> None:
    colour, hatch = BARS[whose]
    if value is not None:
        axis.bar(place, value, 0.34, color=colour, edgecolor=INK, linewidth=0.6, hatch=hatch)
    text = "not\nmeasured" if value is None else f"{value:+z.1f}".replace("-", "−")
    axis.annotate(
        text,
        (place, max(value or 0.0, 0.0)),
        ha="center",
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
    )
