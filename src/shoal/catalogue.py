"""Catalogue: facts about methods and data sets, in the order of every table; free of torch.

A new method is one file in ``shoal.algorithms`` and one line in ``METHODS``. A new data set is one
file in ``shoal.datasets`` and one line in ``DATASETS``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, get_args

# DomainBed's groups of data sets, by the size of the images and of the set.
SCALES = ("small", "large", "domainnet")


@dataclass(frozen=True)
class MethodFacts:
    """Title of a method in text, and the name of its class, which is also DomainBed's.

    Its module in ``shoal.algorithms`` is named by its key, with underscores.
    """

    title: str
    class_name: str


@dataclass(frozen=True, kw_only=True)
class DatasetFacts:
    """Names of a published data set, and the setting of its published runs.

    Its module in ``shoal.datasets`` is named by its key, with underscores.

    Args:
        title: its name in text; ``domainbed`` is its name in DomainBed.
        domains: their names, in the order of DomainBed's environments.
        scale: one of ``SCALES``; it decides the search distributions of hyperparameters.
        network, weights: the network of the published runs, and its initial weights.
    """

    title: str
    domainbed: str
    domains: tuple[str, ...]
    scale: str = "large"
    network: str = "resnet50"
    weights: str | None = "imagenet"


METHODS = {
    "erm": MethodFacts("ERM", "ERM"),
    "irm": MethodFacts("IRM", "IRM"),
    "groupdro": MethodFacts("GroupDRO", "GroupDRO"),
    "mixup": MethodFacts("Mixup", "Mixup"),
    "mldg": MethodFacts("MLDG", "MLDG"),
    "coral": MethodFacts("CORAL", "CORAL"),
    "mmd": MethodFacts("MMD", "MMD"),
    "dann": MethodFacts("DANN", "DANN"),
    "cdann": MethodFacts("CDANN", "CDANN"),
    "mtl": MethodFacts("MTL", "MTL"),
    "sagnet": MethodFacts("SagNet", "SagNet"),
    "arm": MethodFacts("ARM", "ARM"),
    "vrex": MethodFacts("V-REx", "VREx"),
    "rsc": MethodFacts("RSC", "RSC"),
    "and-mask": MethodFacts("AND-mask", "ANDMask"),
    "sand-mask": MethodFacts("SAND-mask", "SANDMask"),
    "iga": MethodFacts("IGA", "IGA"),
    "fish": MethodFacts("Fish", "Fish"),
    "fishr": MethodFacts("Fishr", "Fishr"),
    # Beyond the paper: matching logits, features, losses and risks.
    "sd": MethodFacts("SD", "SD"),
    "ib-erm": MethodFacts("IB-ERM", "IB_ERM"),
    "ib-irm": MethodFacts("IB-IRM", "IB_IRM"),
    "causirl-coral": MethodFacts("CausIRL-CORAL", "CausIRL_CORAL"),
    "causirl-mmd": MethodFacts("CausIRL-MMD", "CausIRL_MMD"),
    "eqrm": MethodFacts("EQRM", "EQRM"),
    "rdm": MethodFacts("RDM", "RDM"),
    # Representations, and flat minima near the pretrained network.
    "cad": MethodFacts("CAD", "CAD"),
    "condcad": MethodFacts("CondCAD", "CondCAD"),
    "selfreg": MethodFacts("SelfReg", "SelfReg"),
    "urm": MethodFacts("URM", "URM"),
    "sam": MethodFacts("SAM", "SAM"),
    "sagm": MethodFacts("SAGM", "SAGM"),
    "miro": MethodFacts("MIRO", "MIRO"),
}

# What ``shoal fit`` compares the methods with on a table, the simplest first. They are fitted by
# scikit-learn, and are no methods of the registry.
BASELINES = {
    "logistic-regression": "Logistic regression",
    "random-forest": "Random forest",
    "extra-trees": "Extra trees",
    "gradient-boosting": "Gradient boosting",
}

DATASETS = {
    "colored-mnist": DatasetFacts(
        title="Colored MNIST",
        domainbed="ColoredMNIST",
        domains=("+90%", "+80%", "-90%"),
        scale="small",
        network="mnist-cnn",
        weights=None,
    ),
    "rotated-mnist": DatasetFacts(
        title="Rotated MNIST",
        domainbed="RotatedMNIST",
        domains=("0", "15", "30", "45", "60", "75"),
        scale="small",
        network="mnist-cnn",
        weights=None,
    ),
    "vlcs": DatasetFacts(
        title="VLCS", domainbed="VLCS", domains=("Caltech101", "LabelMe", "SUN09", "VOC2007")
    ),
    "pacs": DatasetFacts(
        title="PACS", domainbed="PACS", domains=("art_painting", "cartoon", "photo", "sketch")
    ),
    "office-home": DatasetFacts(
        title="OfficeHome",
        domainbed="OfficeHome",
        domains=("Art", "Clipart", "Product", "Real World"),
    ),
    "terra-incognita": DatasetFacts(
        title="TerraIncognita",
        domainbed="TerraIncognita",
        domains=("location_100", "location_38", "location_43", "location_46"),
    ),
    "domainnet": DatasetFacts(
        title="DomainNet",
        domainbed="DomainNet",
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        scale="domainnet",
    ),
}

# Names here by names in DomainBed, which people who come from it know.
DOMAINBED_METHODS = {facts.class_name: name for name, facts in METHODS.items()}
DOMAINBED_DATASETS = {facts.domainbed: name for name, facts in DATASETS.items()}
# What DomainBed has and shoal has not.
METHODS_NOT_HERE = ("ERMPlusPlus", "TRM", "Transfer", "ADRMX")
DATASETS_NOT_HERE = (
    *("Debug28", "Debug224", "SVIRO", "WILDSCamelyon", "WILDSFMoW"),
    *("SpawriousO2O_easy", "SpawriousO2O_medium", "SpawriousO2O_hard"),
    *("SpawriousM2M_easy", "SpawriousM2M_medium", "SpawriousM2M_hard"),
)

# The choices that a run names, here so that the command line can offer them without torch.
OptimiserName = Literal["adam", "adamw", "sgd"]
LearningRateSchedule = Literal["constant", "cosine"]
# How an update runs: its loss compiled and all of it captured in a CUDA graph, captured, or plain.
StepKind = Literal["compiled", "graph", "eager"]

OPTIMISERS: tuple[OptimiserName, ...] = get_args(OptimiserName)
SCHEDULES: tuple[LearningRateSchedule, ...] = get_args(LearningRateSchedule)
STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
PRECISIONS = ("float32", "bf16")
# Where a run's images are: "auto" takes the device if they fit.
PLACES = ("auto", "device", "host")
# Which splits are evaluated: those that model selection needs, or the training splits as well.
EVALUATED = ("needed", "all")
# What records hold as well as accuracies.
LOGS = ("gaps", "diagnosis")
# The weights that a run ends with: of its last update, or the best by held-out examples.
STOPS = ("last", "held-out")
# Test domains of a sweep: each domain in turn, or every two as well.
TEST_DOMAINS = ("singles", "pairs")
# Searches of hyperparameters: DomainBed's, and DiWA's milder one, after which runs can be averaged.
SEARCHES = ("domainbed", "mild")
# What a run starts from: the network as it is built, with a random head, or with a head that was
# first fitted to its features.
STARTS = ("network", "linear-probe")
# Ways to compute the diagonal of a Hessian.
HESSIAN_METHODS = ("auto", "gauss-newton", "func", "backpack")

# Averages of the weights along a run, in the order of tables, and what those call them.
AVERAGES = {"sma": "SMA", "half": "second half", "swad": "SWAD"}

# Updates between two records, by scale; DomainBed's.
RECORD_EVERY = {"small": 100, "large": 300, "domainnet": 1000}

# Defaults of ``shoal fit``: the network for images, the number of splits, and the seconds, which
# apply unless the number of runs is limited.
FIT_BACKBONE = "efficientnet-lite0"
FIT_TRIALS = 3
FIT_SECONDS = 600.0
# What it compares candidates by; ``results.metrics`` has the metrics themselves.
FIT_METRICS = ("accuracy", "balanced", "f1", "auroc", "log-loss")
# What decides between its candidates: their mean over the domains left out, or their worst domain.
JUDGES = ("mean", "worst")
# What it compares on a table, where a method costs seconds.
ON_TABLES = (*BASELINES, "erm", "fishr", "irm", "vrex", "groupdro", "coral")


def title_of(algorithm: str) -> str:
    """Return a method's name as people write it; a user's own method keeps its name.

    A row of averaged weights, such as "fishr+swad", is "Fishr + SWAD".
    """
    method, average = method_and_average(algorithm)
    title = METHODS[method].title if method in METHODS else BASELINES.get(method, method)
    return f"{title} + {AVERAGES[average]}" if average else title


def method_and_average(algorithm: str) -> tuple[str, str]:
    """Return the method of a row and the average of its weights, "" if it is of none."""
    method, plus, average = algorithm.rpartition("+")
    return (method, average) if plus and average in AVERAGES else (algorithm, "")


def own_method(name: str) -> str:
    """Return the name here of a method that DomainBed names; any other name stays as it is.

    An average of its weights stays, too: "ERM+swad" is "erm+swad".
    """
    method, average = method_and_average(name)
    own = DOMAINBED_METHODS.get(method, method)
    return f"{own}+{average}" if average else own


def own_dataset(name: str) -> str:
    """Return the name here of a data set that DomainBed names; any other name stays as it is."""
    return DOMAINBED_DATASETS.get(name, name)


def scale_of(dataset: str) -> str:
    """Return the scale of a data set's hyperparameters; a user's own images are large."""
    return DATASETS[dataset].scale if dataset in DATASETS else "large"


def search_name(dataset: str) -> str:
    """Return what names a data set's searches of hyperparameters: itself, or large if unknown."""
    return dataset if dataset in DATASETS else "large"


def record_every(dataset: str) -> int:
    """Return the default number of updates between two records on a data set."""
    return RECORD_EVERY[scale_of(dataset)]


def module_of(name: str) -> str:
    """Return the name of the module that holds a method or a data set."""
    return name.replace("-", "_")


class MethodOnDataset(Protocol):
    """Anything that belongs to a method and a data set: a run, a choice, a row."""

    @property
    def dataset(self) -> str: ...
    @property
    def algorithm(self) -> str: ...


P = TypeVar("P", bound=MethodOnDataset)
OrderKey = tuple[int, str, int]


def in_order(some: Iterable[P]) -> list[P]:
    """Return runs, choices or rows by data set, then by method; unknown names come last."""
    return sorted(some, key=lambda one: (_position(one.dataset, tuple(DATASETS)), by_method(one)))


def by_method(one: MethodOnDataset) -> OrderKey:
    """Return the position of its method among all methods, as a key to sort by."""
    method, average = method_and_average(one.algorithm)
    return (*_position(method, (*BASELINES, *METHODS)), ["", *AVERAGES].index(average))


def _position(name: str, known: tuple[str, ...]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)
