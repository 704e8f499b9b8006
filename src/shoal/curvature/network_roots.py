"""Roots of Fisher matrices and tangent kernels in any weights, by Gram matrices layer by layer."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ..gradients.asked import job_of
from ..gradients.formed import BUDGET
from ..gradients.groups import Sorted
from ..gradients.inputs import Inputs
from ..gradients.job import Form, Job
from ..gradients.precision import full_precision
from ..gradients.recording import Entry
from ..gradients.selection import Parameters
from ..gradients.sources import LinearOnVectors
from .network import recorded, root_entries
from .roots import Roots, check_rows


def network_roots(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    domains: Tensor,
    parameters: Parameters = "all",
    *,
    kind: str = "fisher",
    num_domains: int | None = None,
    chunk_size: int | None = None,
) -> Roots:
    """Return the roots of F_e / n_e in any weights, or of the tangent kernel.

    Args:
        kind: "fisher", or "tangent" for ∇_θ f of every logit over √n_e, whose Gram matrix is the
            neural tangent kernel K_e / n_e.
        chunk_size: examples that are run together; what layers leave behind is kept of all.
        others: as in ``network_diagonals``.
    """
    job = job_of(
        model, inputs, labels, domains, parameters, Form(False), None, num_domains, chunk_size
    )
    pieces: list[tuple[int, list[Entry], int]] = []
    for domain, part in job.groups.chunks(job.chunk_size or max(job.groups.sizes)):
        recording, examples, logits = recorded(job, part)
        for entries in root_entries(job, recording, examples, logits, kind):
            detached = [Entry(e.names, e.source, [t.detach() for t in e.tensors]) for e in entries]
            pieces.append((domain, detached, len(examples)))
    return _assembled(job, pieces)


def _assembled(job: Job, pieces: Sequence[tuple[int, list[Entry], int]]) -> Roots:
    """Return the roots of pieces of one domain and one direction of the logits each."""
    lengths = [n for _, _, n in pieces]
    check_rows(sum(lengths))
    size = sum(weight.numel() for weight in job.weights.values())
    device = job.device
    gram = torch.zeros(sum(lengths), sum(lengths), dtype=torch.float64, device=device)
    diagonal = torch.zeros(job.groups.num_domains, size, dtype=torch.float64, device=device)
    starts = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    shares = [1 / max(n, 1) for n in job.groups.sizes]
    columns = job.columns()
    for a, (domain, entries, n) in enumerate(pieces):
        together = Sorted((n,), device)
        for entry in entries:
            _, squares = entry.source.moments(entry.tensors, together, False)
            for name, row in job.split(entry, squares).items():
                diagonal[domain, columns[name]] += row[0].double() * shares[domain]
        for b, (other, theirs, _) in enumerate(pieces[: a + 1]):
            block = _products(entries, theirs) * (shares[domain] * shares[other]) ** 0.5
            rows, across = (slice(starts[k], starts[k + 1]) for k in (a, b))
            gram[rows, across], gram[across, rows] = block, block.mT
    counted = [sum(n for e, _, n in pieces if e == k) for k in range(job.groups.num_domains)]
    return Roots(gram, tuple(counted), size, diagonal)


def _products(left: Sequence[Entry], right: Sequence[Entry]) -> Tensor:
    """Return ⟨g_i, g_j⟩ over all weights, for rows i of one piece and j of another."""
    total: Tensor | None = None
    others = {entry.names: entry for entry in right}
    for entry in left:
        found = _product(entry, others[entry.names])
        total = found if total is None else total + found
    if total is None:
        raise ValueError("the logits depend on none of the chosen weights")
    return total


def _product(left: Entry, right: Entry) -> Tensor:
    if isinstance(left.source, LinearOnVectors):
        (z, r), (y, s) = left.tensors, right.tensors
        inner = z.double() @ y.double().mT + float(left.source.bias)
        return inner.mul_(r.double() @ s.double().mT)
    size = max(BUDGET // left.source.size, 1)
    with full_precision():
        rows = [
            torch.cat([g @ h.mT for h in _gradients(right, size)], 1)
            for g in _gradients(left, size)
        ]
    return torch.cat(rows).double()


def _gradients(entry: Entry, size: int) -> Iterator[Tensor]:
    """Yield the individual gradients of so many rows at a time, ``[size, P_l]``."""
    batched = len(entry.tensors) - entry.source.shared
    for start in range(0, len(entry.tensors[0]), size):
        part = slice(start, start + size)
        cut = [t[part] if k < batched else t for k, t in enumerate(entry.tensors)]
        with torch.no_grad():
            yield entry.source.individual(cut)
