"""Scenarios of test_distributed.py: in one process on the whole batch, in two on its parts.

As a script, one of the processes: RANK FILE FOLDER SCENARIO...; results go to FOLDER/RANK.pt.
"""

import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import shoal
from shoal.algorithms import ALGORITHMS
from shoal.training.averages import Averaging
from shoal.training.batches import Batches, Normalise, scaled
from shoal.training.evaluation import Evaluation
from shoal.training.step import Update
from tests.training.cut import METHODS, large, trained
from tests.training.little import CPU, averages_of_training, placed

WORLD, E, INPUTS, FEATURES, CLASSES = 2, 5, 6, 4, 3
# Features of a network with 3,503 weights, too many for a dense covariance.
MANY = 350
# Domain 1 has one example on rank 0, domain 2 none on rank 1, domain 3 one on each, and domain 4
# one in all, so it is absent. Ranks differ in length.
DOMAINS = ([0, 2, 0, 1, 0, 2, 2, 3, 0, 2, 0], [1, 0, 3, 4, 1, 1])

# A scenario is run in both; its name says which.
DTYPES = {"": torch.float64, ", float32": torch.float32}
DTYPE = ContextVar("dtype", default=torch.float64)

Result = dict[str, Tensor]
Batch = tuple[Tensor, Tensor, Tensor]


def make_parts(seed: int) -> list[Batch]:
    """Return inputs, labels and domains of every rank; each domain has its own scale."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for ids in DOMAINS:
        domains = torch.tensor(ids)
        inputs = torch.randn(len(ids), INPUTS, generator=generator, dtype=torch.float64)
        inputs = inputs.to(DTYPE.get())
        labels = torch.randint(CLASSES, (len(ids),), generator=generator)
        parts.append((inputs * (1 + domains[:, None]), labels, domains))
    return parts


def my_part(seed: int) -> Batch:
    """Return this process's examples: all of them if it is the only process."""
    parts = make_parts(seed)
    if dist.is_initialized():
        return parts[dist.get_rank()]
    inputs, labels, domains = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return inputs, labels, domains


class Network(nn.Module):
    """Features, a scale that belongs to no layer, and a classifier; returns z and logits."""

    def __init__(self, features: int = FEATURES, scaled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(INPUTS, features), nn.Tanh())
        self.classifier = nn.Linear(features, CLASSES)
        if scaled:
            self.scale = nn.Parameter(torch.full((features,), 1.5))
        self.to(DTYPE.get())

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        z = self.features(inputs)
        z = z * self.scale if hasattr(self, "scale") else z
        return z, self.classifier(z)


class Logits(Network):
    """The same, returning logits only."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)[1]


def make_conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(36, CLASSES),
    ).to(DTYPE.get())


def averaged(gradients: list[Tensor]) -> Tensor:
    """Return the gradients in one vector, averaged over ranks as DistributedDataParallel does."""
    flat = torch.cat([g.flatten() for g in gradients])
    if dist.is_initialized():
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
    return flat


def result(value: Tensor, model: nn.Module) -> Result:
    """Return a statistic and the averaged gradient of a number that depends on all of it."""
    generator = torch.Generator().manual_seed(7)
    weights = torch.rand(value.shape, generator=generator, dtype=value.dtype)
    number = (value * weights).sum() + (shoal.spread(value) if value.ndim else 0)
    found = torch.autograd.grad(number, list(model.parameters()), allow_unused=True)
    whole = [
        torch.zeros_like(p) if g is None else g
        for g, p in zip(found, model.parameters(), strict=True)
    ]
    return {"value": value.detach(), "gradient": averaged(whole)}


def head(num_domains: int | None = E, **options: bool) -> Result:
    model = Network()
    inputs, labels, domains = my_part(0)
    z, logits = model(inputs)
    v = shoal.head_variance(z, logits, labels, domains, num_domains=num_domains, **options)
    return result(v, model)


def head_binary() -> Result:
    model = Network()
    inputs, labels, domains = my_part(0)
    z, logits = model(inputs)
    v = shoal.head_variance(z, logits[:, 0], labels.clamp(max=1), domains, num_domains=E)
    return result(v, model)


def head_with_an_empty_rank() -> Result:
    model = Network()
    inputs, labels, domains = my_part(0)
    if dist.is_initialized() and dist.get_rank() == 1:
        inputs, labels, domains = inputs[:0], labels[:0], domains[:0]
    elif not dist.is_initialized():
        inputs, labels, domains = make_parts(0)[0]
    z, logits = model(inputs)
    return result(shoal.head_variance(z, logits, labels, domains, num_domains=E), model)


def fishr() -> Result:
    """Three calls with state; the penalty's gradient after the last."""
    model = Network()
    penalty_of = shoal.Fishr(E, 2.0, 0.7, warmup_steps=1, normalise=False)
    for seed in range(3):
        inputs, labels, domains = my_part(seed)
        # Domain 2 is nowhere in the second step.
        domains = domains.masked_fill(domains == 2, 0) if seed == 1 else domains
        z, logits = model(inputs)
        penalty = penalty_of(z, logits, labels, domains)
    return result(penalty, model) | state_of(penalty_of)


def state_of(fishr: shoal.Fishr) -> Result:
    return {f"state.{name}": tensor.clone() for name, tensor in fishr.state_dict().items()}


def risk(logits: Tensor, labels: Tensor, n: int) -> Tensor:
    """Return this rank's share of the mean over all n examples, W-fold for DDP's average."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    return F.cross_entropy(logits, labels, reduction="sum") * world / n


def train(model: nn.Module, loss_of: Callable[[nn.Module, Batch, int], Tensor]) -> Result:
    """Return the weights after three steps of SGD, under DDP in a process group."""
    network = DistributedDataParallel(model) if dist.is_initialized() else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    total = sum(map(len, DOMAINS))
    history = {}
    for seed in range(3):
        loss = loss_of(network, my_part(seed), total)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history[f"weights after step {seed}"] = torch.cat(
            [p.detach().flatten() for p in model.parameters()]
        )
    return history


def ddp_fishr() -> Result:
    penalty_of = shoal.Fishr(E, 2.0, 0.7, warmup_steps=1, normalise=False)

    def loss_of(network: nn.Module, batch: Batch, total: int) -> Tensor:
        inputs, labels, domains = batch
        z, logits = network(inputs)
        return risk(logits, labels, total) + penalty_of(z, logits, labels, domains)

    return train(Network(), loss_of) | state_of(penalty_of)


def ddp_fishr_everywhere(chunk_size: int | None) -> Result:
    penalty_of = shoal.Fishr(E, 0.5, 0.7, warmup_steps=1, normalise=False)

    def loss_of(network: nn.Module, batch: Batch, total: int) -> Tensor:
        inputs, labels, domains = batch
        v = shoal.gradient_variance(
            network, inputs, labels, domains, num_domains=E, chunk_size=chunk_size
        )
        return risk(network(inputs), labels, total) + penalty_of.match(v)

    return train(Logits(), loss_of) | state_of(penalty_of)


def statistic(function: Callable[..., Tensor], model: nn.Module, **options: object) -> Result:
    options = {"num_domains": E, **options}
    return result(function(model, *my_part(0), **options), model)


def losses_and_variance(chunk_size: int | None) -> Result:
    """Return the rows, and the gradient of the risk and their spread together."""
    model = make_conv()
    inputs, labels, domains = my_part(0)
    losses, rows = shoal.losses_and_variance(
        model, inputs, labels, domains, num_domains=E, chunk_size=chunk_size
    )
    world = dist.get_world_size() if dist.is_initialized() else 1
    step = losses.sum() * world / sum(map(len, DOMAINS)) + shoal.spread(rows)
    gradients = torch.autograd.grad(step, list(model.parameters()))
    return {"value": rows.detach(), "gradient": averaged(list(gradients))}


class Branches(nn.Module):
    """A layer for even domains and one of the same shape for odd ones; a shared head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.even, self.odd = nn.Linear(INPUTS, FEATURES), nn.Linear(INPUTS, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.to(DTYPE.get())

    def forward(self, inputs: Tensor, odd: Tensor) -> Tensor:
        if not odd.any():
            return self.head(torch.tanh(self.even(inputs)))
        if odd.all():
            return self.head(torch.tanh(self.odd(inputs)))
        z = torch.where(odd[:, None], self.odd(inputs), self.even(inputs))
        return self.head(torch.tanh(z))


def branches(chunk_size: int | None) -> Result:
    """Run a network of which each rank uses one branch only."""
    model = Branches()
    parts = []
    for rank, (inputs, labels, domains) in enumerate(make_parts(0)):
        odd = torch.full((len(labels),), bool(rank))
        parts.append((inputs, odd, labels, domains))
    if dist.is_initialized():
        inputs, odd, labels, domains = parts[dist.get_rank()]
    else:
        inputs, odd, labels, domains = (torch.cat(ts) for ts in zip(*parts, strict=True))
    v = V(model, (inputs, odd), labels, domains, num_domains=E, chunk_size=chunk_size)
    return result(v, model)


def with_an_empty_rank(function: Callable[..., Tensor], **options: object) -> Result:
    model = Logits()
    inputs, labels, domains = make_parts(0)[0]
    if dist.is_initialized() and dist.get_rank() == 1:
        inputs, labels, domains = inputs[:0], labels[:0], domains[:0]
    return result(function(model, inputs, labels, domains, num_domains=E, **options), model)


def sharded(model: nn.Module, parts: tuple[type[nn.Module], ...] = (nn.Linear,)) -> nn.Module:
    """Return the model under FSDP2 in a process group: these layers alone, then the rest."""
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (WORLD,))
        for module in [*(one for one in model.modules() if isinstance(one, parts)), model]:
            fully_shard(module, mesh=mesh)
            # Else torch 2.8 adds up float32 gradients over Gloo instead of averaging them.
            module.set_force_sum_reduction_for_comms(True)
    return model


def whole(tensor: Tensor) -> Tensor:
    """Return a gradient or weight of FSDP2 in one piece; FSDP2 has averaged it already."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def of_shards(function: Callable[..., Tensor], model: nn.Module, **options: object) -> Result:
    """Return a statistic under FSDP2, and the gradient that ``backward`` leaves in the shards."""
    inputs, labels, domains = my_part(0)
    model(inputs)  # FSDP2 keeps some weights gathered after a forward
    value = function(model, inputs, labels, domains, **{"num_domains": E, **options})
    generator = torch.Generator().manual_seed(7)
    weights = torch.rand(value.shape, generator=generator, dtype=value.dtype)
    number = (value * weights).sum() + (shoal.spread(value) if value.ndim else 0)
    number.backward()
    gradients = [whole(p.grad).flatten() for p in model.parameters() if p.grad is not None]
    return {"value": value.detach(), "gradient": torch.cat(gradients)}


def fsdp_training(order: str, chunk_size: int | None = None) -> Result:
    """Return the weights after three steps with Fishr on all weights, under FSDP2."""
    model = sharded(Logits(scaled=True))
    penalty_of = shoal.Fishr(E, 0.5, 0.7, warmup_steps=1, normalise=False)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    total, world = sum(map(len, DOMAINS)), WORLD if dist.is_initialized() else 1
    history = {}
    for seed in range(3):
        inputs, labels, domains = my_part(seed)
        options = {"num_domains": E, "chunk_size": chunk_size}
        if order == "one forward":
            losses, v = shoal.losses_and_variance(model, inputs, labels, domains, **options)
            loss = losses.sum() * world / total
        elif order == "logits first":
            loss = risk(model(inputs), labels, total)
            v = shoal.gradient_variance(model, inputs, labels, domains, **options)
        else:
            v = shoal.gradient_variance(model, inputs, labels, domains, **options)
            loss = risk(model(inputs), labels, total)
        optimiser.zero_grad()
        (loss + penalty_of.match(v)).backward()
        optimiser.step()
        history[f"weights after step {seed}"] = torch.cat(
            [whole(p.detach()).flatten() for p in model.parameters()]
        )
    return history | state_of(penalty_of)


def fsdp_head() -> Result:
    """Fishr on the classifier, with features and logits from the sharded network."""
    model = sharded(Network())
    inputs, labels, domains = my_part(0)
    z, logits = model(inputs)
    penalty = shoal.Fishr(E, 2.0, 0.7, warmup_steps=0, normalise=False)(z, logits, labels, domains)
    penalty.backward()
    gradients = [whole(p.grad).flatten() for p in model.parameters()]
    return {"value": penalty.detach(), "gradient": torch.cat(gradients)}


def individual(model: nn.Module, chunk_size: int | None = None) -> Result:
    """Return norms, Fisher diagonals and noise scale: of the whole batch, or gathered."""
    inputs, labels, _ = my_part(0)
    options = {"chunk_size": chunk_size}
    norms = shoal.gradient_norms(model, inputs, labels, **options)
    if dist.is_initialized():
        parts: list[Tensor] = [norms] * WORLD
        dist.all_gather_object(parts, norms)
        norms = torch.cat(parts)
    fishers = [
        shoal.fisher_diagonal(model, inputs, of, **options)  # type: ignore[arg-type]
        for of in (labels, None)
    ]
    rows = [torch.cat([f.flatten() for f in fisher.values()]) for fisher in fishers]
    # Of one class, so that the gradients agree and the scale is finite.
    scale = torch.stack(shoal.gradient_noise_scale(model, inputs, labels * 0, **options))
    return {"value": norms, "empirical": rows[0], "fisher": rows[1], "noise scale": scale}


def without_gradients() -> Result:
    """Return statistics under no_grad, with weights that need it."""
    model = sharded(Logits(scaled=True))
    with torch.no_grad():
        rows = V(model, *my_part(0), num_domains=E)
        inputs, labels, _ = my_part(0)
        fisher = shoal.fisher_diagonal(model, inputs, labels, "scale")["scale"]
    return {"value": rows, "fisher": fisher}


V, G, C = shoal.gradient_variance, shoal.gradient_mean, shoal.covariance_spread

SCENARIOS: dict[str, Callable[[], Result]] = {
    "head": head,
    "head, uncentred": lambda: head(centered=False),
    "head, biased, no bias": lambda: head(unbiased=False, bias=False),
    "head, binary": head_binary,
    "head, domains counted": lambda: head(num_domains=None),
    "head, empty rank": head_with_an_empty_rank,
    "Fishr": fishr,
    "Fishr under DDP": ddp_fishr,
    "Fishr everywhere under DDP": lambda: ddp_fishr_everywhere(None),
    "Fishr everywhere under DDP, chunks": lambda: ddp_fishr_everywhere(2),
    "variance": lambda: statistic(V, Logits()),
    "variance, chunks": lambda: statistic(V, Logits(), chunk_size=2),
    "variance, uncentred": lambda: statistic(V, Logits(), centered=False),
    "variance, uncentred, chunks": lambda: statistic(V, Logits(), centered=False, chunk_size=2),
    "variance, biased": lambda: statistic(V, Logits(), unbiased=False),
    "variance, no layer's weight": lambda: statistic(V, Logits(scaled=True)),
    "variance, no layer's weight, chunks": lambda: statistic(V, Logits(scaled=True), chunk_size=2),
    "variance, convolution": lambda: statistic(V, make_conv()),
    "variance, convolution, chunks": lambda: statistic(V, make_conv(), chunk_size=2),
    "variance, empty rank": lambda: with_an_empty_rank(V),
    "variance, empty rank, chunks": lambda: with_an_empty_rank(V, chunk_size=2),
    "variance, a branch for each rank": lambda: branches(None),
    "variance, a branch for each rank, chunks": lambda: branches(2),
    "mean, empty rank": lambda: with_an_empty_rank(G),
    "mean": lambda: statistic(G, Logits()),
    "mean, chunks": lambda: statistic(G, Logits(), chunk_size=2),
    "covariance": lambda: statistic(C, Logits()),
    "covariance, blocks": lambda: statistic(C, Logits(), blocks=True),
    "covariance, biased": lambda: statistic(C, Logits(), unbiased=False),
    "covariance, no layer's weight": lambda: statistic(C, Logits(scaled=True)),
    "covariance, Gram matrices": lambda: statistic(C, Logits(features=MANY)),
    "covariance, Gram matrices, chunks": lambda: statistic(C, Logits(features=MANY), chunk_size=2),
    "covariance, Gram matrices, no layer's weight": lambda: statistic(
        C, Logits(features=MANY, scaled=True)
    ),
    "losses and variance": lambda: losses_and_variance(None),
    "losses and variance, chunks": lambda: losses_and_variance(2),
    "similarity": lambda: statistic(shoal.gradient_similarity, Logits()),
    "individual gradients": lambda: individual(Logits(scaled=True)),
    "individual gradients, chunks": lambda: individual(make_conv(), 2),
    "FSDP2, individual gradients": lambda: individual(sharded(Logits(scaled=True))),
    "FSDP2, variance": lambda: of_shards(V, sharded(Logits())),
    "FSDP2, variance, chunks": lambda: of_shards(V, sharded(Logits()), chunk_size=2),
    "FSDP2, variance, no layer's weight": lambda: of_shards(V, sharded(Logits(scaled=True))),
    "FSDP2, variance, of one layer": lambda: of_shards(
        V, sharded(Logits()), parameters="classifier"
    ),
    "FSDP2, variance, one group": lambda: of_shards(V, sharded(Logits(), ())),
    "FSDP2, variance, convolution": lambda: of_shards(V, sharded(make_conv())),
    "FSDP2, mean": lambda: of_shards(G, sharded(Logits())),
    "FSDP2, mean, chunks": lambda: of_shards(G, sharded(Logits()), chunk_size=2),
    "FSDP2, covariance": lambda: of_shards(C, sharded(Logits())),
    "FSDP2, covariance, Gram matrices": lambda: of_shards(C, sharded(Logits(features=MANY))),
    "FSDP2, without gradients": without_gradients,
    "FSDP2, Fishr": fsdp_head,
    "FSDP2, Fishr everywhere": lambda: fsdp_training("rows first"),
    "FSDP2, Fishr everywhere, logits first": lambda: fsdp_training("logits first", 2),
    "FSDP2, Fishr everywhere, one forward": lambda: fsdp_training("one forward"),
    "variance, domains counted": lambda: statistic(V, Logits(), num_domains=None),
    "mean, domains counted": lambda: statistic(G, Logits(), num_domains=None),
}


def statistics_of_an_average() -> Result:
    """Estimate batch norm for an average on each rank alone: only one of them saves models."""
    data = placed()
    algorithm = ALGORITHMS["erm"](large(dropout=0.0, frozen=False).float(), len(data.sources))
    update = Update(algorithm, Batches(data.sources, Normalise(None, False, CPU)), "float32")
    evaluate = Evaluation(algorithm, data.parts, scaled, nullcontext)
    with Averaging(update, evaluate, [], steps=2)._own_statistics():
        (norm,) = (part for part in algorithm.modules() if isinstance(part, nn.BatchNorm2d))
        return {"value": norm.running_mean.clone(), "variance": norm.running_var.clone()}


# Whole updates of methods; only in float64, because Adam amplifies rounding.
TRAINING = {f"training, {name}": partial(trained, name) for name in METHODS}
SCENARIOS |= TRAINING | {"training in micro-batches": partial(trained, "fishr", 3)}
SCENARIOS |= {
    "training with averages": averages_of_training,
    "training, statistics of an average": statistics_of_an_average,
}


def carry_out(name: str) -> Result:
    """Return the results of a scenario, in the precision that its name ends with."""
    precision = ", float32" if name.endswith(", float32") else ""
    token = DTYPE.set(DTYPES[precision])
    try:
        return SCENARIOS[name.removesuffix(", float32")]()
    finally:
        DTYPE.reset(token)


def main(rank: int, meeting: str, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=30),
    )
    results: dict[str, Result | str] = {}
    for name in names:
        try:
            results[name] = carry_out(name)
        except Exception:
            # The other rank can be waiting for this one, so later scenarios would be out of step.
            results[name] = traceback.format_exc()
            torch.save(results, folder / f"{rank}.pt")
            raise
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
