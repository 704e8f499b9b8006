"""Algorithm 1 of the paper, transcribed line by line, against a loop with shoal.Fishr."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal

DOMAINS, BATCH, INPUTS, FEATURES, CLASSES = 3, 7, 5, 4, 3
WEIGHT, DECAY, RATE = 3.0, 0.8, 0.05
# Float64 on both sides; the tolerance only allows for another order of summation.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}

Network = tuple[nn.Module, nn.Linear]


def make_network() -> Network:
    """Return Φ_φ and w_ω."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh()).double()
    return features, nn.Linear(FEATURES, CLASSES).double()


def batches(step: int) -> list[tuple[Tensor, Tensor]]:
    """Return {(x_e^i, y_e^i)}_{i ∈ B} of size b_s for every domain, each with its own scale."""
    generator = torch.Generator().manual_seed(step)
    return [
        (
            (1 + e) * torch.randn(BATCH, INPUTS, generator=generator, dtype=torch.float64),
            torch.randint(CLASSES, (BATCH,), generator=generator),
        )
        for e in range(DOMAINS)
    ]


def weights_of(network: Network) -> list[Tensor]:
    return [p for part in network for p in part.parameters()]


def descend(network: Network, loss: Tensor) -> None:
    """Take one step of plain gradient descent in the whole network."""
    weights = weights_of(network)
    with torch.no_grad():
        for p, g in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            p -= RATE * g


def algorithm_1(
    network: Network, iterations: int, warmup: int
) -> list[tuple[Tensor, list[Tensor]]]:
    """Return loss and weights after each iteration (\\label{pseudocode_short}).

    Risks are means over the batch, as in Eq. \\ref{eq:loss}, not the sums of the pseudocode, and
    v̄/(1−γ) is matched, as in the appendix on DomainBed. The first iteration is number 0.
    """
    features, classifier = network
    ω = list(classifier.parameters())
    v_mean: list[Tensor] = [torch.zeros(()) for _ in range(DOMAINS)]
    history = []
    for iteration in range(iterations):
        # Step 1: standard ERM procedure.
        predictions, targets, risks = [], [], []
        for x, y in batches(iteration):
            predictions.append(classifier(features(x)))
            targets.append(y)
            risks.append(F.cross_entropy(predictions[-1], y))
        loss = torch.stack(risks).sum() / DOMAINS
        # Step 2: gradient variances in the classifier.
        v = []
        for e in range(DOMAINS):
            individual = []
            for i in range(BATCH):
                one = F.cross_entropy(predictions[e][i : i + 1], targets[e][i : i + 1])
                g = torch.autograd.grad(one, ω, create_graph=True)
                individual.append(torch.cat([part.flatten() for part in g]))
            mean = sum(individual) / BATCH
            variance = sum((g - mean) ** 2 for g in individual) / (BATCH - 1)
            v.append(DECAY * v_mean[e] + (1 - DECAY) * variance)
            v_mean[e] = v[e].detach()
        if iteration >= warmup:
            u = [one / (1 - DECAY) for one in v]
            centre = sum(u) / DOMAINS
            loss = loss + WEIGHT * sum(((one - centre) ** 2).sum() for one in u) / DOMAINS
        # Step 3: gradient descent in the whole network.
        descend(network, loss)
        history.append((loss.detach(), [p.detach().clone() for p in weights_of(network)]))
    return history


def with_shoal(network: Network, iterations: int, warmup: int) -> list[tuple[Tensor, list[Tensor]]]:
    """Return the same history from one batch of all domains, in mixed order."""
    features, classifier = network
    fishr = shoal.Fishr(DOMAINS, WEIGHT, DECAY, warmup, normalise=False)
    history = []
    for iteration in range(iterations):
        per_domain = batches(iteration)
        order = torch.randperm(DOMAINS * BATCH, generator=torch.Generator().manual_seed(iteration))
        inputs = torch.cat([x for x, _ in per_domain])[order]
        labels = torch.cat([y for _, y in per_domain])[order]
        domains = torch.arange(DOMAINS).repeat_interleave(BATCH)[order]
        z = features(inputs)
        logits = classifier(z)
        # Domains are equally large, so the mean over the batch is the mean of the risks.
        loss = F.cross_entropy(logits, labels) + fishr(z, logits, labels, domains)
        descend(network, loss)
        history.append((loss.detach(), [p.detach().clone() for p in weights_of(network)]))
    return history


@pytest.mark.parametrize(("iterations", "warmup"), [(7, 3), (4, 0)])
def test_loop_with_shoal_is_algorithm_1(iterations: int, warmup: int) -> None:
    """\\label{pseudocode_short}, Eq. \\ref{eq:variance}, \\ref{eq:fishrreg}, \\ref{eq:loss}."""
    network = make_network()
    twin = copy.deepcopy(network)
    expected = algorithm_1(network, iterations, warmup)
    found = with_shoal(twin, iterations, warmup)
    for (loss, weights), (other_loss, other_weights) in zip(expected, found, strict=True):
        assert torch.allclose(loss, other_loss, **CLOSE)
        for a, b in zip(weights, other_weights, strict=True):
            assert torch.allclose(a, b, **CLOSE)


def test_the_penalty_has_an_effect() -> None:
    """λ changes loss and weights from its first step, so the comparison above is not trivial."""
    with_penalty = with_shoal(make_network(), 5, 3)
    without = with_shoal(make_network(), 5, 5)
    for step, (a, b) in enumerate(zip(with_penalty, without, strict=True)):
        assert torch.equal(a[0], b[0]) is (step < 3)
        assert all(torch.equal(p, q) is (step < 3) for p, q in zip(a[1], b[1], strict=True))
