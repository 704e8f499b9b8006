"""Nothing in a step waits for the host, and every state tensor keeps its address.

Held on the CPU, which is made to behave like a GPU: values are not visible, and domain ids lie in
a vector that nobody may look into.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import shoal
from shoal.checks import without_value_checks
from shoal.gradients.domains import MaskedDomains

E, N, INPUTS, FEATURES, CLASSES = 3, 18, 6, 5, 4

# Ops whose result, or whose result's shape, depends on values: each waits for a device.
ASKING = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "nonzero",
    "nonzero_numpy",
    "argwhere",
    "masked_select",
    "unique",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
    "repeat_interleave",
)
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")


class AsksTheHost(AssertionError):
    """A step read a value that the device has not computed yet."""


class NoQuestions(TorchDispatchMode):
    """Raise if an op would wait for a device: it reads ``secret`` or a tensor computed from it.

    Without ``secret`` everything is secret. As on a GPU, no values are checked inside.
    """

    def __init__(self, *secret: Tensor) -> None:
        super().__init__()
        self.everything = not secret
        # The tensors are kept, so that no address is used twice.
        self.kept: list[Tensor] = list(secret)
        self.addresses = {t.untyped_storage().data_ptr() for t in secret}
        self.seen: set[str] = set()
        self.unseen = without_value_checks()

    def __enter__(self) -> "NoQuestions":
        self.unseen.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.unseen.__exit__(*error)

    def is_secret(self, tensor: Tensor) -> bool:
        return self.everything or tensor.untyped_storage().data_ptr() in self.addresses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.seen.add(name)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        secret = any(self.is_secret(t) for t in tensors)
        # With a given size, the shape of repeat_interleave's result is known.
        asking = name in ASKING and kwargs.get("output_size") is None
        if secret and asking:
            raise AsksTheHost(name)
        if secret and name in INDEXING:
            indices = [t for t in tree_leaves(args[1]) if isinstance(t, Tensor)]
            if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
                raise AsksTheHost(f"{name} with a boolean mask")
        result = func(*args, **kwargs)
        if secret and not self.everything:
            for t in tree_leaves(result):
                if isinstance(t, Tensor):
                    self.kept.append(t)
                    self.addresses.add(t.untyped_storage().data_ptr())
        return result


@pytest.fixture
def invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value is visible, as on a GPU."""
    monkeypatch.setattr("shoal.checks.values_visible", lambda *tensors: False)


@pytest.fixture
def device_domains(monkeypatch: pytest.MonkeyPatch, invisible: None) -> None:
    """Domain ids are on a device, as the statistics see it."""

    def groups(
        domains: Tensor, num_domains: int, device: torch.device
    ) -> tuple[MaskedDomains, None]:
        return MaskedDomains.of(domains.to(device).long(), num_domains), None

    monkeypatch.setattr("shoal.statistics.head._groups", groups)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse the ways to the host that no dispatch sees on a CPU."""

    def refuse(tensor: Tensor, *args: object) -> None:
        raise AsksTheHost("tolist or numpy")

    monkeypatch.setattr(Tensor, "tolist", refuse)
    monkeypatch.setattr(Tensor, "numpy", refuse)
    monkeypatch.setattr(Tensor, "__array__", refuse)
    yield


class Step:
    """A training step with Fishr on a small network, and the addresses of all its state."""

    def __init__(self, fishr: shoal.Fishr, classes: int = CLASSES) -> None:
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh())
        self.classifier = nn.Linear(FEATURES, classes)
        self.fishr = fishr
        weights = [*self.features.parameters(), *self.classifier.parameters()]
        self.optimiser = torch.optim.SGD(weights, lr=0.1)
        for p in weights:
            p.grad = torch.zeros_like(p)

    def __call__(self, inputs: Tensor, labels: Tensor, domains: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=False)
        z = self.features(inputs)
        logits = self.classifier(z)
        if logits.shape[1] == 1:
            risk = F.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype))
        else:
            risk = F.cross_entropy(logits, labels)
        loss = risk + self.fishr(z, logits, labels, domains)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def addresses(self) -> dict[str, int]:
        modules = nn.ModuleList([self.features, self.classifier, self.fishr])
        tensors = dict(modules.state_dict(keep_vars=True))
        tensors |= {f"{name}.grad": p.grad for name, p in modules.named_parameters()}
        return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def make_batch(seed: int, classes: int = CLASSES) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(N, INPUTS, generator=generator)
    labels = torch.randint(max(classes, 2), (N,), generator=generator)
    # Sizes 9, 6 and 3, in mixed order.
    domains = torch.tensor([0, 1, 0, 2, 0, 1] * 3)[torch.randperm(N, generator=generator)]
    return inputs, labels, domains


VARIANTS = {
    "classes": ({}, CLASSES),
    "uncentred": ({"centered": False}, CLASSES),
    "no bias": ({"bias": False}, CLASSES),
    "binary": ({}, 1),
    "no decay": ({"ema_decay": 0.0}, CLASSES),
    "warm-up": ({"warmup_steps": 2}, CLASSES),
    "own loss": (
        {"loss": lambda x, y: F.cross_entropy(x, y, reduction="none").square()},
        CLASSES,
    ),
}


def make_step(variant: str) -> tuple[Step, int]:
    options, classes = VARIANTS[variant]
    return Step(shoal.Fishr(E, 1.0, **{"warmup_steps": 0, **options}), classes), classes


@pytest.mark.usefixtures("device_domains", "silent")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_never_waits_and_keeps_its_addresses(variant: str) -> None:
    step, classes = make_step(variant)
    # The first call makes the buffers, outside of a capture.
    step(*make_batch(0, classes))
    before = step.addresses()
    assert len(before) == 4 + 4 + 3
    for seed in (1, 2):
        batch = make_batch(seed, classes)
        with NoQuestions() as mode:
            step(*batch)
        assert {"mm", "bmm", "addmm"} & mode.seen
    assert step.addresses() == before


@pytest.mark.usefixtures("device_domains", "silent")
def test_the_first_call_never_waits_either() -> None:
    step, _ = make_step("classes")
    batch = make_batch(0)
    with NoQuestions():
        step(*batch)


@pytest.mark.usefixtures("device_domains", "silent")
def test_absent_domains_and_eval_mode_never_wait() -> None:
    step, _ = make_step("classes")
    step(*make_batch(0))
    before = step.addresses()
    inputs, labels, _ = make_batch(1)
    with NoQuestions():
        step(inputs, labels, torch.zeros(N, dtype=torch.int64))
        step.fishr.eval()
        step(inputs, labels, torch.ones(N, dtype=torch.int64))
    assert step.addresses() == before


@pytest.mark.usefixtures("device_domains", "silent")
def test_match_and_spread_never_wait() -> None:
    fishr = shoal.Fishr(E, 1.0, warmup_steps=0)
    rows = torch.rand(E, 4, requires_grad=True)
    present = torch.tensor([True, False, True])
    with NoQuestions():
        fishr.match(rows).backward()
        fishr.match(rows, present).backward()
        shoal.spread(rows).backward()
        shoal.spread(rows, present).backward()
        _ = fishr.active


@pytest.mark.usefixtures("invisible")
@pytest.mark.parametrize("variant", VARIANTS)
def test_of_values_only_domains_on_the_host_are_read(variant: str) -> None:
    step, classes = make_step(variant)
    step(*make_batch(0, classes))
    before = step.addresses()
    inputs, labels, domains = make_batch(1, classes)
    weights = [p.detach() for m in (step.features, step.classifier) for p in m.parameters()]
    with NoQuestions(inputs, labels, *weights, *step.fishr.buffers()) as mode:
        step(inputs, labels, domains)
    assert "bincount" in mode.seen
    assert step.addresses() == before


def test_both_kinds_of_domains_give_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = make_step("classes")
    losses = [host(*make_batch(seed)) for seed in range(3)]

    def groups(
        domains: Tensor, num_domains: int, device: torch.device
    ) -> tuple[MaskedDomains, None]:
        return MaskedDomains.of(domains, num_domains), None

    monkeypatch.setattr("shoal.statistics.head._groups", groups)
    device, _ = make_step("classes")
    for seed, loss in enumerate(losses):
        assert torch.allclose(device(*make_batch(seed)), loss, rtol=1e-5, atol=1e-6)
    assert torch.allclose(device.fishr.v_bar, host.fishr.v_bar, rtol=1e-4, atol=1e-7)


# The mode itself


@pytest.mark.parametrize(
    "question",
    [
        lambda t: t.sum().item(),
        lambda t: bool((t > 0).any()),
        lambda t: int(t[0]),
        lambda t: t[t > 0],
        lambda t: t.nonzero(),
        lambda t: t.masked_select(t > 0),
        lambda t: t.unique(),
        lambda t: t.long().abs().bincount(),
        lambda t: torch.where(t > 0),
        lambda t: t.clone().index_put_((t > 0,), torch.zeros(())),
        lambda t: torch.repeat_interleave(t.long().abs()),
        lambda t: torch.equal(t, t + 1),
    ],
)
def test_the_mode_sees_every_read(question: Any) -> None:
    tensor, other = torch.randn(5), torch.ones(5)
    with pytest.raises(AsksTheHost), NoQuestions():
        question(tensor)
    with pytest.raises(AsksTheHost), NoQuestions(tensor):
        question(tensor * 2)
    with NoQuestions(tensor):
        question(other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_captured_step_equals_an_eager_one(variant: str) -> None:
    def on_device() -> Step:
        step, _ = make_step(variant)
        for module in (step.features, step.classifier, step.fishr):
            module.cuda()
        for p in [*step.features.parameters(), *step.classifier.parameters()]:
            p.grad = torch.zeros_like(p)
        return step

    classes = VARIANTS[variant][1]
    eager, captured = on_device(), on_device()
    batches = [tuple(t.cuda() for t in make_batch(seed, classes)) for seed in range(6)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for seed in range(3):
            captured(*batches[seed])
    torch.cuda.synchronize()
    static = [t.clone() for t in batches[0]]
    graph = torch.cuda.CUDAGraph()
    state = {name: t.clone() for name, t in captured.fishr.state_dict().items()}
    with torch.cuda.graph(graph):
        loss = captured(*static)
    # A capture computes nothing.
    for name, tensor in captured.fishr.state_dict().items():
        assert torch.equal(tensor, state[name])
    for seed in range(3):
        eager(*batches[seed])
    for seed in range(3, 6):
        for into, tensor in zip(static, batches[seed], strict=True):
            into.copy_(tensor)
        graph.replay()
        assert torch.allclose(loss, eager(*batches[seed]), rtol=1e-4, atol=1e-6)
    assert captured.fishr.steps.item() == 6
    assert torch.allclose(captured.fishr.v_bar, eager.fishr.v_bar, rtol=1e-3, atol=1e-7)
