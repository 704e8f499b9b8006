"""Private functions of torch stand in one module, and public code agrees with each of them.

Bit for bit, except for the optimisers' kernels, which round in another order.
"""

import ast
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import shoal
from shoal import internals
from shoal.algorithms import find
from shoal.internals import adam_step, find_non_finite, foreach, map_tensors, norms, sgd_step
from shoal.networks import MLP
from shoal.randomness import stream

SOURCE = Path(shoal.__file__).parent
DTYPES = (torch.float32, torch.float64)
# Of the optimisers' steps: the kernels add, multiply and divide in another order.
CLOSE = {torch.float32: 2e-6, torch.float64: 1e-13}


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield private modules and functions of torch by line; classes such as _BatchNorm are none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names if not node.level]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        else:
            continue
        for name in names:
            root, *parts = name.split(".") if re.fullmatch(r"[\w.]+", name) else [""]
            private = any(part[:1] == "_" and part[1:2].islower() for part in parts)
            if root in {"torch", "nn", "F"} and (private or "_C" in parts):
                yield node.lineno, name


def test_private_functions_stand_in_one_module() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in SOURCE.rglob("*.py")
        if path.name != "internals.py"
        for line, name in private_names(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "torch._foreach_add_(a, b)",
        "x = torch._C._functorch.peek_interpreter_stack()",
        "from torch.utils._pytree import tree_map",
        "import torch._dynamo",
        "sys.modules.get('torch._dynamo')",
        "nn.utils.parametrizations._weight_norm",
    ],
)
def test_a_private_function_is_found(code: str) -> None:
    assert list(private_names(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["torch.add(a, b)", "nn.modules.batchnorm._BatchNorm", "self._forward(x)", "torch.__version__"],
)
def test_what_is_public_is_not_found(code: str) -> None:
    assert not list(private_names(ast.parse(code)))


def make(dtype: torch.dtype = torch.float64, count: int = 3) -> list[Tensor]:
    draws = stream("internals", count, str(dtype))
    return [torch.randn(k + 1, 4, generator=draws, dtype=dtype) for k in range(count)]


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


# Arguments of every operation that the library calls.
ARGUMENTS: dict[str, Callable[[list[Tensor]], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "abs": lambda t: [((), {})],
    "abs_": lambda t: [((), {})],
    "add": lambda t: [((t,), {}), ((t,), {"alpha": -0.3}), ((tuple(t),), {"alpha": 2.0})],
    "add_": lambda t: [((t,), {}), ((t,), {"alpha": 0.7}), ((1e-10,), {})],
    "addcdiv": lambda t: [((t, [x.abs() + 1 for x in t]), {"value": -0.1})],
    "addcmul_": lambda t: [((t, t), {"value": 2 / 3})],
    "clamp_max_": lambda t: [((0.3,), {})],
    "clamp_min_": lambda t: [((0,), {})],
    "copy_": lambda t: [((t,), {})],
    "div": lambda t: [((3,), {})],
    "div_": lambda t: [((3,), {}), (([1.5, 2.5, 3.5],), {}), (([x.sum() for x in t],), {})],
    "lerp": lambda t: [((t, 0.3), {})],
    "lerp_": lambda t: [((t, 0.3), {})],
    "mul": lambda t: [((0.3,), {}), ((torch.tensor(0.7, dtype=t[0].dtype),), {})],
    "mul_": lambda t: [((0.3,), {}), ((t,), {}), ((torch.tensor(0.0),), {})],
    "reciprocal_": lambda t: [((), {})],
    "sign": lambda t: [((), {})],
    "sub": lambda t: [((t,), {})],
    "sub_": lambda t: [((t,), {}), ((0.5,), {}), (([torch.tensor(1.0)] * len(t),), {})],
    "tanh_": lambda t: [((), {})],
    "zero_": lambda t: [((), {})],
}


def used_operations() -> set[str]:
    calls = (
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "foreach"
    )
    return {str(ast.literal_eval(call.args[0])) for call in calls}


def test_every_operation_is_compared() -> None:
    assert used_operations() == set(ARGUMENTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operation", ARGUMENTS)
def test_operations_on_many_tensors(
    operation: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = make(dtype)
    for args, kwargs in ARGUMENTS[operation](copies(tensors)):
        plain, fast = copies(tensors), copies(tensors)
        with monkeypatch.context() as patch:
            patch.delattr(torch, f"_foreach_{operation}")
            expected = foreach(operation, plain, *args, **kwargs)
        found = foreach(operation, fast, *args, **kwargs)
        assert all(map(torch.equal, found, expected))
        assert all(map(torch.equal, fast, plain))
        one = args[0] if args else None
        first = (one[0] if isinstance(one, list | tuple) else one,) if args else ()
        more = tuple(arg[0] if isinstance(arg, list) else arg for arg in args[1:])
        alone = getattr(tensors[0].clone(), operation)(*first, *more, **kwargs)
        assert torch.equal(found[0], alone)
        if operation.endswith("_"):  # in place
            assert all(a is b for a, b in zip(found, fast, strict=True))
        else:
            assert all(map(torch.equal, fast, tensors))


def test_other_devices_take_public_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private function may be missing or wrong there; "meta" stands for any such device."""

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(torch, "_foreach_add", refuse)
    with pytest.raises(NotImplementedError):
        foreach("add", [torch.ones(2)], 1)
    (found,) = foreach("add", [torch.ones(2, device="meta")], 1)
    assert found.device.type == "meta"


def test_no_tensors_are_no_error() -> None:
    assert foreach("add_", [], 1) == norms([], 2) == []


@pytest.mark.parametrize("order", [1, 2])
def test_norms(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = make(torch.float32)
    tensors[0] *= 1e30  # its square overflows in float32
    found = norms(tensors, order, torch.float64)
    monkeypatch.delattr(torch, "_foreach_norm")
    expected = norms(tensors, order, torch.float64)
    assert all(map(torch.equal, found, expected))
    for norm, tensor in zip(found, tensors, strict=True):
        by_hand = tensor.double().abs().pow(order).sum().pow(1 / order)
        torch.testing.assert_close(norm, by_hand)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("bad", [None, torch.inf, -torch.inf, torch.nan])
def test_values_that_are_not_finite(
    bad: float | None, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not private:
        monkeypatch.delattr(torch, "_amp_foreach_non_finite_check_and_unscale_")
    tensors = [torch.ones(3), torch.full((2, 2), 3e38), torch.ones(4)]
    if bad is not None:
        tensors[2][1] = bad
    before = copies(tensors)
    found = torch.zeros(())
    find_non_finite(tensors, found)
    assert found == float(bad is not None)
    torch.testing.assert_close(tensors, before, rtol=0, atol=0, equal_nan=True)
    find_non_finite([torch.ones(2)], found)
    assert found == float(bad is not None)  # never reset


class State(NamedTuple):
    weights: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    counts: list[Tensor]

    @staticmethod
    def new(dtype: torch.dtype) -> "State":
        weights = make(dtype)
        zeros = [[torch.zeros_like(w) for w in weights] for _ in range(2)]
        return State(weights, *zeros, [torch.zeros(()) for _ in weights])


RATES = (0.01, torch.tensor(0.01))
GO, STOP = torch.zeros(()), torch.ones(())


def steps(rule: str, dtype: torch.dtype, lr: float | Tensor, momentum: float) -> State:
    """Return the state after three steps and one that is stopped."""
    betas = (momentum, 0.999)
    state = State.new(dtype)
    for step in range(4):
        grads = [w.sin() + 0.1 * step for w in state.weights]
        stop = GO
        if step == 3:
            stop, grads = STOP, [torch.full_like(g, torch.nan) for g in grads]
        if rule == "sgd":
            velocities = state.means if momentum else []
            sgd_step(
                state.weights,
                grads,
                velocities,
                lr=lr,
                weight_decay=0.1,
                momentum=momentum,
                stop=stop,
            )
            continue
        foreach("add_", state.counts, 1)
        adam_step(
            state.weights,
            grads,
            state.means,
            state.squares,
            state.counts,
            lr=lr,
            weight_decay=0.1,
            betas=betas,
            eps=1e-8,
            decoupled=rule == "adamw",
            stop=stop,
        )
    return state


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lr", RATES, ids=["number", "tensor"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rule", ["adam", "adamw", "sgd"])
def test_steps_of_optimisers(
    rule: str,
    dtype: torch.dtype,
    lr: float | Tensor,
    momentum: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = steps(rule, dtype, lr, momentum)
    monkeypatch.delattr(torch, f"_fused_{rule}_")
    expected = steps(rule, dtype, lr, momentum)
    tolerance = {"rtol": CLOSE[dtype], "atol": CLOSE[dtype]}
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)
    of_torch = steps_of_torch(rule, dtype, float(lr), momentum)
    torch.testing.assert_close(expected.weights, of_torch, **tolerance)


def steps_of_torch(rule: str, dtype: torch.dtype, lr: float, momentum: float) -> list[Tensor]:
    """Return the weights after three steps of torch's own optimiser."""
    weights = [nn.Parameter(w) for w in make(dtype)]
    options: dict[str, Any] = {"lr": lr, "weight_decay": 0.1, "foreach": False}
    if rule == "sgd":
        optimiser: torch.optim.Optimizer = torch.optim.SGD(weights, momentum=momentum, **options)
    else:
        kind = torch.optim.AdamW if rule == "adamw" else torch.optim.Adam
        optimiser = kind(weights, betas=(momentum, 0.999), **options)
    for step in range(3):
        for weight in weights:
            weight.grad = weight.detach().sin() + 0.1 * step
        optimiser.step()
    return [weight.detach() for weight in weights]


NAMES = [f"_foreach_{name}" for name in ARGUMENTS]
NAMES += ["_foreach_norm", "_fused_adam_", "_fused_adamw_", "_fused_sgd_"]
NAMES += ["_amp_foreach_non_finite_check_and_unscale_"]


@pytest.mark.parametrize("name", ["fishr", "mldg", "fish", "sand-mask", "sagm"])
def test_methods_train_without_private_functions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> list[Tensor]:
        draws = stream("train", name)
        model = MLP(3, 5, 2).double()
        nn.utils.vector_to_parameters(
            torch.randn(
                sum(p.numel() for p in model.parameters()), generator=draws, dtype=torch.float64
            ),
            model.parameters(),
        )
        algorithm = find(name)(model, num_domains=3)
        for _ in range(3):
            batches = [
                (torch.randn(6, 3, generator=draws, dtype=torch.float64), torch.arange(6) % 2)
                for _ in range(3)
            ]
            algorithm.check(algorithm.update(batches))
        return [p.detach() for p in algorithm.model.parameters()]

    expected = train()
    for private in NAMES:
        monkeypatch.delattr(torch, private)
    torch.testing.assert_close(train(), expected, rtol=1e-9, atol=1e-12)


def convolutional_penalty() -> list[Tensor]:
    draws = stream("penalty")
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
    )
    model = model.double().eval()
    for p in model.parameters():
        p.data.copy_(torch.randn(p.shape, generator=draws, dtype=torch.float64))
    inputs = torch.randn(8, 1, 6, 6, generator=draws, dtype=torch.float64)
    v = shoal.gradient_variance(model, inputs, torch.arange(8) % 2, torch.arange(8) // 4)
    return [v.detach(), *torch.autograd.grad(shoal.spread(v), list(model.parameters()))]


def test_double_backward_that_cannot_ask_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = convolutional_penalty()
    asked: list[bool] = []
    ask = torch._C._will_engine_execute_node

    def engine(node: Any) -> bool:
        asked.append(bool(ask(node)))
        return asked[-1]

    monkeypatch.setattr(torch._C, "_will_engine_execute_node", engine)
    assert all(map(torch.equal, convolutional_penalty(), expected))
    assert set(asked) == {True, False}  # it saves work
    monkeypatch.delattr(torch._C, "_will_engine_execute_node")
    assert all(map(torch.equal, convolutional_penalty(), expected))


def test_hooks_on_saved_tensors() -> None:
    seen = []

    def note(x: Tensor) -> Tensor:
        seen.append(internals.tensors_are_hooked())
        return x.sin().exp()

    x = torch.ones(2, requires_grad=True)
    assert not internals.tensors_are_hooked()
    checkpoint(note, x, use_reentrant=False).sum().backward()
    assert seen == [True, True]  # forward, and again in the backward
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        assert internals.tensors_are_hooked()
        note(x)
    assert not internals.tensors_are_hooked()
    torch.func.grad(lambda x: note(x).sum())(x.detach())  # which forbids hooks
    assert seen[-1] is False


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.vmap(f)(torch.ones(2, 1)),
        lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(1)),
        lambda f: torch.func.jvp(f, (torch.ones(1),), (torch.ones(1),)),
        lambda f: torch.func.functionalize(f)(torch.ones(1)),
    ],
    ids=["vmap", "grad", "jvp", "functionalize"],
)
def test_transforms(transform: Callable[[Callable[[Tensor], Tensor]], object]) -> None:
    seen = []

    def note(x: Tensor) -> Tensor:
        seen.append(internals.transforms_are_active())
        assert seen[-1] == (torch._C._functorch.peek_interpreter_stack() is not None)
        return x.exp()

    transform(note)
    assert seen == [True]
    assert not internals.transforms_are_active()


def test_weight_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert internals.is_weight_norm(torch._weight_norm)
    assert not internals.is_weight_norm(torch.add)
    monkeypatch.delattr(torch, "_weight_norm")
    assert not internals.is_weight_norm(torch.add)
    assert not internals.is_weight_norm(None)


@pytest.mark.parametrize("private", [True, False])
def test_compiled_modules(private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    if not private:
        monkeypatch.delattr(torch._dynamo, "OptimizedModule")
    assert internals.compiler_is_loaded()
    assert internals.is_compiled_copy(compiled)
    assert not internals.is_compiled_copy(model)
    assert not internals.is_compiled_in_place(model)
    model.compile(backend="eager")
    assert internals.is_compiled_in_place(model)
    assert not internals.is_compiled_copy(model)
    internals.decompile(model)
    assert not internals.is_compiled_in_place(model)


@pytest.mark.parametrize("private", [True, False])
def test_lengths_that_change(private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    if not private:
        monkeypatch.delattr(torch._dynamo, "maybe_mark_dynamic")
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    double = torch.compile(lambda x: 2 * x, backend=backend)
    for length in (3, 4, 5, 6):
        x = torch.arange(float(length))
        internals.mark_dynamic(x)
        assert torch.equal(double(x), 2 * x)
    assert len(graphs) == (1 if private else 2)


def test_recompilations(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=8):
        internals.allow_recompilations(64)
        assert config.recompile_limit == 64
        internals.allow_recompilations(16)
        assert config.recompile_limit == 64
    limit = config.recompile_limit
    monkeypatch.delattr(torch._dynamo, "config")
    internals.allow_recompilations(limit + 1)
    assert config.recompile_limit == limit


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize("private", [True, False])
def test_trees_of_tensors(private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not private:
        monkeypatch.delattr("torch.utils._pytree.tree_map")

    def tree(x: Tensor) -> Any:
        nested = {"a": x, "b": [x + 1, (x + 2,)]}
        return nested, Pair(x + 3, x + 4), OrderedDict(z=x + 5), [x + 6]

    low, high = torch.zeros(1), torch.ones(2)
    found = map_tensors(lambda *parts: torch.cat(parts), tree(low), tree(high))
    whole = torch.cat([low, high])
    expected = tree(whole)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert type(found[1]) is Pair and type(found[2]) is OrderedDict
    assert torch.equal(map_tensors(lambda *parts: torch.cat(parts), low, high), whole)


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler sees what the mode sees, and the scratch memory of kernels on top."""

    def peak() -> tuple[float, int]:
        with internals.trace_memory() as living:
            kept = torch.zeros(1000)  # 4,000 bytes
            for _ in range(3):
                torch.zeros(500).add_(1)  # 2,000, given back each time
            kept[:1].clone()
        return living.peak, len(living.trace)

    by_mode, changes = peak()
    assert (by_mode, changes) == (6000, 5)
    monkeypatch.setattr(internals, "_Dispatch", object)
    by_profiler, _ = peak()
    assert by_mode <= by_profiler <= 1.1 * by_mode


def test_a_budget_of_memory_without_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4)).double()
    inputs, labels = torch.randn(64, 32, dtype=torch.float64), torch.arange(64) % 4
    arguments = (model, inputs, labels, torch.arange(64) // 32)
    whole = shoal.gradient_variance(*arguments)
    peaks = []
    for dispatch in (internals._Dispatch, object):
        monkeypatch.setattr(internals, "_Dispatch", dispatch)
        with internals.trace_memory() as living:
            shoal.gradient_variance(*arguments).sum().backward()
        peaks.append(living.peak)
    assert peaks[0] <= peaks[1] <= 1.5 * peaks[0]
    within = shoal.gradient_variance(*arguments, memory=int(0.8 * peaks[0]))
    torch.testing.assert_close(within, whole)
