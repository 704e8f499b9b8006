"""Variants of the paper's ablations: a method with some hyperparameters set."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """A method of the registry with some hyperparameters given as text."""

    algorithm: str
    settings: Mapping[str, str]
    summary: str
    table: str  # the LaTeX label of the paper's table that shows it, or that it belongs to


# Searches of the released code: moving average and warm-up are Fishr's own, and λ of the gradient
# means has Fishr's range. The paper ran IGA in ω with Fishr's code and λ = 0.
EMA = "0.95 ~ U(0.9, 0.99)"
MEAN = "1000 ~ 10^U(1, 4)"
NO_VARIANCE = {"penalty_weight": "0", "mean_weight": MEAN}
NO_EMA, NO_WARMUP = {"ema_decay": "0"}, {"warmup_steps": "0"}

#: The ablations of the paper by name, each a method with some settings.
VARIANTS: dict[str, Variant] = {
    "vrex-ema": Variant(
        "vrex",
        {"ema_decay": EMA},
        "V-REx with a moving average of the risks",
        "table:ablationemacmnist",
    ),
    "fishr-no-ema": Variant(
        "fishr", NO_EMA, "Fishr without moving average", "table:ablationemacmnist"
    ),
    "fishr-rescaled": Variant(
        "fishr",
        {"average": "false"},
        "Fishr with λ/(1 − γ) in place of the moving average: its pull, not its memory",
        "table:ablationemacmnist",
    ),
    "fishr-plain": Variant(
        "fishr",
        NO_EMA | NO_WARMUP,
        "Fishr without moving average and warm-up",
        "table:igacmnist",
    ),
    "iga-head": Variant(
        "fishr",
        NO_VARIANCE | NO_EMA | NO_WARMUP,
        "IGA in the classifier: gradient means alone",
        "table:igacmnist",
    ),
    "iga-head-warmup": Variant(
        "fishr", NO_VARIANCE | NO_EMA, "IGA in the classifier after a warm-up", "table:igacmnist"
    ),
    "iga-head-ema": Variant(
        "fishr",
        NO_VARIANCE,
        "IGA in the classifier after a warm-up, with moving average",
        "table:igacmnist",
    ),
    "fishr-iga": Variant(
        "fishr",
        {"mean_weight": MEAN},
        "Fishr + IGA: gradient means and variances together",
        "table:igacmnist",
    ),
    "fishr-lambda-0": Variant(
        "fishr",
        {"penalty_weight": "0"} | NO_WARMUP,
        "Fishr with λ = 0 and without warm-up and its reset of the optimiser: ERM",
        "table:v15",
    ),
    "fishr-v15": Variant(
        "fishr",
        {"penalty_weight": "10^U(1, 5)"},
        "Fishr with a wider search of λ",
        "table:v15",
    ),
    "fishr-uncentered": Variant(
        "fishr", {"centered": "false"}, "Fishr on uncentred variances", "table:cmnistend"
    ),
    "fishr-theta": Variant(
        "fishr", {"parameters": "all"}, "Fishr on all weights", "table:cmnistend"
    ),
    "fishr-phi": Variant(
        "fishr", {"parameters": "features"}, "Fishr on the feature extractor", "table:cmnistend"
    ),
}
