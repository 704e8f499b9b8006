"""``shoal diagnose``: compare the domains of a model in risk, gradient variance and curvature."""

import argparse
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..catalogue import HESSIAN_METHODS, title_of
from ..report.screen import open_console, plain, print_lines
from .extras import for_images, require
from .loading import add_columns, add_places, decode_with_progress, load_for_model
from .notes import add_quiet, note
from .options import add_device, device, name_domains, positive, whole
from .terminal import table


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "diagnose",
        help="compare the domains of a trained model: risks, gradient variances, Hessians",
        description="Compare the domains of a trained model: risks, gradient variances, Fisher "
        "and Hessian diagonals of every domain, the gaps between them, the inconsistency of every "
        "pair, and the largest eigenvalues; then a few sentences on what they mean. See "
        "docs/guides/diagnose.md for the tables.",
        examples="""
            shoal diagnose out/run
            shoal diagnose out/run photos --domain north south --images 500
            shoal diagnose out/run --parameters all --hessian gauss-newton --figures figures
        """,
    )
    name_domains(parser)
    parser.add_argument(
        "model",
        type=Path,
        metavar="RUN|MODEL",
        help="a run folder, the folder of one of its averages, or a model file",
    )
    parser.add_argument(
        "dataset",
        nargs="?",
        metavar="DATA",
        help="the data to compare on: a name from 'shoal data list', a folder of "
        "domain/class/file, a manifest, or a table if the model was trained on one (default: the "
        "run's data set, if it is a published one)",
    )
    add_places(parser)
    add_columns(parser)
    parser.add_argument(
        "--trial",
        type=whole,
        metavar="T",
        help="seed of data that is generated, such as Colored MNIST (default: the run's)",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help="path to your own class, if the model was trained with one",
    )
    parser.add_argument(
        "--domain",
        nargs="+",
        metavar="DOMAIN",
        help="domains to compare, two or more (default: all)",
    )
    parser.add_argument(
        "--images",
        type=positive,
        metavar="N",
        help="examples of each domain, the same ones each time (default: all)",
    )
    parser.add_argument(
        "--parameters",
        default="head",
        metavar="WHICH",
        help="weights to compare: head, all, or names and prefixes separated by commas "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--hessian",
        choices=HESSIAN_METHODS,
        default="auto",
        help="method for Hessian diagonals outside the head (default: auto: exact, or an error "
        "if that takes too long)",
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        default=0.1,
        metavar="ε",
        help="inconsistency: rise of a domain's risk that its level set allows "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--floor",
        type=float,
        default=1e-3,
        metavar="SHARE",
        help="inconsistency: smaller curvatures are raised to this share of the largest "
        "(default: %(default)s)",
    )
    add_device(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers as JSON")
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="also write figures, as PNG and PDF"
    )
    add_quiet(parser)
    parser.set_defaults(run=_run, after_interrupt="nothing was written")


def _run(options: argparse.Namespace) -> int:
    more = {"matplotlib": options.figures, "backpack": options.hessian == "backpack"}
    asked = [name for name, is_asked in more.items() if is_asked]
    require(
        "rich", "safetensors", *asked, *(for_images(options.dataset) if options.dataset else ())
    )
    from ..report.interpretation import sentences
    from ..runs.diagnosis import Question, diagnose
    from ..runs.model import load
    from ..storage import write_json
    from .methods import with_settings

    on = device(options.device)
    method = with_settings(options.algorithm)[0] if options.algorithm else None
    model = load(options.model, on, method)
    options.trial = model.run.trial if options.trial is None else options.trial
    _name_data(options, model.run)
    dataset = load_for_model(options, model.card)
    question = Question(
        parameters=options.parameters,
        epsilon=options.epsilon,
        floor=options.floor,
        images=options.images,
        method=options.hessian,
    )
    cache = decode_with_progress(dataset, options.cache)
    found = diagnose(model, dataset, cache, options.domain or dataset.names, question)
    found["sentences"] = sentences(found)
    show(found, f"{title_of(model.row)}: {options.model} on {dataset.name}")
    if options.json:
        write_json(options.json, found)
        print_lines(f"All numbers: {options.json}")
    if options.figures:
        from ..report.diagnosis import draw

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            written = draw(found, options.figures)
        for warning in caught:
            note(str(warning.message))
        for path in written:
            print_lines(f"Figure: {path}")
    return 0


def _name_data(options: argparse.Namespace, run: Any) -> None:
    """Take the run's data set if none is given; raise if it is not a published one."""
    from ..datasets import DATASETS

    if options.dataset is None:
        if run.dataset not in DATASETS:
            raise ValueError(
                f"the run was trained on {run.dataset}, a data set of your own: name its folder, "
                "manifest or table after the run"
            )
        options.dataset = run.dataset


Rows = Iterable[Sequence[str]]
KINDS = {
    "risk": "risk",
    "variance": "Var(G)",
    "empirical": "F̃",
    "fisher": "F",
    "hessian": "H",
    "mean": "mean g",
}


def show(found: dict[str, Any], title: str) -> None:
    """Print all tables of a diagnosis, and what they mean."""
    from rich.padding import Padding

    screen = open_console()
    asked = found["question"]["parameters"]
    weights = {"head": "the head", "all": "all weights"}.get(asked, asked)
    print_lines(f"{title}, {weights} ({found['weights']:,} weights)", "")
    for one in TABLES:
        screen.print(one(found))
    for sentence in found["sentences"]:
        screen.print(Padding(plain(sentence), (0, 0, 0, 1)))


def number(value: float | None) -> str:
    """Return a number with three digits: more do not fit in 80 columns."""
    return "–" if value is None else f"{value:.3g}"


def _filled_table(
    title: str, caption: str | None, heads: Sequence[str], rows: Rows, names: int = 1
) -> Any:
    shown = table(title, caption)
    for k, head in enumerate(heads):
        # Folded on a narrow terminal: a number that is cut has lost its power of ten.
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
    caption = "Traces are means over examples; ‖g‖²/Tr C is the share that centring removes."
    return _filled_table("Domains", caption, heads, rows)


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
        "Cosines of diagonals. Energy: ‖Diag F‖²/‖F‖²; rows: share with a dominant diagonal entry."
    )
    return _filled_table("H ≈ F ≈ F̃ ∝ C", caption, heads, rows)


def _pairs(found: dict[str, Any]) -> Any:
    rows = [
        (" – ".join(one["domains"]), *(number(one[kind]) for kind in KINDS))
        for one in found["pairs"]
    ]
    heads = ("Pair", *KINDS.values())
    return _filled_table("Squared distances between domains", None, heads, rows)


def _cosines(found: dict[str, Any]) -> Any:
    kinds = {kind: word for kind, word in KINDS.items() if kind != "risk"}
    rows = [
        (" – ".join(one["domains"]), *(f"{one[f'cosine:{kind}']:.4f}" for kind in kinds))
        for one in found["pairs"]
    ]
    return _filled_table("Cosines between domains", None, ("Pair", *kinds.values()), rows)


def _gaps(found: dict[str, Any]) -> Any:
    words = {"all": "all", "trained_on": "training domains"}
    kinds = ("risk", "variance", "hessian", "cosine")
    rows = [
        (words[which], *(number(one[k]) for k in kinds)) for which, one in found["gaps"].items()
    ]
    caption = "Spread over domains, 1/E Σ ‖s − s̄‖²; cos(H, C) is the mean over domains."
    return _filled_table("Gaps", caption, ("Domains", "risk", "Var(G)", "H", "cos(H, C)"), rows)


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
        f"largest, are raised to that. The bound of Proposition 1 on ε {small}. "
        f"Largest: {number(full['largest'])}, diagonal: {number(diagonal['largest'])}."
    )
    heads = ("A → B", "R", "H", "I", "H diag.", "I diag.", "floored", "floored diag.")
    return _filled_table("Inconsistency I(A, B) = max(|R|, |R + H|)", caption, heads, rows)


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
    caption = f"Largest eigenvalues λ of K/n and F; those of F from {of} examples of each domain."
    return _filled_table("Spectra", caption, heads, rows)


def _alignment(found: dict[str, Any]) -> Any:
    rows = [
        (" – ".join(one["domains"]), *(f"{one['alignment'][k]:.4f}" for k in ("first", "subspace")))
        for one in found["pairs"]
    ]
    caption = "|cos| of the first eigenvectors of F; common share of the first five."
    return _filled_table("Alignment", caption, ("Pair", "first", "first five"), rows)


TABLES = (_domains, _chain, _pairs, _cosines, _gaps, _inconsistency, _spectra, _alignment)
