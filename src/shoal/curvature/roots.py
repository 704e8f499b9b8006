"""Roots of domains' matrices: F_e = S_eᵀS_e, known by the inner products of the rows of S_e.

The rows of all domains have one Gram matrix. Its blocks S_A S_Bᵀ determine the spectrum of every
F_e, the angles between their eigenvectors, and max θᵀF_Bθ for bounded θᵀF_Aθ, without a P × P
matrix. Everything here is float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..gradients.domains import SortedDomains
from ..gradients.examples import Inputs
from ..gradients.job import Job
from ..gradients.materialised import BUDGET
from ..gradients.parameters import Parameters
from ..gradients.precision import full_precision
from ..gradients.recording import WeightGradients
from ..gradients.sources import Form, LinearOnVectors
from .diagonals import logit_roots, sort_head
from .network import record_forward, root_entries

# Up to this many weights a matrix is formed.
DENSE = 2048
# Rows of a Gram matrix, at most: 2 GiB.
LARGEST = 16_384


@dataclass(frozen=True, kw_only=True)
class Roots:
    """The Gram matrix of the rows of all S_e, ``sizes`` of them for each domain, of P ``weights``.

    ``diagonal`` is that of each F_e, ``[E, P]``; ``matrices`` are the F_e, if small enough.
    """

    gram: Tensor
    sizes: tuple[int, ...]
    weights: int
    diagonal: Tensor
    matrices: Tensor | None = None

    def block(self, a: int, b: int) -> Tensor:
        """Return S_a S_bᵀ."""
        starts = [sum(self.sizes[:e]) for e in (a, b)]
        rows, columns = (slice(s, s + self.sizes[e]) for s, e in zip(starts, (a, b), strict=True))
        return self.gram[rows, columns]

    def eigen(self, domain: int) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues of S_e S_eᵀ, largest first and none negative, and its vectors."""
        values, vectors = torch.linalg.eigh(self.block(domain, domain))
        return values.flip(0).clamp(min=0), vectors.flip(1)


def of_matrices(matrices: Tensor) -> Roots:
    """Return the roots of symmetric matrices without negative eigenvalues, ``[E, P, P]``."""
    values, vectors = torch.linalg.eigh(matrices.double())
    root = (values.clamp(min=0).sqrt()[:, None] * vectors).mT.flatten(0, 1)
    count, size, _ = matrices.shape
    return Roots(
        gram=root @ root.mT,
        sizes=(size,) * count,
        weights=size,
        diagonal=matrices.double().diagonal(dim1=1, dim2=2),
        matrices=matrices.double(),
    )


@torch.no_grad()
def head_roots(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    domains: Tensor,
    *,
    bias: bool = True,
    num_domains: int | None = None,
) -> Roots:
    """Return the roots of F_e / n_e of a linear classifier, which also is its Hessian H_e.

    Arguments as in ``head_diagonals``. Beyond ``DENSE`` weights there are n · K rows (K = 1 for
    two classes, otherwise C). More than ``LARGEST`` of them raise: pass fewer examples.
    """
    z, logits, _, groups = sort_head(features, logits, labels, domains, num_domains)
    a = logit_roots(logits.double())
    a = a / groups.expand(groups.counts.double().clamp(min=1).sqrt())[:, None, None]
    z = z.double()
    z = torch.cat([z, z.new_ones(len(z), 1)], 1) if bias else z
    weights = a.shape[2] * z.shape[1]
    if weights <= DENSE:
        return of_matrices(_weight_first(_dense(z, a, groups), a.shape[2], z.shape[1], bias))
    check_rows(a.shape[0] * a.shape[1])
    squares = groups.outer(a.square().sum(1), z.square())
    diagonal = [squares[:, :, :-1].flatten(1), squares[:, :, -1]] if bias else [squares.flatten(1)]
    rows, every = a.flatten(0, 1), z.repeat_interleave(a.shape[1], 0)
    sizes = tuple(n * a.shape[1] for n in groups.sizes)
    gram = (rows @ rows.mT).mul_(every @ every.mT)
    return Roots(gram=gram, sizes=sizes, weights=weights, diagonal=torch.cat(diagonal, 1))


def _dense(z: Tensor, a: Tensor, groups: SortedDomains) -> Tensor:
    """Return F_e, ``[E, C k, C k]``, with the k inputs of each class in turn."""
    size = a.shape[2] * z.shape[1]
    found = z.new_zeros(groups.num_domains, size, size)
    for domain, part in groups.chunks(max(BUDGET // (8 * size * a.shape[1]), 1)):
        rows = torch.einsum("nkc,ni->nkci", a[part], z[part]).reshape(-1, size)
        found[domain] += rows.mT @ rows
    return found


def _weight_first(matrices: Tensor, outputs: int, inputs: int, bias: bool) -> Tensor:
    """Return the matrices with the weight's rows and columns before the bias's."""
    if not bias:
        return matrices
    order = torch.arange(outputs * inputs, device=matrices.device).reshape(outputs, inputs)
    order = torch.cat([order[:, :-1].flatten(), order[:, -1]])
    return matrices[:, order][:, :, order]


def check_rows(rows: int) -> None:
    """Raise if a Gram matrix would be too large."""
    if rows > LARGEST:
        raise ValueError(
            f"the Gram matrix would have {rows:,} rows, more than {LARGEST:,}; pass fewer examples "
            "of each domain"
        )


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
        chunk_size: examples that run together; the layers' tensors are kept for all examples.
        others: as in ``network_diagonals``.
    """
    job = Job.prepare(
        model,
        inputs,
        labels,
        domains,
        parameters=parameters,
        form=Form(centered=False),
        num_domains=num_domains,
        chunk_size=chunk_size,
    )
    pieces: list[tuple[int, list[WeightGradients], int]] = []
    for domain, part in job.groups.chunks(job.chunk_size or max(job.groups.sizes)):
        recording, examples, logits = record_forward(job, part)
        for entries in root_entries(job, recording, examples, logits, kind):
            detached = [
                WeightGradients(e.names, e.source, [t.detach() for t in e.tensors]) for e in entries
            ]
            pieces.append((domain, detached, len(examples)))
    return _assemble(job, pieces)


def _assemble(job: Job, pieces: Sequence[tuple[int, list[WeightGradients], int]]) -> Roots:
    """Return the roots of pieces, each of one domain and one direction of the logits."""
    lengths = [n for _, _, n in pieces]
    check_rows(sum(lengths))
    device = job.device
    gram = torch.zeros(sum(lengths), sum(lengths), dtype=torch.float64, device=device)
    diagonal = torch.zeros(job.groups.num_domains, job.size, dtype=torch.float64, device=device)
    starts = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    shares = [1 / max(n, 1) for n in job.groups.sizes]
    columns = job.columns()
    for a, (domain, entries, n) in enumerate(pieces):
        together = SortedDomains((n,), device)
        for entry in entries:
            _, squares = entry.source.moments(entry.tensors, together, False)
            for name, row in job.split(entry, squares).items():
                diagonal[domain, columns[name]] += row[0].double() * shares[domain]
        for b, (other, theirs, _) in enumerate(pieces[: a + 1]):
            block = _products(entries, theirs) * (shares[domain] * shares[other]) ** 0.5
            rows, across = (slice(starts[k], starts[k + 1]) for k in (a, b))
            gram[rows, across], gram[across, rows] = block, block.mT
    counted = [sum(n for e, _, n in pieces if e == k) for k in range(job.groups.num_domains)]
    return Roots(gram=gram, sizes=tuple(counted), weights=job.size, diagonal=diagonal)


def _products(left: Sequence[WeightGradients], right: Sequence[WeightGradients]) -> Tensor:
    """Return ⟨g_i, g_j⟩ over all weights, for rows i of one piece and j of another."""
    total: Tensor | None = None
    others = {entry.names: entry for entry in right}
    for entry in left:
        found = _product(entry, others[entry.names])
        total = found if total is None else total + found
    if total is None:
        raise ValueError("the logits depend on none of the chosen weights")
    return total


def _product(left: WeightGradients, right: WeightGradients) -> Tensor:
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


def _gradients(entry: WeightGradients, size: int) -> Iterator[Tensor]:
    """Yield the individual gradients, ``[size, P_l]`` at a time."""
    batched = len(entry.tensors) - entry.source.shared
    for start in range(0, len(entry.tensors[0]), size):
        part = slice(start, start + size)
        cut = [t[part] if k < batched else t for k, t in enumerate(entry.tensors)]
        with torch.no_grad():
            yield entry.source.individual(cut)
