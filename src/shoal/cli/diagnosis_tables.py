"""A diagnosis as tables in the terminal."""

from collections.abc import Iterable, Sequence
from typing import Any

from .terminal import table

Rows = Iterable[Sequence[str]]
KINDS = {"risk": "risk", "variance": "Var(G)", "empirical": "F̃"}
KINDS |= {"fisher": "F", "hessian": "H", "mean": "mean g"}


def show(found: dict[str, Any], title: str) -> None:
    """Show everything that a diagnosis found."""
    from rich.console import Console

    console = Console()
    asked = found["question"]["parameters"]
    weights = "the head" if asked == "head" else "all weights" if asked == "all" else asked
    print(f"{title}, {weights} ({found['weights']:,} weights)\n")
    for one in TABLES:
        console.print(one(found))


def number(value: float | None) -> str:
    """Return a number in three digits, however large or small: more do not fit in 80 columns."""
    return "–" if value is None else f"{value:.3g}"


def _made(title: str, caption: str | None, heads: Sequence[str], rows: Rows, names: int = 1) -> Any:
    shown = table(title, caption)
    for k, head in enumerate(heads):
        # Folded where a terminal is narrow: a number that is cut has lost its power of ten.
        shown.add_column(head, justify="left" if k < names else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def _domains(found: dict[str, Any]) -> Any:
    kinds = ("variance", "empirical", "fisher", "hessian")
    rows = [
        (
            name + (" (trained on)" if one["trained_on"] else ""),
            str(one["images"]),
            f"{100 * one['accuracy']:.1f}",
            number(one["risk"]),
            *(number(one["chain"][f"trace:{kind}"]) for kind in kinds),
            number(one["chain"]["gradient"]),
        )
        for name, one in found["domains"].items()
    ]
    heads = (
        "Domain",
        "examples",
        "accuracy %",
        "risk R",
        "Tr C",
        "Tr F̃",
        "Tr F",
        "Tr H",
        "‖g‖²/Tr C",
    )
    caption = "Traces are means over examples; ‖g‖²/Tr C is what centring takes away."
    return _made("Domains", caption, heads, rows)


def _chain(found: dict[str, Any]) -> Any:
    links = ("hessian:fisher", "fisher:empirical", "empirical:variance", "hessian:variance")
    rows = [
        (
            name,
            *(f"{one['chain'][f'cosine:{link}']:.5f}" for link in links),
            *(number(one["dominance"][kind]) for kind in ("energy", "rows")),
        )
        for name, one in found["domains"].items()
    ]
    heads = ("Domain", "cos(H, F)", "cos(F, F̃)", "cos(F̃, C)", "cos(H, C)", "energy", "rows")
    caption = (
        "Of diagonals. Energy: ‖Diag F‖²/‖F‖²; rows: share that their diagonal entry dominates."
    )
    return _made("H ≈ F ≈ F̃ ∝ C", caption, heads, rows)


def _pairs(found: dict[str, Any]) -> Any:
    rows = [
        (" – ".join(one["domains"]), *(number(one[kind]) for kind in KINDS))
        for one in found["pairs"]
    ]
    heads = ("Pair", *KINDS.values())
    return _made("Squared distances between domains", None, heads, rows)


def _cosines(found: dict[str, Any]) -> Any:
    kinds = {kind: word for kind, word in KINDS.items() if kind != "risk"}
    rows = [
        (" – ".join(one["domains"]), *(f"{one[f'cosine:{kind}']:.4f}" for kind in kinds))
        for one in found["pairs"]
    ]
    return _made("Cosines between domains", None, ("Pair", *kinds.values()), rows)


def _gaps(found: dict[str, Any]) -> Any:
    words = {"all": "all", "trained_on": "those trained on"}
    kinds = ("risk", "variance", "hessian", "cosine")
    rows = [
        (words[which], *(number(one[k]) for k in kinds)) for which, one in found["gaps"].items()
    ]
    caption = "Spread over domains, 1/E Σ ‖s − s̄‖²; cos(H, C) is the mean over domains."
    return _made("Gaps", caption, ("Domains", "risk", "Var(G)", "H", "cos(H, C)"), rows)


def _inconsistency(found: dict[str, Any]) -> Any:
    full, diagonal = (found["inconsistency"][kind] for kind in ("full", "diagonal"))
    rows = [
        (
            f"{one['a']} → {one['b']}",
            number(one["risk"]),
            *(
                number(score[kind])
                for score in (one, other)
                for kind in ("curvature", "inconsistency")
            ),
            f"{one['floored']:,}",
            f"{other['floored']:,}",
        )
        for one, other in zip(full["pairs"], diagonal["pairs"], strict=True)
    ]
    small = "holds" if full["small_enough"] else "does not hold"
    caption = (
        f"ε = {number(full['epsilon'])}; curvatures of A below {number(full['floor'])} "
        f"(diagonal: {number(diagonal['floor'])}), {number(found['question']['floor'])} of the "
        f"largest, count as that. The bound of Proposition 1 on ε {small}. "
        f"Largest: {number(full['largest'])}, diagonal: {number(diagonal['largest'])}."
    )
    heads = ("A → B", "R", "H", "I", "H diag.", "I diag.", "floored", "floored diag.")
    return _made("Inconsistency I(A, B) = max(|R|, |R + H|)", caption, heads, rows)


def _spectra(found: dict[str, Any]) -> Any:
    rows = [
        (
            name,
            *(
                number(value)
                for kind in ("tangent", "fisher")
                for value in (one[kind]["largest"][0], one[kind]["share"], one[kind]["step_limit"])
            ),
        )
        for name, one in found["domains"].items()
    ]
    heads = ("Domain", "NTK λ", "λ/Tr", "2/λ", "F λ", "λ/Tr", "2/λ")
    counts = sorted(set(found["spectra_of"]))
    of = "–".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
    caption = f"Largest eigenvalues λ, of matrices over n; of F from {of} examples of each domain."
    return _made("Spectra", caption, heads, rows)


def _alignment(found: dict[str, Any]) -> Any:
    rows = [
        (" – ".join(one["domains"]), *(f"{one['alignment'][k]:.4f}" for k in ("first", "subspace")))
        for one in found["pairs"]
    ]
    caption = "|cos| of the first eigenvectors of F; share of the first five that is common."
    return _made("Alignment", caption, ("Pair", "first", "first five"), rows)


TABLES = (_domains, _chain, _pairs, _cosines, _gaps, _inconsistency, _spectra, _alignment)
