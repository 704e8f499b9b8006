"""Tables of the analyses, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..report.views import Sheet, power

__all__ = [
    "gradient_sheet",
    "hessian_sheets",
    "landscape_sheet",
    "linear_sheets",
    "overhead_sheet",
]


COSINES, HESSIANS = "table:simhessiangradvar", "table:hessianermfishr"
DOMAINS = ("90%", "80%")
GAPS = {
    "variance_gap": "‖Var(G_90) − Var(G_80)‖²",
    "risk_gap": "|R_90 − R_80|²",
    "hessian_gap": "‖Diag(H_90 − H_80)‖²",
}
LINKS = {
    "cosine:hessian:fisher": "cos(H, F)",
    "cosine:fisher:empirical": "cos(F, F̃)",
    "cosine:empirical:variance": "cos(F̃, C)",
    "cosine:hessian:variance": "cos(H, C)",
    "gradient": "‖g_e‖² / Tr(C)",
}


def linear_sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """Return the table of the linear example, and the window in which it holds."""
    rows = []
    for row in result["table"]:
        paper = row["paper"]
        rows.append(
            (
                f"{row['name']}: {_small(row['statistic'])}" if row["lambda"] else row["name"],
                f"{row['lambda']:g}" if row["lambda"] else "–",
                f"{row['train']:.0f} / {row['test']:.0f}",
                f"{paper['train']} / {paper['test']}",
                _weights(row),
                _weights(paper),
            )
        )
    table = Sheet(
        f"tab:appendix-linear, reconstructed data, {result['steps']} steps for all",
        ("Method", "λ", "Train / test in %", "paper", "W; b", "paper"),
        rows,
        f"{result['optimiser']}.",
    )
    spans = []
    for row in result["table"]:
        held = [f"{first}–{last}" for state, first, last in row["spans"] if state == "invariant"]
        low_high = result["at_steps"].get(row["method"])
        spans.append(
            (
                f"{row['name']}: {_small(row['statistic'])}" if row["lambda"] else row["name"],
                f"{row['lambda']:g}" if row["lambda"] else "–",
                ", ".join(held) or "none",
                f"{power(low_high[0], 3)} – {power(low_high[1], 3)}" if low_high else "–",
            )
        )
    window = Sheet(
        "Where 93 / 93 holds",
        ("Method", "λ", "steps at this λ", f"λ at {result['steps']} steps"),
        spans,
        f"Looked at until step {result['longest']}.",
    )
    return [table, window]


def _small(text: str) -> str:
    return text[0].lower() + text[1:].replace("entered", "entred")


def _weights(row: Mapping[str, Any]) -> str:
    weights: Sequence[float] = row["weights"]
    shown = ", ".join(f"{weight:.1f}" for weight in weights)
    return f"[{shown}]; {row['bias']:.1f}".replace("-", "−")


def hessian_sheets(result: Mapping[str, Any]) -> list[Sheet]:
    """Return the cosines of Hessians and variances, the gaps, and the links of the chain."""
    tables = result["tables"]
    setup, records = result["setup"], result["records"]
    runs = len(records["ERM"])
    about = f"{runs} restart{'s' if runs > 1 else ''}. "
    about += _size({"setup": setup, "device": records["ERM"][0]["device"]})
    cosines = [
        (name, *[_pair(tables[COSINES][which][d], "{:.7f}") for d in DOMAINS])
        for which, name in (("classifier", "classifier ω"), ("all", "all weights θ"))
    ]
    gaps = [
        (GAPS[gap], _powers(row["ERM"]), _powers(row["Fishr"]), _times(row["times"]))
        for gap, row in tables[HESSIANS].items()
    ]
    return [
        Sheet(
            f"{COSINES}: cos(Diag(H_e), Var(G_e)), ERM at the end (paper)",
            ("Weights", *[f"e = {domain}" for domain in DOMAINS]),
            cosines,
            about,
        ),
        Sheet(
            f"{HESSIANS}: gaps between the training domains at the end (paper)",
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
                means = [sum(link[key] for link in found) / len(found) for key in LINKS]
                cosines = [f"{mean:.5f}" for mean in means[:-1]]
                rows.append((f"{method}, {name}, {domain}", *cosines, power(means[-1])))
    return Sheet(
        "Every link of H ≈ F ≈ F̃ ∝ C at the end, diagonals",
        ("Method, weights, domain", *LINKS.values()),
        rows,
        about,
    )


def _pair(cell: Mapping[str, float], form: str) -> str:
    return f"{form.format(cell['ours'])} ({form.format(cell['paper'])})"


def _powers(cell: Mapping[str, float]) -> str:
    return f"{power(cell['ours'])} ({power(cell['paper'])})"


def _times(cell: Mapping[str, float]) -> str:
    return f"{cell['ours']:,.0f} × ({cell['paper']:,.0f} ×)"


def landscape_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return the terms of the inconsistency of every ordered pair of domains."""
    rows = [
        (
            f"{name}, {pair.replace(', ', ' → ')}",
            *[_signed(terms[key]) for key in ("R", "H", "proposition", "measured")],
        )
        for name, found in result["methods"].items()
        for pair, terms in found["pairs"].items()
    ]
    return Sheet(
        f"Inconsistency in the plane, ε = {result['epsilon']:g}",
        ("Method, A → B", "R = R_B − R_A", "H", "Proposition 1", "measured on the grid"),
        rows,
        "Proposition 1 takes the weights for a minimum of both quadratic risks; the grid does not. "
        f"Level sets that reach its edge and are cut there: {_cut(result)}. {_size(result)}",
    )


def _size(result: Mapping[str, Any]) -> str:
    """Return in words what the models were trained on, and on what."""
    setup = result["setup"]
    return (
        f"{setup['examples']:,} examples of each domain, {setup['hidden']} units, "
        f"{setup['updates']} updates. {result['device']}."
    )


def _cut(result: Mapping[str, Any]) -> str:
    found = [
        f"{name} on {domain}"
        for name, mine in result["methods"].items()
        for domain, cut in zip(mine["domains"], mine["cut"], strict=True)
        if cut
    ]
    return ", ".join(found) or "none"


def gradient_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return how wide the domains' gradients are, and how far their variances are apart."""
    rows = []
    for name, found in result["methods"].items():
        traces = [power(cloud["trace"], 3) for cloud in found["domains"].values()]
        accuracies = [f"{100 * found['accuracies'][key]:.1f}" for key in ("train", "test")]
        rows.append((name, *traces, power(found["variance_gap"]), " / ".join(accuracies)))
    head = ("Method", "Tr C_90", "Tr C_80", "‖Var(G_90) − Var(G_80)‖²", "train / test in %")
    return Sheet("Gradients of single examples in ω", head, rows, _size(result))


def _signed(value: float) -> str:
    return f"{value:+z.3f}".replace("-", "−")


def overhead_sheet(result: Mapping[str, Any]) -> Sheet:
    """Return times and peaks of an update, and what Fishr adds beside the paper's numbers."""
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
        "What Fishr costs over ERM (paper)",
        ("Head", "ms, ERM / Fishr", "time", "peak GB, ERM / Fishr", "memory"),
        rows,
        f"{work['network']}, {work['size']} px, {work['batch']} images of each domain, "
        f"{work['precision']}, medians of {work['rounds']} updates. {result['device']}.",
    )


def _gigabytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e9:.3f}"


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:+z.1f} %".replace("-", "−")
