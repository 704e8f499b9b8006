"""The contract of all methods, checked for each line of the registry.

Checks of a method's own code run for every method. Checks of code that methods share (the base
classes, the optimiser) run for one method of each door.
"""

import copy
import inspect
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import ALGORITHMS, Optimisation, find
from shoal.algorithms.base import Algorithm, Objective, Penalised, UpdateAlgorithm
from shoal.algorithms.forward import Batch, Forward
from shoal.algorithms.hparams import Hparams, defaults, draw
from shoal.algorithms.optimiser import Optimiser
from shoal.catalogue import SCALES, OptimiserName
from shoal.networks import Network, draw_weights
from shoal.networks.base import IMAGENET
from shoal.randomness import stream
from shoal.training.step import CapturedStep, Update
from tests.test_capture_safety import NoQuestions

CLASSES, CHANNELS, SIDE = 3, 2, 8
SIZES = (4, 6, 5)
DOORS = {Algorithm, UpdateAlgorithm, Objective, Penalised}

# Methods for which the order of domains matters, and why.
ORDER_MATTERS = {
    "fish": "takes its steps in the order of the list",
    "mixup": "draws which domains are mixed",
    "mldg": "draws which domains are held out",
    "sagnet": "draws with whom each example changes its style",
    "dann": "each output of the discriminator has weights of its own",
    "cdann": "each output of the discriminator has weights of its own",
    "causirl-coral": "draws where each domain is split",
    "causirl-mmd": "draws where each domain is split",
    "selfreg": "draws the partners of each example",
}


def network(channels: int = CHANNELS, seed: int = 0, dtype: torch.dtype = torch.float64) -> Network:
    def build() -> Network:
        features = nn.Sequential(
            nn.Conv2d(channels, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5), nn.Tanh()
        )
        return Network(features, nn.Linear(5, CLASSES))

    return draw_weights(build, stream("contract", seed)).to(dtype)


def make_batches(
    step: int, sizes: Sequence[int] = SIZES, dtype: torch.dtype = torch.float64
) -> list[Batch]:
    found = []
    for domain, n in enumerate(sizes):
        generator = stream("contract", step, domain)
        inputs = torch.randn(n, CHANNELS, SIDE, SIDE, generator=generator, dtype=dtype)
        labels = torch.randint(CLASSES, (n,), generator=generator)
        found.append((inputs + 0.3 * domain, labels))
    return found


def make(
    name: str,
    num_domains: int = len(SIZES),
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    **hparams: Any,
) -> Algorithm:
    """Return the method with hyperparameters such that a few steps matter and a warm-up ends."""
    kind = ALGORITHMS[name]
    known = {f.name for f in fields(kind.Hparams)}
    wanted = {"lr": 0.01, "lr_g": 0.01, "lr_d": 0.01, "warmup_steps": 2, "tau": 0.5}
    wanted |= {"lr_after_warmup": 0.005, **hparams}
    chosen = replace(kind.Hparams(), **{k: v for k, v in wanted.items() if k in known})
    model = network(CHANNELS + kind.extra_channels, seed, dtype)
    return kind(model, num_domains, chosen)


def state(algorithm: Algorithm) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in algorithm.state_dict().items()}


def train(algorithm: Algorithm, steps: range, sizes: Sequence[int] = SIZES) -> dict[str, Tensor]:
    terms: dict[str, Tensor] = {}
    dtype = next(algorithm.model.parameters()).dtype
    for step in steps:
        terms = algorithm.update(make_batches(step, sizes, dtype))
    return terms


# One method of each door: penalty, objective, update with several optimisers, and of Algorithm.
EACH_DOOR = ["fishr", "erm", "dann", "arm"]

every = pytest.mark.parametrize("name", ALGORITHMS)
each_door = pytest.mark.parametrize("name", EACH_DOOR)
penalised = pytest.mark.parametrize(
    "name", [name for name, kind in ALGORITHMS.items() if issubclass(kind, Penalised)]
)
# AND-mask and SAND-mask compile the same loss as Fish, the risk of one domain; SAGM that of SAM.
compiled = pytest.mark.parametrize(
    "name",
    [
        name
        for name, kind in ALGORITHMS.items()
        if kind.capture == "compiled" and name not in ("and-mask", "sand-mask", "sagm")
    ],
)


def test_all_nineteen_methods_of_the_paper_exist() -> None:
    names = "erm irm groupdro mixup mldg coral mmd dann cdann mtl sagnet arm vrex rsc and-mask"
    wanted = [*names.split(), "sand-mask", "iga", "fish", "fishr"]
    assert [name for name in ALGORITHMS if name in wanted] == wanted, "in the order of its tables"


@every
def test_images_are_normalised_as_the_network_expects(name: str) -> None:
    """Runs and predictions read it from the method's model, which can be another one."""
    kind = ALGORITHMS[name]
    model = network(CHANNELS + kind.extra_channels)
    model.preprocessing = IMAGENET
    assert kind(model, 2, kind.Hparams()).model.preprocessing == IMAGENET


@every
def test_terms_are_scalars_without_a_graph(name: str) -> None:
    algorithm = make(name)
    for step in range(3):
        terms = algorithm.update(make_batches(step))
        assert "loss" in terms
        for term in terms.values():
            assert term.shape == ()
            assert not term.requires_grad
        assert algorithm.check(terms) == {k: float(v) for k, v in terms.items()}
    assert algorithm.steps == 3


@pytest.mark.parametrize("sizes", [(4,), (3, 5), (2, 3, 4, 5, 3, 2), (1, 4, 1)])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in ALGORITHMS] + [(name, torch.float64) for name in EACH_DOOR],
)
def test_any_number_of_domains_of_any_size(
    name: str, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    algorithm = make(name, len(sizes), dtype=dtype)
    algorithm.check(train(algorithm, range(4), sizes))
    assert all(p.isfinite().all() for p in algorithm.parameters())
    logits = algorithm.predict(make_batches(9, (7,), dtype)[0][0])
    assert logits.shape == (7, CLASSES)
    assert logits.dtype == dtype
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ORDER_MATTERS])
def test_the_order_of_domains_does_not_matter(name: str) -> None:
    one, other = make(name), make(name)
    order = [2, 0, 1]
    for step in range(4):
        batches = make_batches(step)
        first = one.update(batches)["loss"]
        second = other.update([batches[k] for k in order])["loss"]
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)
    for (key, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=key)


@every
def test_resuming_equals_never_stopping(name: str) -> None:
    whole, stopped = make(name), make(name)
    train(whole, range(6))
    train(stopped, range(3))
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    resumed = make(name, seed=1)
    pointers = {key: t.data_ptr() for key, t in resumed.state_dict(keep_vars=True).items()}
    made = set(pointers)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for key, t in resumed.state_dict(keep_vars=True).items():
        if key in made:
            assert t.data_ptr() == pointers[key], f"{key} was not loaded in place"
    train(resumed, range(3, 6))
    expected, found = state(whole), state(resumed)
    assert expected.keys() == found.keys()
    wrong = [key for key in expected if not torch.equal(expected[key], found[key])]
    assert not wrong, wrong


@each_door
def test_adam_is_what_every_method_does_by_default(name: str) -> None:
    one, other = make(name, dtype=torch.float32), make(name, dtype=torch.float32)
    other.optimise(Optimisation())
    train(one, range(4))
    train(other, range(4))
    expected, found = state(one), state(other)
    assert list(expected) == list(found)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


# The rules are the optimiser's; only MLDG's inner step depends on the rule itself.
@pytest.mark.parametrize(
    ("name", "rule"),
    [(name, "adamw") for name in ALGORITHMS]
    + [(name, rule) for name in ("erm", "dann", "mldg") for rule in ("adam", "sgd")],
)
def test_every_rule_with_schedule_and_clipping(name: str, rule: OptimiserName) -> None:
    """As with a constant rate that is set by hand before each update; and it can be resumed."""
    steps, clip, decays = 5, 0.3, {"weight_decay": 0.1, "weight_decay_d": 0.1}
    whole, stopped, resumed, by_hand = (make(name, **decays) for _ in range(4))
    for algorithm in (whole, stopped, resumed):
        algorithm.optimise(Optimisation(rule, schedule="cosine", steps=steps, clip=clip))
    by_hand.optimise(Optimisation(rule, clip=clip))
    optimisers = [part for part in by_hand.children() if isinstance(part, Optimiser)]
    rates = [optimiser.lr for optimiser in optimisers]
    later = by_hand.reset_lr if isinstance(by_hand, Objective) else None
    for step in range(steps):
        share = (1 + math.cos(math.pi * step / steps)) / 2
        for optimiser, rate in zip(optimisers, rates, strict=True):
            optimiser.lr = rate * share
            optimiser.follow(lambda weight: weight)
        if later is not None:
            by_hand.reset_lr = later * share
        terms = whole.update(make_batches(step))
        expected = by_hand.update(make_batches(step))
        torch.testing.assert_close(terms["loss"], expected["loss"], rtol=1e-6, atol=1e-6)
    whole.check(terms)
    start = dict(make(name).named_parameters())
    for (key, p), q in zip(whole.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6, msg=key)
        assert not torch.equal(p, start[key]), f"{key} never trained"
    train(stopped, range(2))
    resumed.load_state_dict(stopped.state_dict())
    secret = [t.detach() for t in resumed.state_dict(keep_vars=True).values()]
    addresses = [t.data_ptr() for t in secret]
    for step in range(2, steps):
        batches = make_batches(step)
        with NoQuestions(*secret, *(t for batch in batches for t in batch)):
            resumed.update(batches)
    after = resumed.state_dict(keep_vars=True)
    assert addresses == [t.data_ptr() for t in list(after.values())[: len(addresses)]]
    assert all(torch.equal(t, after[key]) for key, t in whole.state_dict().items())


@every
def test_every_weight_that_should_train_moves_and_no_other(name: str) -> None:
    algorithm = make(name)
    train(algorithm, range(6))
    start = dict(make(name).named_parameters())
    still = [key for key, p in algorithm.named_parameters() if torch.equal(p, start[key])]
    assert not still, f"never trained: {still}"

    kind = ALGORITHMS[name]
    model = network(CHANNELS + kind.extra_channels)
    frozen = model.features[0].weight.requires_grad_(False)
    before = frozen.detach().clone()
    train(kind(model, len(SIZES), make(name).hparams), range(6))
    assert torch.equal(frozen, before)


@every
def test_predicting_changes_nothing(name: str) -> None:
    algorithm = make(name)
    train(algorithm, range(2))
    algorithm.eval()
    before = state(algorithm)
    inputs = make_batches(5)[0][0]
    first, second = algorithm.predict(inputs), algorithm.predict(inputs)
    assert torch.equal(first, second)
    assert all(torch.equal(t, before[key]) for key, t in algorithm.state_dict().items())


@every
def test_a_loss_that_is_not_finite_stops_with_its_name(name: str) -> None:
    algorithm = make(name)
    train(algorithm, range(3))
    before = {key: p.detach().clone() for key, p in algorithm.named_parameters()}
    batches = make_batches(3)
    for inputs, _ in batches:
        inputs[0] = float("nan")
    terms = algorithm.update(batches)
    message = rf"{type(algorithm).__name__}: loss was not finite at step 3"
    with pytest.raises(FloatingPointError, match=message):
        algorithm.check(terms)
    poisoned = [key for key, p in algorithm.named_parameters() if not p.isfinite().all()]
    assert not poisoned, poisoned
    if isinstance(algorithm, Objective):
        assert all(torch.equal(p, before[key]) for key, p in algorithm.named_parameters())
    # Also if it is checked later.
    later = algorithm.update(make_batches(4))
    with pytest.raises(FloatingPointError, match=message):
        algorithm.check(later)


class Normalised(nn.Module):
    """Divide by a norm, whose gradient at zero is not finite although its value is."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-6)


@pytest.mark.parametrize(
    ("name", "first"), [*((name, 3) for name in ALGORITHMS), ("dann", 4), ("cdann", 4)]
)
def test_a_gradient_that_is_not_finite_stops_too(name: str, first: int) -> None:
    """At two steps in a row for methods that train two sides in turns."""
    kind = ALGORITHMS[name]

    def build() -> Network:
        convolution = nn.Conv2d(CHANNELS + kind.extra_channels, 4, 3, 2, bias=False)
        flat = [nn.Flatten(), nn.Linear(36, 5, bias=False), Normalised()]
        return Network(nn.Sequential(convolution, *flat), nn.Linear(5, CLASSES))

    model = draw_weights(build, stream("normalised")).double()
    algorithm = kind(model, len(SIZES), make(name, tau=0.0).hparams)
    train(algorithm, range(first))
    before = {key: p.detach().clone() for key, p in algorithm.model.named_parameters()}
    batches = make_batches(first)
    for inputs, _ in batches:
        inputs[0] = 0
    terms = algorithm.update(batches)
    if name == "arm":  # its context is not zero
        terms = algorithm.update([(x * float("nan"), y) for x, y in batches])
        first += 1
        before = {key: p.detach().clone() for key, p in algorithm.model.named_parameters()}
    with pytest.raises(FloatingPointError, match=rf"was not finite at step {first}"):
        algorithm.check(terms)
    train(algorithm, range(first + 1, first + 3))
    if name != "sagnet":  # which can notice in a later stage
        assert all(torch.equal(p, before[key]) for key, p in algorithm.model.named_parameters())
    assert all(p.isfinite().all() for p in algorithm.parameters())


@every
def test_after_a_failure_nothing_moves(name: str) -> None:
    algorithm = make(name)
    train(algorithm, range(2))
    bad = [(inputs * float("nan"), labels) for inputs, labels in make_batches(2)]
    algorithm.update(bad)
    # Averages without weights may continue; the network and all other weights may not move.
    kept = {key: p.detach().clone() for key, p in algorithm.named_parameters()}
    if name == "mtl":
        kept["embeddings"] = algorithm.embeddings.clone()
    train(algorithm, range(3, 6))
    now = algorithm.state_dict()
    assert all(torch.equal(now[key], value) for key, value in kept.items())


@pytest.mark.parametrize("name", ["fish", "and-mask", "sand-mask"])
@pytest.mark.parametrize("domain", range(3))
def test_a_gradient_that_is_not_finite_in_one_domain(name: str, domain: int) -> None:
    def build() -> Network:
        flat = [nn.Flatten(), nn.Linear(128, 5, bias=False), Normalised()]
        return Network(nn.Sequential(*flat), nn.Linear(5, CLASSES))

    model = draw_weights(build, stream("normalised")).double()
    algorithm = ALGORITHMS[name](model, 3, make(name, tau=0.0).hparams)
    train(algorithm, range(2))
    before = {key: p.detach().clone() for key, p in algorithm.named_parameters()}
    batches = make_batches(2)
    batches[domain][0][0] = 0
    terms = algorithm.update(batches)
    with pytest.raises(FloatingPointError, match="gradient was not finite at step 2"):
        algorithm.check(terms)
    assert all(torch.equal(p, before[key]) for key, p in algorithm.named_parameters())


def test_fish_leaves_running_statistics_as_they_were() -> None:
    def build() -> Network:
        features = nn.Sequential(nn.Flatten(), nn.Linear(128, 5), nn.BatchNorm1d(5))
        return Network(features, nn.Linear(5, CLASSES))

    algorithm = ALGORITHMS["fish"](
        draw_weights(build, stream("norm")).double(), 3, make("fish").hparams
    )
    train(algorithm, range(2))
    norm = algorithm.model.features[2]
    before = norm.running_mean.clone(), norm.running_var.clone()
    algorithm.update([(inputs * float("nan"), labels) for inputs, labels in make_batches(2)])
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])


def test_a_classifier_that_does_not_end_in_a_linear_layer() -> None:
    """The number of classes is unknown, so only the loss checks labels."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.gate = nn.Linear(5, CLASSES), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x) * self.gate(x).sigmoid()

    def build() -> Network:
        return Network(nn.Sequential(nn.Flatten(), nn.Linear(128, 5)), Gated())

    algorithm = ALGORITHMS["erm"](draw_weights(build, stream("gated")).double(), 3)
    algorithm.check(train(algorithm, range(2)))


def test_a_network_that_was_changed_is_refused() -> None:
    algorithm = make("erm")
    algorithm.model.classifier = nn.Linear(5, 4).double()
    with pytest.raises(RuntimeError, match="no longer holds"):
        algorithm.float()
    with pytest.raises(RuntimeError, match="no longer holds"):
        algorithm.update(make_batches(0))
    other = make("erm")
    other.model.load_state_dict(make("erm").model.state_dict(), assign=True)
    with pytest.raises(RuntimeError, match="no longer holds; load the whole method"):
        other.update(make_batches(0))


def test_check_names_the_first_step_and_its_term() -> None:
    class Two(Objective):
        def objective(self, forward: Forward) -> dict[str, Tensor]:
            bad = self.steps >= 2
            other = torch.where(bad, float("inf"), 1.0)
            return {"loss": forward.risk, "other": other}

    algorithm = Two(network(), 3)
    train(algorithm, range(2))
    before = {key: p.detach().clone() for key, p in algorithm.named_parameters()}
    terms = train(algorithm, range(2, 5))
    with pytest.raises(FloatingPointError, match="Two: other was not finite at step 2"):
        algorithm.check(terms)
    assert all(torch.equal(p, before[key]) for key, p in algorithm.named_parameters())

    class Changing(Objective):
        def objective(self, forward: Forward) -> dict[str, Tensor]:
            name = "first" if len(self._terms) == 0 else "second"
            return {"loss": forward.risk, name: forward.risk}

    changing = Changing(network(), 3)
    changing.update(make_batches(0))
    with pytest.raises(ValueError, match="same terms in every step: loss, first; got loss, second"):
        changing.update(make_batches(1))


@pytest.mark.parametrize("name", [*EACH_DOOR, "mtl"])  # which replaces the classifier
def test_weights_that_become_other_objects_go_on_training(name: str) -> None:
    kind = ALGORITHMS[name]
    whole, saved = make(name), make(name)
    train(whole, range(4))
    train(saved, range(2))
    checkpoint = state(saved)
    assigned = make(name, seed=1)
    assigned.load_state_dict(checkpoint, assign=True)
    on_meta = kind(
        network(CHANNELS + kind.extra_channels).to("meta"), len(SIZES), make(name).hparams
    )
    on_meta.to_empty(device="cpu")
    on_meta.load_state_dict(checkpoint)
    for resumed in (assigned, on_meta):
        train(resumed, range(2, 4))
        expected = dict(whole.named_parameters())
        assert all(torch.equal(p, expected[key]) for key, p in resumed.named_parameters())


@pytest.mark.parametrize("name", [*EACH_DOOR, "fish", "sagnet", "sam"])  # those of several passes
def test_autocast_sees_the_weights_of_every_step(name: str) -> None:
    """Autocast caches the weights that it has cast; the optimiser clears the cache.

    Not for IGA: in its separate passes the cache decides where gradients are rounded.
    """
    weights = []
    for cached in (True, False):
        algorithm = make(name, dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            for step in range(3):
                terms = algorithm.update(make_batches(step, dtype=torch.float32))
        assert all(term.dtype == torch.float32 for term in terms.values())
        weights.append([p.detach() for p in algorithm.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.fixture
def default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@every
def test_the_default_dtype_of_torch_changes_nothing(name: str, default_dtype: None) -> None:
    one, other = make(name, dtype=torch.float32), make(name, dtype=torch.float32)
    torch.set_default_dtype(torch.float64)
    built = make(name, dtype=torch.float32)
    built.check(train(built, range(3)))
    train(other, range(3))
    torch.set_default_dtype(torch.float32)
    train(one, range(3))
    expected, found = state(one), state(other)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert {key: t.dtype for key, t in state(built).items()} == {
        key: t.dtype for key, t in expected.items()
    }


@every
def test_a_network_in_half_precision(name: str) -> None:
    algorithm = make(name, dtype=torch.bfloat16)
    algorithm.check(train(algorithm, range(3)))


@every
@pytest.mark.parametrize("part", ["features", "classifier"])
def test_a_part_that_is_frozen_or_unused(name: str, part: str) -> None:
    kind = ALGORITHMS[name]
    model = network(CHANNELS + kind.extra_channels)
    for parameter in model.get_submodule(part).parameters():
        parameter.requires_grad_(False)
    model.features.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    algorithm = kind(model, len(SIZES), make(name).hparams)
    algorithm.check(train(algorithm, range(3)))


@every
def test_updating_in_eval_mode_is_refused(name: str) -> None:
    algorithm = make(name).eval()
    with pytest.raises(RuntimeError, match="is in eval mode; call train"):
        algorithm.update(make_batches(0))


@each_door
@pytest.mark.parametrize("label", [-100, -1, CLASSES])
def test_labels_out_of_range_are_refused(name: str, label: int) -> None:
    batches = make_batches(0)
    batches[1][1][0] = label
    with pytest.raises(ValueError, match="labels must be in 0 … 2"):
        make(name).update(batches)


@pytest.mark.parametrize("name", ["cdann", "rsc", "cad", "condcad", "selfreg"])
def test_methods_of_classes_refuse_soft_targets(name: str) -> None:
    batches = [(x, torch.full((len(y), CLASSES), 1 / CLASSES).double()) for x, y in make_batches(0)]
    with pytest.raises(TypeError, match="needs the class of each example, got soft targets"):
        make(name).update(batches)


@penalised
@pytest.mark.parametrize("sizes", [SIZES, (5, 5)])
def test_without_weight_and_warm_up_it_is_erm_bit_for_bit(
    name: str, sizes: tuple[int, ...]
) -> None:
    options = {"penalty_weight": 0.0, "warmup_steps": 0, "dtype": torch.float32}
    method, erm = make(name, len(sizes), **options), make("erm", len(sizes), **options)
    for step in range(5):
        batches = make_batches(step, sizes, torch.float32)
        assert torch.equal(method.update(batches)["loss"], erm.update(batches)["loss"])
    for a, b in zip(method.model.parameters(), erm.model.parameters(), strict=True):
        assert torch.equal(a, b)


@penalised
def test_its_weight_matters(name: str) -> None:
    method, erm = make(name, penalty_weight=50.0, warmup_steps=0), make("erm")
    train(method, range(5))
    train(erm, range(5))
    gaps = [
        (a - b).abs().max()
        for a, b in zip(method.model.parameters(), erm.model.parameters(), strict=True)
    ]
    assert max(gaps) > 1e-3


@every
def test_global_random_state_is_neither_read_nor_moved(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make(name)
    train(one, range(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    other = make(name)
    train(other, range(3))
    expected, found = state(one), state(other)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@every
def test_a_step_asks_nothing_and_keeps_its_addresses(name: str) -> None:
    algorithm = make(name, dtype=torch.float32)
    train(algorithm, range(2))
    before = {key: t.data_ptr() for key, t in algorithm.state_dict(keep_vars=True).items()}
    secret = [*algorithm.state_dict(keep_vars=True).values()]
    for step in range(2, 6):
        batches = make_batches(step, dtype=torch.float32)
        given = [t for batch in batches for t in batch]
        with NoQuestions(*given, *(t.detach() for t in secret)) as mode:
            algorithm.update(batches)
        assert "_fused_adam_" in mode.seen
    after = {key: t.data_ptr() for key, t in algorithm.state_dict(keep_vars=True).items()}
    assert before == after


@pytest.mark.parametrize("name", ["fishr"])
def test_a_compiled_loss_trains_alike(name: str) -> None:
    """In float32; the next test compares all compiled methods in float64."""
    torch._dynamo.reset()  # earlier graphs count against a limit
    sizes = (5, 5, 5)
    eager, fast = make(name, dtype=torch.float32), make(name, dtype=torch.float32)
    fast.compile(backend="aot_eager", fullgraph=True)
    for step in range(5):
        batches = make_batches(step, sizes, torch.float32)
        expected, found = eager.update(batches), fast.update(batches)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6, msg=key)
    for (key, a), b in zip(eager.model.named_parameters(), fast.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=key)


class InTurn(nn.Module):
    """Batches of one size after the other, instead of a training's own."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.left = list(enumerate(sizes))

    def forward(self) -> list[Batch]:
        step, n = self.left.pop(0)
        return make_batches(step, [n] * len(SIZES))


@compiled
def test_one_graph_serves_all_batch_sizes_and_hyperparameters(name: str) -> None:
    """Compiled in its first update and never again, for any size and any draw."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    kind, sizes = ALGORITHMS[name], (64, 39, 50, 101)
    graphs = CompileCounterWithBackend("aot_eager")
    for hparams in (make(name).hparams, draw(kind.Hparams, "small", 0, 3)):
        eager, fast = (
            Update(kind(network(), len(SIZES), hparams), InTurn(sizes), "float32") for _ in range(2)
        )
        fast.algorithm.compile(backend=graphs, fullgraph=True)
        for n in sizes:
            eager()
            fast()
            assert graphs.frame_count == 1, f"compiled again for {n} examples of {hparams}"
            assert fast.means(1) == pytest.approx(eager.means(1), rel=1e-9, abs=1e-12)
        weights = zip(fast.named_parameters(), eager.parameters(), strict=True)
        for (key, found), expected in weights:
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9, msg=key)


def replays(eager: Algorithm, captured: Algorithm) -> None:
    """Compare six captured steps with six eager ones of the same method."""
    device = torch.device("cuda")
    batches = [
        [(inputs.to(device), labels.to(device)) for inputs, labels in make_batches(step)]
        for step in range(6)
    ]
    static = [(inputs.clone(), labels.clone()) for inputs, labels in batches[0]]
    eager.to(device)
    captured.to(device)
    terms: dict[str, Tensor] = {}
    captured.update(static)  # makes the buffers of a first step
    start = {key: t.clone() for key, t in eager.state_dict().items()}

    def undo() -> None:
        with torch.no_grad():
            for key, t in captured.state_dict(keep_vars=True).items():
                t.copy_(start[key]) if key in start else t.zero_()

    step = CapturedStep(lambda: terms.update(captured.update(static)), undo, device)
    for batch in batches:
        for (inputs, labels), (x, y) in zip(static, batch, strict=True):
            step.between(lambda a=inputs, b=labels, x=x, y=y: (a.copy_(x), b.copy_(y)))
        step()
        step.wait()
        expected = eager.update(batch)
        for key, value in expected.items():
            torch.testing.assert_close(terms[key], value, rtol=1e-6, atol=1e-8, msg=key)
    for (key, a), b in zip(eager.named_parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=key)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@every
def test_a_captured_step_replays_what_an_eager_one_computes(name: str) -> None:
    replays(make(name), make(name))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", ["erm", "fishr", "mldg", "dann", "sagnet", "fish"])
@pytest.mark.parametrize("rule", ["adam", "adamw", "sgd"])
def test_a_captured_step_follows_rule_schedule_and_clipping(name: str, rule: OptimiserName) -> None:
    eager, captured = make(name), make(name)
    for algorithm in (eager, captured):
        algorithm.optimise(Optimisation(rule, schedule="cosine", steps=7, clip=0.3))
    replays(eager, captured)


@each_door
def test_moving_and_copying(name: str) -> None:
    algorithm = make(name, dtype=torch.float32)
    algorithm.double()
    twin = copy.deepcopy(algorithm)
    train(algorithm, range(3))
    assert all(p.dtype == torch.float64 for p in algorithm.parameters())
    train(twin, range(3))
    expected, found = state(algorithm), state(twin)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@every
def test_all_state_is_on_the_device_of_the_network(name: str) -> None:
    kind = ALGORITHMS[name]
    algorithm = kind(network(CHANNELS + kind.extra_channels).to("meta"), 3)
    assert all(tensor.is_meta for tensor in algorithm.state_dict().values())


@every
def test_hyperparameters_are_documented_and_drawn_alike(name: str) -> None:
    kind = ALGORITHMS[name].Hparams
    assert kind is Hparams or kind.__doc__
    keys = [f.metadata["key"] for f in fields(kind)]
    assert len(set(keys)) == len(keys)
    for f in fields(kind):
        assert 3 < len(f.metadata["help"]) < 90, f.name
        assert f.default == f.metadata["searches"]["small"].default
    for scale in SCALES:
        assert draw(kind, scale, 0, 0) == defaults(kind, scale)
        one = draw(kind, scale, 1, 7)
        assert one == draw(kind, scale, 1, 7) != draw(kind, scale, 1, 8)
        for f in fields(kind):
            assert type(getattr(one, f.name)) is type(f.default), f.name
        shared = draw(Hparams, scale, 1, 7)
        assert one.lr == shared.lr and one.weight_decay == shared.weight_decay


@every
def test_a_method_says_what_it_is(name: str) -> None:
    kind = find(name)
    assert len(kind.paper) > 20
    assert 1990 < kind.year < 2027
    assert kind.capture in ("compiled", "graph", "eager")
    summary = (kind.__doc__ or "").splitlines()[0]
    assert 20 < len(summary) < 90


@every
def test_a_method_is_one_file_and_a_final_class(name: str) -> None:
    kind = ALGORITHMS[name]
    assert kind.__module__ == f"shoal.algorithms.{name.replace('-', '_')}"
    assert not kind.__subclasses__()
    for base in kind.__mro__[1:]:
        if base is nn.Module:
            break
        for attribute, value in vars(base).items():
            concrete = inspect.isfunction(value) and not getattr(
                value, "__isabstractmethod__", False
            )
            if concrete and attribute != "__init__":
                assert attribute not in vars(kind), f"{attribute} of {base.__name__} is overridden"


@each_door
def test_bad_input(name: str) -> None:
    kind = ALGORITHMS[name]
    algorithm = make(name)
    with pytest.raises(ValueError, match="made for 3 training domains, got 2 batches"):
        algorithm.update(make_batches(0, (3, 4)))
    short = make_batches(0)
    short[1] = (short[1][0], short[1][1][:-1])
    with pytest.raises(ValueError, match="batch 1 must have as many labels as inputs"):
        algorithm.update(short)
    with pytest.raises(ValueError, match="at least one, got 0 inputs"):
        algorithm.update(make_batches(0, (3, 0, 4)))
    with pytest.raises(TypeError, match=r"no \.classifier"):
        kind(_half(), 3)
    with pytest.raises(ValueError, match="num_domains must be a whole number"):
        kind(network(), 0)
    with pytest.raises(TypeError, match="hparams of"):
        kind(network(), 3, {"lr": 0.1})  # type: ignore[arg-type]


def _half() -> nn.Module:
    module = nn.Module()
    module.features = nn.Linear(2, 2)
    return module


def test_an_unknown_method_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown algorithm 'fisher'; did you mean 'fishr'"):
        find("fisher")


class FlattensFirst(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flatten(1))


@pytest.mark.parametrize("name", ["cad", "condcad", "ib-erm", "selfreg", "urm"])
def test_features_that_are_no_vectors_are_named(name: str) -> None:
    network = Network(nn.Unflatten(1, (2, 2)), FlattensFirst(4, 3))
    method = ALGORITHMS[name](network, 2)
    batches = [(torch.ones(5, 4), torch.tensor([0, 0, 1, 2, 1])) for _ in range(2)]
    with pytest.raises(ValueError, match=r"features must be \[n, p\].* got shape \[10, 2, 2\]"):
        method.update(batches)
