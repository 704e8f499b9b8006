"""Streams: a backward that hands over each layer's gradients when it reaches the layer.

For statistics that need no gradient of their own. Memory holds the activations of one chunk, which
the backward frees as it goes, and the individual gradients of one layer.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..replay import Randomness, part_of_batch
from .collect import accounts_for, collect, random_weights
from .double_backward import once_differentiable
from .examples import Examples, Loss, individual_losses
from .job import Job, Routes
from .materialised import AutogradGradients
from .precision import precise, rounding
from .recording import LayerCall, Recording, WeightGradients, tensors_of
from .sharding import origin_of
from .vmap import Functional, individual_gradients

Take = Callable[[WeightGradients], None]

# Examples on which the layers' gradients are compared with autograd's.
FEW = 8


@dataclass
class RouteCheck:
    """The routes that were found, and the number of calls so far."""

    routes: Routes
    calls: int = 0


_checks: WeakKeyDictionary[nn.Module, dict[Any, RouteCheck]] = WeakKeyDictionary()


def routes_of(job: Job) -> Routes:
    """Return the routes of a job's weights, verified on a few examples on calls 1, 2, 4, 8 …"""
    known = _checks.setdefault(origin_of(job.model), {})
    few = min(len(job.examples), FEW)  # one example alone proves little
    key = (job.model.training, few, rounding(next(iter(job.weights.values()))), *job.weights)
    check = known.get(key)
    if check is None or (check.calls + 1) & check.calls == 0:
        found = _find_routes(job)
        check = known.setdefault(key, RouteCheck(found))
        check.routes = found
    check.calls += 1
    return check.routes


def _find_routes(job: Job) -> Routes:
    examples = _detached(job.examples.take(slice(0, FEW)))
    # Every forward has the same dropout masks, and the caller's random state stays as it was.
    state = Randomness.now(job.device, job.model)
    with state.restored():
        losses, entries = collect(job.model, job.weights, examples, job.loss, create_graph=False)
        draws = state.has_moved()
    owned = job.owners
    missed = {name for entry in entries if entry.source.shared for name in entry.names}
    missed.update(name for name in job.weights if name not in owned)
    layers = tuple(name for name in job.weights if name not in missed)
    alike = [
        name
        for name in job.weights
        if name in missed and job.weights[name].ndim > 1 and len(job.weights[name]) == 1
    ]
    copied = []
    for name in alike:
        with state.restored():
            if _copies_account_for(job, name, examples, losses):
                copied.append(name)
    rest = tuple(name for name in job.weights if name in missed and name not in copied)
    return Routes(layers, tuple(copied), rest, draws)


def _copies_account_for(job: Job, name: str, examples: Examples, losses: Tensor) -> bool:
    """Return whether copies of a weight, one for each example, give its individual gradients."""
    weight = job.weights[name]
    with torch.enable_grad():
        total = (random_weights(losses) * losses).sum()
    (whole,) = torch.autograd.grad(total, weight, retain_graph=True, allow_unused=True)
    if whole is None:
        return False
    copies = _copies(weight, len(examples))
    values = {other: p.detach() for other, p in job.model.named_parameters()} | {name: copies}
    with torch.enable_grad(), once_differentiable(job.modules):
        try:
            found = examples.losses(Functional(job.model, values), job.loss)
        except (RuntimeError, ValueError, IndexError, AssertionError):  # for another shape
            return False
        (r,) = torch.autograd.grad(found.sum(), copies, allow_unused=True)
    same = torch.allclose(found, losses, rtol=1e-2 if rounding(weight) else 1e-4, atol=1e-6)
    return same and r is not None and accounts_for(_of_copies(name, r), whole.flatten(), losses)


def _copies(weight: Tensor, n: int) -> Tensor:
    return weight.detach().expand(n, *weight.shape[1:]).requires_grad_()


def _of_copies(name: str, r: Tensor) -> WeightGradients:
    source = AutogradGradients(r[0].numel(), lambda _, r: r.flatten(1))
    return WeightGradients((name,), source, [r, precise(r)])


def _detached(examples: Examples) -> Examples:
    return examples.with_tensors([t.detach() for t in examples.tensors], examples.labels)


class Stream:
    """The recorded forward of some examples, for one backward or several.

    Args:
        part: the examples of the job.
    """

    def __init__(self, job: Job, part: slice) -> None:
        self.job, self.routes = job, job.routes or routes_of(job)
        routes = self.routes
        self.examples = _detached(job.examples.take(part))
        self._copies = {
            name: _copies(job.weights[name], len(self.examples)) for name in routes.copied
        }
        # Nothing else requires a gradient, so layers whose input requires none come first.
        layers = {name: job.weights[name] for name in routes.layers}
        held = {name: p.detach() for name, p in job.trainable.items() if name not in layers}
        model = Functional(job.model, held | self._copies)
        self._recording = Recording(layers)
        draws = routes.draws or any(module.training for module in job.modules)
        masks = part_of_batch(part.start, part.stop, len(job.examples), draws)
        recorded, safe = self._recording.of(job.modules), once_differentiable(job.modules)
        with torch.enable_grad(), masks, recorded, safe:
            self.logits = self.examples.logits(model, job.loss)

    def backward(self, loss: Loss | None, labels: Tensor, take: Take, last: bool = True) -> None:
        """Hand the gradients of ℓ_i = loss(logits, labels)_i over to ``take``, layer by layer.

        Args:
            last: whether no other backward follows; layers are then forgotten one by one.
        """
        with torch.enable_grad():
            total = individual_losses(self.logits, labels, loss).sum()
        arrivals = Arrivals(self.job, self._recording, take, last)
        if last:
            self._recording.calls = {}
            del self.logits
        handles = arrivals.expect()
        ends = [*arrivals.first.values(), *self._copies.values()]
        try:
            found = self._gradients(total, ends, last)
        finally:
            for handle in handles:
                handle.remove()
        with torch.no_grad(), self.job.outside_autocast():
            for k, r in zip(arrivals.first, found, strict=False):
                arrivals.arrive(k, r)
            for name, r in zip(self._copies, found[len(arrivals.first) :], strict=True):
                if r is not None:
                    take(_of_copies(name, r))
            arrivals.finish()
            if self.routes.rest:
                take(self._rest(loss, labels))

    def _gradients(self, total: Tensor, ends: list[Any], last: bool) -> tuple[Any, ...]:
        if not ends or not total.requires_grad:
            return (None,) * len(ends)
        return torch.autograd.grad(total, ends, retain_graph=not last, allow_unused=True)

    def _rest(self, loss: Loss | None, labels: Tensor) -> WeightGradients:
        examples = self.examples.with_tensors(self.examples.tensors, labels)
        names = self.routes.rest
        function, tensors, shared = individual_gradients(self.job.model, names, examples, loss)
        size = sum(self.job.weights[name].numel() for name in names)
        return WeightGradients(names, AutogradGradients(size, function, shared), tensors)


class Arrivals:
    """The layers' calls that wait for their r, in one backward.

    A weight's gradients are complete with its only call, or at the end if it has several.
    """

    def __init__(self, job: Job, recording: Recording, take: Take, last: bool) -> None:
        self.job, self.take, self.last = job, take, last
        self.owners = job.owners
        self.waiting = dict(enumerate(call for many in recording.calls.values() for call in many))
        self.weights: dict[int, dict[str, Tensor]] = {}  # by their only call
        self.late: dict[str, Tensor] = {}
        self.late_calls: dict[nn.Module, list[LayerCall]] = {}
        numbers = {id(call): k for k, call in self.waiting.items()}
        for name, weight in recording.weights.items():
            calls = [
                call
                for module, _ in self.owners.get(name, [])
                for call in recording.calls.get(module, [])
            ]
            if len(calls) == 1:
                self.weights.setdefault(numbers[id(calls[0])], {})[name] = weight
            elif calls:
                self.late[name] = weight
                self.late_calls.update({c.module: recording.calls[c.module] for c in calls})
        # Calls with nothing recorded before them: the backward ends there.
        self.first = {k: call.edge for k, call in self.waiting.items() if not call.z.requires_grad}

    def expect(self) -> list[Any]:
        """Have every other call arrive when the backward reaches it; return the hooks' handles."""
        return [
            call.edge.node.register_prehook(self._hook(k, call.edge.output_nr))
            for k, call in self.waiting.items()
            if k not in self.first
        ]

    def _hook(self, k: int, output: int) -> Callable[[tuple[Tensor | None, ...]], None]:
        def reached(grads: tuple[Tensor | None, ...]) -> None:
            with self.job.outside_autocast():  # a backward without a graph has no gradients
                self.arrive(k, grads[output])

        return reached

    def arrive(self, k: int, r: Tensor | None) -> None:
        """Take the gradients of the weights whose only call this is."""
        call = self.waiting.pop(k) if self.last else self.waiting[k]
        if r is None:
            return
        call.r = r  # of a backward without a graph
        for entry in self._entries(k, call):
            self.take(entry)
        if call.module not in self.late_calls:
            call.r = None

    def _entries(self, k: int, call: LayerCall) -> list[WeightGradients]:
        """Return the entries of the weights whose only call this is."""
        weights = self.weights.get(k, {})
        key = (call.module, call.z.ndim, *weights)
        if key not in self.job.sources:
            entries = Recording(weights, {call.module: [call]}).entries(self.owners)
            self.job.sources[key] = [(entry.names, entry.source) for entry in entries]
            return entries
        return [
            WeightGradients(names, source, tensors_of(source, [call]), call)
            for names, source in self.job.sources[key]
        ]

    def finish(self) -> None:
        """Take the gradients of the weights with several calls."""
        for entry in Recording(self.late, self.late_calls).entries(self.owners):
            self.take(entry)
        for calls in self.late_calls.values():
            for call in calls:
                call.r = None


def streams(job: Job) -> Iterator[tuple[slice, Stream]]:
    """Yield each chunk of the examples with its recorded forward."""
    randomness = Randomness.now(job.device, job.model)
    for part in job.chunks():
        # Every chunk draws from the state of the whole batch, and only the first advances it.
        with randomness.restored() if part.start else nullcontext():
            stream = Stream(job, part)
        yield part, stream
        del stream  # before the next chunk runs
