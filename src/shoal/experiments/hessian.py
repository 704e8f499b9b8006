"""Fishr aligns Hessians: table:simhessiangradvar, table:hessianermfishr and the four dynamics.

ERM and Fishr, on all weights θ, are trained on Colored MNIST in the IRM setup, with two logits and
cross-entropy as in the paper's analyses. During training we measure, on all examples of both
training domains: accuracies, the gaps |R_90 − R_80|², ‖Var(G_90) − Var(G_80)‖² and
‖Diag(H_90 − H_80)‖², the cosine and norms of the domains' Hessian diagonals, and how close
Diag(H_e) is to Var(G_e).
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..curvature import Diagonals, chain, head_diagonals, network_diagonals, pairs
from ..documents import read_object
from ..reference import published
from ..report.figures import INK, Look, canvas, look_of
from ..report.views import Sheet, power
from ..storage import write_json
from .colored_mnist import METHODS, Setup, Training
from .restarts import RestartFolder, RestartProgress, describe_models, device_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SHOWN = {"ERM": "erm", "Fishr": "fishr-theta"}
COSINES, GAPS = "table:simhessiangradvar", "table:hessianermfishr"
# The order of the training domains in a Training.
DOMAINS = ("90%", "80%")
# Steps before and after λ's jump that are all measured.
AROUND_JUMP = 5
CURVES = (
    "step",
    "train",
    "test",
    "risk_gap",
    "variance_gap",
    "hessian_gap",
    "hessian_cosine",
    "hessian_norm_gap",
    "hessian_norm",
)


def points_of(setup: Setup, every: int) -> list[int]:
    """Return the steps at which a model is measured: every ``every``, and all near the jump."""
    near = range(max(setup.jump_step - AROUND_JUMP, 0), setup.jump_step + AROUND_JUMP + 1)
    points = {*range(0, setup.updates, every), *near, setup.updates}
    return sorted(point for point in points if point <= setup.updates)


def run(
    restarts: int,
    every: int,
    setup: Setup,
    device: torch.device,
    folder: RestartFolder,
    progress: RestartProgress,
) -> dict[str, list[dict[str, Any]]]:
    """Train and measure restarts without a record; return the records of each method."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, key in SHOWN.items():
        paths = [folder.record(f"hessian-{key}", setup.flip, r) for r in range(restarts)]
        missing = [restart for restart, path in enumerate(paths) if not path.exists()]
        if missing:
            training = Training(METHODS[key], setup, device, outputs=2)
            for restart in missing:
                record = follow(training, restart, points_of(setup, every), progress)
                write_json(paths[restart], {"method": name} | record)
        found[name] = [read_object(path) for path in paths]
    return found


def follow(
    training: Training, restart: int, points: Sequence[int], progress: RestartProgress
) -> dict[str, Any]:
    """Train one restart; return its curves, and the links of H ≈ F ≈ F̃ ∝ C at the end."""
    begin = time.perf_counter()
    seconds_measuring = 0.0
    training.start(restart)
    curves: dict[str, list[float]] = {name: [] for name in CURVES}
    while True:
        if training.done in points:
            start = time.perf_counter()
            for name, value in measure(training).items():
                curves[name].append(value)
            seconds_measuring += time.perf_counter() - start
        if training.done == training.setup.updates:
            break
        training.step()
        progress(training.method.name, restart, training.done, training.setup.updates)
    return {
        "restart": restart,
        "curves": curves,
        "links": links(training),
        "seconds": round(time.perf_counter() - begin, 1),
        "seconds_a_look": round(seconds_measuring / len(points), 3),
        "device": device_name(training.device),
        "torch": torch.__version__,
    }


def measure(training: Training) -> dict[str, float]:
    """Return this step's point of every curve."""
    accuracies = training.accuracies()
    found = diagonals(training)
    between = pairs(found)[0, 1]
    return {
        "step": training.done,
        "train": accuracies["train"],
        "test": accuracies["test"],
        "risk_gap": between["risk"],
        "variance_gap": between["variance"],
        "hessian_gap": between["hessian"],
        "hessian_cosine": between["cosine:hessian"],
        "hessian_norm_gap": between["norms:hessian"],
        "hessian_norm": float(found.hessian.double().square().sum(1).mean()),
    }


def diagonals(training: Training) -> Diagonals:
    """Return the diagonals of all weights, on all training examples."""
    chunk = None if training.device.type == "cuda" else 5_000
    return network_diagonals(
        training.model, training.inputs, training.labels, training.domain_ids(), chunk_size=chunk
    )


def links(training: Training) -> dict[str, dict[str, dict[str, float]]]:
    """Return the links of each domain, for the classifier's and for all weights."""
    training.wait()
    with torch.no_grad():
        features = training.model.features(training.inputs)
        logits = training.model.classifier(features)
    head = head_diagonals(features, logits, training.labels, training.domain_ids())
    return {
        which: {domain: chain(found, e) for e, domain in enumerate(DOMAINS)}
        for which, found in (("classifier", head), ("all", diagonals(training)))
    }


def tables(records: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return both tables: means over restarts, next to the paper's cells."""
    cosines, gaps = published(COSINES)["rows"], published(GAPS)["rows"]

    def end(name: str, curve: str) -> float:
        return statistics.fmean(record["curves"][curve][-1] for record in records[name])

    def cosine(which: str, domain: str) -> float:
        links = [record["links"][which][domain] for record in records["ERM"]]
        return statistics.fmean(link["cosine:hessian:variance"] for link in links)

    return {
        COSINES: {
            which: {d: {"ours": cosine(which, d), "paper": cosines[which][d]} for d in DOMAINS}
            for which in ("classifier", "all")
        },
        GAPS: {
            gap: {
                "ERM": {"ours": end("ERM", gap), "paper": row["erm"]},
                "Fishr": {"ours": end("Fishr", gap), "paper": row["fishr"]},
                "times": {
                    "ours": end("ERM", gap) / end("Fishr", gap),
                    "paper": row["erm"] / row["fishr"],
                },
            }
            for gap, row in gaps.items()
        },
    }


def mean_curves(records: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the mean curves of the restarts; raise if these were measured at different steps."""
    steps = records[0]["curves"]["step"]
    if any(record["curves"]["step"] != steps for record in records):
        raise ValueError("restarts were measured at different steps; choose another --out")
    together = {name: [record["curves"][name] for record in records] for name in CURVES}
    return {
        name: [statistics.fmean(v) for v in zip(*c, strict=True)] for name, c in together.items()
    }


# The tables

GAP_TITLES = {
    "variance_gap": "‖Var(G_90) − Var(G_80)‖²",
    "risk_gap": "|R_90 − R_80|²",
    "hessian_gap": "‖Diag(H_90 − H_80)‖²",
}
LINK_TITLES = {
    "cosine:hessian:fisher": "cos(H, F)",
    "cosine:fisher:empirical": "cos(F, F̃)",
    "cosine:empirical:variance": "cos(F̃, C)",
    "cosine:hessian:variance": "cos(H, C)",
    "gradient": "‖g_e‖² / Tr(C)",
}


def hessian_sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """Return the cosines of Hessians and variances, the gaps, and the links of the chain."""
    tables = result["tables"]
    setup, records = result["setup"], result["records"]
    runs = len(records["ERM"])
    about = f"{runs} restart{'s' if runs > 1 else ''}. "
    about += describe_models({"setup": setup, "device": records["ERM"][0]["device"]})
    cosines = [
        (name, *[_pair(tables[COSINES][which][d], "{:.7f}") for d in DOMAINS])
        for which, name in (("classifier", "classifier ω"), ("all", "all weights θ"))
    ]
    gaps = [
        (GAP_TITLES[gap], _powers(row["ERM"]), _powers(row["Fishr"]), _times(row["times"]))
        for gap, row in tables[GAPS].items()
    ]
    return [
        Sheet(
            f"{COSINES}: cos(Diag(H_e), Var(G_e)), ERM at the end (paper)",
            ("Weights", *[f"e = {domain}" for domain in DOMAINS]),
            cosines,
            about,
        ),
        Sheet(
            f"{GAPS}: gaps between the training domains at the end (paper)",
            ("Gap, all weights θ", "ERM", "Fishr", "ERM / Fishr"),
            gaps,
            about,
        ),
        _links(records, about),
    ]


def _links(records: Mapping[str, Any], about: str) -> Sheet:
    rows = []
    for method, mine in records.items():
        for which, name in (("classifier", "ω"), ("all", "θ")):
            for domain in DOMAINS:
                found = [record["links"][which][domain] for record in mine]
                means = [sum(link[key] for link in found) / len(found) for key in LINK_TITLES]
                cosines = [f"{mean:.5f}" for mean in means[:-1]]
                rows.append((f"{method}, {name}, {domain}", *cosines, power(means[-1])))
    return Sheet(
        "Every link of H ≈ F ≈ F̃ ∝ C at the end, of diagonals",
        ("Method, weights, domain", *LINK_TITLES.values()),
        rows,
        about,
    )


def _pair(cell: Mapping[str, float], form: str) -> str:
    return f"{form.format(cell['ours'])} ({form.format(cell['paper'])})"


def _powers(cell: Mapping[str, float]) -> str:
    return f"{power(cell['ours'])} ({power(cell['paper'])})"


def _times(cell: Mapping[str, float]) -> str:
    return f"{cell['ours']:,.0f} × ({cell['paper']:,.0f} ×)"


# The figures

Curves = Mapping[str, Sequence[float]]


def hessian_figures(records: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """Return both dynamics of both methods by name of file."""
    figures = {}
    for name, mine in records.items():
        curves = mean_curves(mine)
        jump = setup.jump_step if name == "Fishr" else None
        figures[f"dynamics-{name.lower()}"] = gap_dynamics(curves, name, jump)
        figures[f"hessian-{name.lower()}"] = hessian_dynamics(curves, name, jump)
    return figures


def gap_dynamics(curves: Curves, method: str, jump_step: int | None) -> "Figure":
    """Return accuracies, and the gaps between domains' risks, variances and Hessians, by step.

    Args:
        jump_step: the step at which λ jumps; None for a method without λ.
    """
    with canvas(1, 2, width=3.7, height=3.2) as (figure, axes):
        accuracy, gaps = axes[0]
        for number, (key, name) in enumerate(
            (("train", "train"), ("test", "test, colours reversed"))
        ):
            percent = [100 * value for value in curves[key]]
            _line(accuracy, curves["step"], percent, name, look_of(number))
        accuracy.set(title=f"{method}: accuracy in %", xlabel="step", ylim=(0, 100))
        names = {
            "variance_gap": "‖Var(G₉₀) − Var(G₈₀)‖²",
            "hessian_gap": "‖Diag(H₉₀ − H₈₀)‖²",
            "risk_gap": "|R₉₀ − R₈₀|²",
        }
        for number, (key, name) in enumerate(names.items()):
            _line(gaps, curves["step"], curves[key], name, look_of(number))
        gaps.set(title="Gaps between the training domains", xlabel="step", yscale="log")
        for axis in (accuracy, gaps):
            _jump(axis, jump_step)
            _legend(axis)
    return figure


def hessian_dynamics(curves: Curves, method: str, jump_step: int | None) -> "Figure":
    """Return distance, norms and cosine of the two domains' Hessian diagonals, by step."""
    with canvas(1, 2, width=3.7, height=3.2) as (figure, axes):
        sizes, directions = axes[0]
        names = {
            "hessian_norm": "mean of ‖h₉₀‖² and ‖h₈₀‖²",
            "hessian_gap": "‖h₉₀ − h₈₀‖²",
            "hessian_norm_gap": "(‖h₉₀‖² − ‖h₈₀‖²)²",
        }
        for number, (key, name) in enumerate(names.items()):
            _line(sizes, curves["step"], curves[key], name, look_of(number))
        sizes.set(title=f"{method}: Hessian diagonals h", xlabel="step", yscale="log")
        _line(directions, curves["step"], curves["hessian_cosine"], "cosine", look_of(0))
        directions.set(title="Their direction: cos(h₉₀, h₈₀)", xlabel="step")
        directions.ticklabel_format(axis="y", useOffset=False)
        directions.set_ylim(top=1.0 + 0.03 * (1 - min(curves["hessian_cosine"])))
        for axis in (sizes, directions):
            _jump(axis, jump_step)
            _legend(axis)
    return figure


def _line(
    axis: Any, steps: Sequence[float], values: Sequence[float], name: str, look: Look
) -> None:
    # Few points get markers.
    marks = {"marker": look.marker, "markersize": 2.5} if len(steps) <= 80 else {}
    axis.plot(steps, values, label=name, **look.line, **marks)


def _legend(axis: Any) -> None:
    """Put the legend under the axis, where it covers no line."""
    axis.legend(loc="upper left", bbox_to_anchor=(-0.12, -0.2), ncols=2, columnspacing=1.2)


def _jump(axis: Any, jump_step: int | None) -> None:
    if jump_step is not None:
        # Named in the legend: a label inside the axis could cover a line.
        axis.axvline(jump_step, color=INK, linewidth=0.8, linestyle=":", label="λ jumps")
