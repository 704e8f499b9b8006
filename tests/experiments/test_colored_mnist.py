"""Colored MNIST in the IRM setup: data, network, and every method compared with a plain loop."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.datasets.mnist import train_digits
from shoal.experiments.colored_mnist import (
    METHODS,
    TABLES,
    ColoredDomain,
    Setup,
    Training,
    domains_of,
)
from shoal.networks import MLP
from shoal.randomness import stream
from shoal.tensor_files import load_tensors, save_tensors
from tests.oracles.autograd import individual_gradients

CPU = torch.device("cpu")
TINY = Setup(examples=12, hidden=6, jump_step=2, updates=5)

# The numbers of the setup, typed again.
LEARNING_RATE = 0.0004898536566546834
L2_WEIGHT = 0.00110794568
PENALTY_WEIGHT = 91257.18613115903

# Two float64 computations of the same training, on weights of at most 1 and updates of 5e-4.
SAME = {"rtol": 0.0, "atol": 1e-13}


def devices() -> list[object]:
    absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    return ["cpu", pytest.param("cuda", marks=absent)]


# The data


@cache
def full(restart: int = 0) -> dict[str, ColoredDomain]:
    return domains_of(Setup(), restart)


def pictures(domain: ColoredDomain) -> Tensor:
    """Return the digits without their colour, ``[n, 14, 14]``, in 0 … 255."""
    return (domain.inputs.reshape(-1, 2, 14, 14).amax(1) * 255).round().to(torch.uint8)


def keys(images: Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def colours(domain: ColoredDomain) -> Tensor:
    """Return which channel is kept, ``[n]``; exactly one must have ink."""
    ink = domain.inputs.reshape(-1, 2, 196).amax(2) > 0
    assert (ink.sum(1) == 1).all()
    return ink[:, 1]


def flipped(domain: ColoredDomain) -> Tensor:
    return (domain.labels[:, 0] == 1) != (domain.digits < 5)


def share(found: Tensor, expected: float) -> None:
    """Assert that a share is within four standard deviations of its probability."""
    deviation = math.sqrt(expected * (1 - expected) / len(found))
    assert found.double().mean().item() == pytest.approx(expected, abs=4 * deviation)


def small_originals(which: slice) -> Tensor:
    return torch.tensor(train_digits().images[which, ::2, ::2])


def test_setup_has_the_published_numbers() -> None:
    assert Setup() == Setup(
        flip=0.25, examples=25_000, hidden=390, jump_step=190, updates=500, tf32=False
    )


def test_sizes_and_types() -> None:
    sizes = {"80%": 25_000, "90%": 25_000, "10%": 10_000, "gray": 10_000}
    assert {name: len(domain.inputs) for name, domain in full().items()} == sizes
    for name, domain in full().items():
        assert domain.inputs.shape == (sizes[name], 392)
        assert domain.labels.shape == (sizes[name], 1)
        assert domain.digits.shape == (sizes[name],)
        assert domain.inputs.dtype == domain.labels.dtype == torch.float32
        assert set(domain.labels.unique().tolist()) == {0.0, 1.0}
        assert domain.inputs.min() == 0 and domain.inputs.max() == 1


def test_training_domains_share_out_the_first_50_000() -> None:
    """As multisets: no image twice, none missing, none of the test images."""
    together = keys(pictures(full()["80%"])) + keys(pictures(full()["90%"]))
    assert sorted(together) == sorted(keys(small_originals(slice(50_000))))


def test_test_domains_are_the_last_10_000() -> None:
    originals = small_originals(slice(50_000, None))
    for name in ("10%", "gray"):
        assert torch.equal(pictures(full()[name]), originals)
        assert full()[name].digits.tolist() == train_digits().labels[50_000:].tolist()


def test_training_digits_belong_to_their_pictures() -> None:
    originals = keys(small_originals(slice(50_000)))
    digit_of = dict(zip(originals, train_digits().labels.tolist(), strict=False))
    for name in ("80%", "90%"):
        domain = full()[name]
        assert [digit_of[key] for key in keys(pictures(domain))] == domain.digits.tolist()


def test_few_examples_are_disjoint_and_of_the_pool() -> None:
    found = domains_of(Setup(examples=500), 0)
    first, second = set(keys(pictures(found["80%"]))), set(keys(pictures(found["90%"])))
    assert len(first) == len(second) == 500
    assert not first & second
    assert first | second <= set(keys(small_originals(slice(50_000))))
    assert len(found["10%"].inputs) == 10_000


@pytest.mark.parametrize("name", ["80%", "90%", "10%", "gray"])
def test_a_quarter_of_the_labels_is_wrong(name: str) -> None:
    domain = full()[name]
    share(flipped(domain), 0.25)
    share(flipped(domain)[domain.digits < 5], 0.25)
    share(flipped(domain)[domain.digits >= 5], 0.25)


def test_without_flips_class_1_is_the_digits_below_5() -> None:
    found = domains_of(Setup(flip=0.0, examples=2_000), 0)
    for domain in found.values():
        assert torch.equal(domain.labels[:, 0], (domain.digits < 5).float())
    for name, agreement in (("80%", 0.8), ("90%", 0.9), ("10%", 0.1)):
        share(colours(found[name]) == (found[name].labels[:, 0] == 1), agreement)


@pytest.mark.parametrize(("name", "agreement"), [("80%", 0.8), ("90%", 0.9), ("10%", 0.1)])
def test_colour_agrees_with_the_label_as_it_is_in_the_data(name: str, agreement: float) -> None:
    """With the noisy label, and for wrong labels as often as for right ones."""
    domain = full()[name]
    agree = colours(domain) == (domain.labels[:, 0] == 1)
    share(agree, agreement)
    share(agree[flipped(domain)], agreement)
    share(agree[~flipped(domain)], agreement)
    share(agree[domain.labels[:, 0] == 1], agreement)


def test_gray_keeps_both_channels_and_draws_its_own_noise() -> None:
    gray, coloured = full()["gray"], full()["10%"]
    channels = gray.inputs.reshape(-1, 2, 196)
    assert torch.equal(channels[:, 0], channels[:, 1])
    share((gray.labels != coloured.labels)[:, 0], 2 * 0.25 * 0.75)


def test_noise_of_domains_is_independent() -> None:
    first, second = flipped(full()["80%"]), flipped(full()["90%"])
    share(first ^ second, 2 * 0.25 * 0.75)


def test_a_restart_is_the_same_data_every_time() -> None:
    before = domains_of(Setup(examples=50), 3)
    torch.manual_seed(12345)
    torch.rand(7)
    again = domains_of(Setup(examples=50), 3)
    for name in before:
        for field in ("inputs", "labels", "digits"):
            assert torch.equal(getattr(before[name], field), getattr(again[name], field))


def test_another_restart_is_other_data() -> None:
    first, second = domains_of(Setup(examples=500), 0), domains_of(Setup(examples=500), 1)
    for name in ("80%", "90%"):
        common = set(keys(pictures(first[name]))) & set(keys(pictures(second[name])))
        assert len(common) < 50  # 5 of 500 are expected by chance
    for name in ("10%", "gray"):
        share((first[name].labels != second[name].labels)[:, 0], 2 * 0.25 * 0.75)
    # Colour says "below 5" rightly in 0.75 · 0.1 + 0.25 · 0.9 of cases.
    share(colours(first["10%"]) ^ colours(second["10%"]), 2 * 0.3 * 0.7)


def test_few_examples_of_a_restart_begin_like_many() -> None:
    """The order of the pool depends on the restart alone."""
    few = domains_of(Setup(examples=50), 0)
    assert keys(pictures(few["80%"])) == keys(pictures(full()["80%"]))[:50]
    assert keys(pictures(few["90%"])) == keys(pictures(full()["90%"]))[:50]


# The network


def test_network_of_the_setup() -> None:
    network = MLP(392, 390, 1, stream("any"))
    shapes = [tuple(p.shape) for p in network.parameters()]
    assert shapes == [(390, 392), (390,), (390, 390), (390,), (1, 390), (1,)]
    assert sum(p.numel() for p in network.parameters()) == 306_151
    assert [type(module) for module in network.features] == [nn.Linear, nn.ReLU] * 2
    for weight in network.parameters():
        if weight.ndim == 1:
            assert not weight.any()
        else:
            bound = math.sqrt(6 / (weight.shape[0] + weight.shape[1]))
            largest = weight.abs().max().item()
            assert largest <= bound
            assert largest > 0.97 * bound
            # U(−b, b) has variance b² / 3.
            assert weight.double().square().mean().item() == pytest.approx(bound**2 / 3, rel=0.25)
    inputs = torch.rand(5, 392)
    hidden = F.relu(F.linear(inputs, *list(network.parameters())[:2]))
    hidden = F.relu(F.linear(hidden, *list(network.parameters())[2:4]))
    torch.testing.assert_close(network.features(inputs), hidden)
    logits = F.linear(hidden, *list(network.parameters())[4:])
    torch.testing.assert_close(network(inputs), logits)


def test_network_is_drawn_from_its_generator_alone() -> None:
    torch.manual_seed(0)
    first = MLP(392, 6, 1, stream("a"))
    torch.manual_seed(1)
    again, other = MLP(392, 6, 1, stream("a")), MLP(392, 6, 1, stream("b"))
    for p, q, r in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.ndim == 1 or not torch.equal(p, r)


def live(model: nn.Module, hidden: int) -> list[Tensor]:
    """Return the weights without the units that fill up a multiple of eight, as views."""
    first, first_bias, second, second_bias, last, last_bias = (
        p.detach() for p in model.parameters()
    )
    h = hidden
    return [first[:h], first_bias[:h], second[:h, :h], second_bias[:h], last[:, :h], last_bias]


def assert_dead(training: Training) -> None:
    """Assert that the units beyond the setup's have no weights at all."""
    rest = copy.deepcopy(training.model)
    for tensor in live(rest, training.setup.hidden):
        tensor.zero_()
    assert not any(parameter.any() for parameter in rest.parameters())


@pytest.mark.parametrize(("hidden", "wide"), [(6, 8), (8, 8), (9, 16), (390, 392)])
def test_weights_of_a_restart(hidden: int, wide: int) -> None:
    training = Training(METHODS["erm"], Setup(examples=2, hidden=hidden), CPU)
    training.start(4)
    assert training.model.classifier.in_features == wide
    drawn = MLP(392, hidden, 1, stream("colored-mnist", "weights", 4))
    for mine, theirs in zip(live(training.model, hidden), drawn.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert_dead(training)


# Training, compared with a loop that shares only the data and the initial weights.

Penalty = Callable[[nn.Module, list[ColoredDomain], slice], Tensor]

OMEGA, THETA, PHI = slice(4, 6), slice(0, 6), slice(0, 4)


def risk(model: nn.Module, domain: ColoredDomain) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(domain.inputs), domain.labels)


def irm(model: nn.Module, domains: list[ColoredDomain], _: slice) -> Tensor:
    found = []
    for domain in domains:
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        scaled = F.binary_cross_entropy_with_logits(scale * model(domain.inputs), domain.labels)
        (slope,) = torch.autograd.grad(scaled, scale, create_graph=True)
        found.append(slope**2)
    return (found[0] + found[1]) / 2


def vrex(model: nn.Module, domains: list[ColoredDomain], _: slice) -> Tensor:
    return (risk(model, domains[0]) - risk(model, domains[1])) ** 2


def gradients(model: nn.Module, domain: ColoredDomain, weights: slice) -> Tensor:
    chosen = list(model.parameters())[weights]
    return individual_gradients(model, domain.inputs, domain.labels, chosen)


def distance_to_the_mean(first: Tensor, second: Tensor) -> Tensor:
    """Return Σ_e ‖s_e − s̄‖², neither divided by the domains nor by the weights."""
    middle = (first + second) / 2
    return ((first - middle) ** 2).sum() + ((second - middle) ** 2).sum()


def variance(model: nn.Module, domains: list[ColoredDomain], weights: slice) -> Tensor:
    rows = []
    for domain in domains:
        g = gradients(model, domain, weights)
        rows.append(((g - g.mean(0)) ** 2).sum(0) / len(g))
    return distance_to_the_mean(*rows)


def uncentered(model: nn.Module, domains: list[ColoredDomain], weights: slice) -> Tensor:
    rows = []
    for domain in domains:
        g = gradients(model, domain, weights)
        rows.append((g**2).sum(0) / len(g))
    return distance_to_the_mean(*rows)


def covariance(model: nn.Module, domains: list[ColoredDomain], weights: slice) -> Tensor:
    found = []
    for domain in domains:
        g = gradients(model, domain, weights)
        deviations = g - g.mean(0)
        found.append(deviations.T @ deviations / (len(g) - 1))
    return distance_to_the_mean(*found)


def covariance_released(model: nn.Module, domains: list[ColoredDomain], weights: slice) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for index in range(6)[weights]:
        found = []
        for domain in domains:
            g = gradients(model, domain, slice(index, index + 1))
            deviations = g - g.mean(0)
            found.append(deviations.T @ deviations / (len(g) * g.shape[1]))
        total = total + distance_to_the_mean(*found)
    return total


ORACLES: dict[str, tuple[Penalty | None, slice]] = {
    "erm": (None, THETA),
    "irm": (irm, THETA),
    "vrex": (vrex, THETA),
    "fishr-omega": (variance, OMEGA),
    "fishr-theta": (variance, THETA),
    "fishr-phi": (variance, PHI),
    "uncentered-omega": (uncentered, OMEGA),
    "uncentered-theta": (uncentered, THETA),
    "uncentered-phi": (uncentered, PHI),
    "covariance-omega": (covariance, OMEGA),
    "covariance-theta": (covariance, THETA),
    "covariance-phi": (covariance, PHI),
    "covariance-omega-released": (covariance_released, OMEGA),
}


def plain_training(method: str, setup: Setup, training: Training) -> Iterator[list[Tensor]]:
    """Train without padding, from the training's weights; yield the weights after every step."""
    h = setup.hidden
    model = nn.Sequential(
        nn.Linear(392, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, 1)
    ).double()
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), live(training.model, h), strict=True):
            mine.copy_(theirs)
    domains = [
        ColoredDomain(
            domain.inputs.double().cpu(), domain.labels.double().cpu(), domain.digits.cpu()
        )
        for domain in (training.domains["80%"], training.domains["90%"])
    ]
    penalty, weights = ORACLES[method]
    adam = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for step in range(setup.updates):
        loss = (risk(model, domains[0]) + risk(model, domains[1])) / 2
        for p in model.parameters():
            loss = loss + L2_WEIGHT * (p**2).sum()
        if penalty is not None:
            w = 1.0 if step < setup.jump_step else PENALTY_WEIGHT
            if setup.ramp_updates and step >= setup.jump_step:
                share = min((step - setup.jump_step) / setup.ramp_updates, 1)
                w = (1 - share) * 1.0 + share * PENALTY_WEIGHT
            loss = loss + w * penalty(model, domains, weights)
            if w > 1.0:
                loss = loss / w
        adam.zero_grad()
        loss.backward()
        adam.step()
        yield [p.detach() for p in model.parameters()]


def in_double(method: str, setup: Setup, restart: int = 0) -> Training:
    """Return a training on the CPU whose every number is float64."""
    training = Training(METHODS[method], setup, CPU)
    training.model.double()
    training.inputs, training.labels = training.inputs.double(), training.labels.double()
    training.weight = training.weight.double()
    training.start(restart)
    return training


def test_every_method_has_an_oracle() -> None:
    assert set(ORACLES) == set(METHODS)
    for methods in TABLES.values():
        assert set(methods) <= set(METHODS)


def assert_follows(training: Training, method: str) -> None:
    setup = training.setup
    steps = 0
    for expected in plain_training(method, setup, training):
        training.step()
        steps += 1
        for mine, theirs in zip(live(training.model, setup.hidden), expected, strict=True):
            torch.testing.assert_close(mine, theirs, **SAME)
        assert_dead(training)
    assert steps == training.done == setup.updates


@pytest.mark.parametrize("method", METHODS)
def test_training_is_the_plain_loop(method: str) -> None:
    """Loss, L2, penalty, jump, rescaling and Adam, after each step on both sides of the jump."""
    assert_follows(in_double(method, TINY), method)


def test_a_weight_that_rises() -> None:
    setup = Setup(examples=7, hidden=8, jump_step=1, ramp_updates=3, updates=6)
    assert_follows(in_double("fishr-omega", setup), "fishr-omega")
    assert setup.as_json()["ramp_updates"] == 3
    assert "ramp_updates" not in Setup().as_json()  # older folders do not have it


@pytest.mark.parametrize("method", ["fishr-theta", "fishr-omega", "covariance-omega-released"])
def test_without_padding_too(method: str) -> None:
    assert_follows(in_double(method, Setup(examples=7, hidden=8, jump_step=1, updates=3)), method)


def test_a_used_training_starts_again() -> None:
    """After a restart that went beyond the jump: weights, moments, weight and data are new."""
    training = in_double("fishr-omega", TINY)
    for _ in range(TINY.updates):
        training.step()
    training.start(1)
    assert training.done == 0
    assert_follows(training, "fishr-omega")


def test_a_jump_that_never_comes() -> None:
    assert_follows(in_double("vrex", Setup(examples=8, hidden=8, jump_step=9, updates=3)), "vrex")


def assert_near(training: Training, expected: list[Tensor]) -> None:
    """Assert float32 weights near float64 ones, within roundings of updates of 5e-4 each."""
    off = total = 0
    for mine, theirs in zip(live(training.model, training.setup.hidden), expected, strict=True):
        difference = (mine.cpu() - theirs).abs()
        off += int((difference > 1e-5).sum())
        total += difference.numel()
    # Where a gradient is nearly zero, Adam makes an update of its rounding.
    assert off <= 0.01 * total


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("hidden", [6, 390])
def test_float32_stays_near_float64(device: str, hidden: int) -> None:
    """As the experiment runs: in float32, and captured on a GPU."""
    setup = replace(TINY, hidden=hidden)
    training = Training(METHODS["fishr-omega"], setup, torch.device(device))
    training.start(1)
    assert all(p.dtype == torch.float32 for p in training.model.parameters())
    *_, expected = plain_training("fishr-omega", setup, training)
    run_to(training, setup.updates)
    training.accuracies()  # waits
    assert_near(training, expected)


def test_accuracies() -> None:
    training = Training(METHODS["erm"], Setup(examples=300, hidden=8, updates=8), CPU)
    for _ in range(8):
        training.step()
    right = {}
    for name, domain in training.domains.items():
        answers = (training.model(domain.inputs) > 0).float()
        right[name] = (answers == domain.labels).double().mean().item()
    found = training.accuracies()
    assert set(found) == {"train", "test", "gray"}
    assert found["train"] == pytest.approx((right["80%"] + right["90%"]) / 2, abs=1e-6)
    assert found["test"] == pytest.approx(right["10%"], abs=1e-6)
    assert found["gray"] == pytest.approx(right["gray"], abs=1e-6)
    assert len({*right.values()}) == 4  # so that none can be confused with another


def test_accuracy_at_a_logit_of_zero_is_that_of_class_0() -> None:
    training = Training(METHODS["erm"], Setup(examples=50, hidden=8), CPU)
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.zero_()
    zeros = 1 - training.domains["10%"].labels.mean().item()
    assert training.accuracies()["test"] == pytest.approx(zeros, abs=1e-6)


# Resuming


def run_to(training: Training, last: int) -> None:
    while training.done < last:
        training.step()


def everything(training: Training) -> list[Tensor]:
    """Return weights and moments, copied."""
    training.accuracies()  # waits
    found = [p.detach().clone() for p in training.model.parameters()]
    for parameter in training.model.parameters():
        state = training.optimiser.state[parameter]
        found += [state[name].clone() for name in ("step", "exp_avg", "exp_avg_sq")]
    return found


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("method", ["erm", "irm", "fishr-theta", "covariance-omega"])
def test_resuming_equals_never_stopping(method: str, device: str, tmp_path: Path) -> None:
    """Before, at and after the jump, in a training that is new and in one that was used."""
    whole = Training(METHODS[method], TINY, torch.device(device))
    whole.start(2)
    for done in range(TINY.updates + 1):
        run_to(whole, done)
        save_tensors(tmp_path / f"{done}.pt", whole.state())
    expected = everything(whole)
    used = Training(METHODS[method], TINY, torch.device(device))
    for done in range(TINY.updates + 1):
        new = Training(METHODS[method], TINY, torch.device(device))
        for training in (new, used):
            training.start(2)
            training.resume(load_tensors(tmp_path / f"{done}.pt"))
            assert training.done == done
            run_to(training, TINY.updates)
            for mine, theirs in zip(everything(training), expected, strict=True):
                assert torch.equal(mine, theirs)
            assert training.accuracies() == whole.accuracies()


def test_resuming_leaves_the_state_as_it_was() -> None:
    whole = Training(METHODS["vrex"], TINY, CPU)
    run_to(whole, 3)
    state = copy.deepcopy(whole.state())
    before = copy.deepcopy(state)
    other = Training(METHODS["vrex"], TINY, CPU)
    other.resume(state)
    run_to(other, 5)
    assert state["done"] == before["done"] == 3
    for name, tensor in before["model"].items():
        assert torch.equal(state["model"][name], tensor)
    for mine, theirs in zip(state["optimiser"], before["optimiser"], strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
