"""Trees: an ensemble of decision trees as a network, held in plain arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .base import Network

# Pairs of a row and a tree that are followed at a time: many for each operation, few for caches.
TOGETHER = 80_000
# Probabilities are at least this, so that their logarithms are finite.
SMALLEST = 1e-9


Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class TreeNodes:
    """The nodes of one tree in any order, the root first.

    Args:
        feature: the column that a node looks at; −1 at a leaf.
        threshold: rows with at most this number go to the node ``left``, others to ``right``.
        missing_left: whether rows without the number go to the left.
        value: what a leaf adds, ``[nodes, K]``.
    """

    feature: Array
    threshold: Array
    left: Array
    right: Array
    missing_left: Array
    value: Array

    def breadth_first(self) -> Array:
        """Return the nodes level by level, the children of a node next to each other."""
        level, found = np.zeros(1, dtype=np.int64), list[Array]()
        while len(level):
            found.append(level)
            inner = level[self.feature[level] >= 0]
            level = np.stack([self.left[inner], self.right[inner]], 1).reshape(-1)
        return np.concatenate(found)


class Trees(nn.Module):
    """The values of the leaves that a row reaches, summed over the trees: ``[n, d]`` to ``[n, K]``.

    The nodes of all trees are in one list. From a node, a row goes on to node ``left`` if its
    number in column ``feature`` is at most ``threshold``, and otherwise to the node after that one;
    if the number is missing, ``missing_left`` decides. A leaf has the feature −1, and ``left`` is
    its row of ``values``. Tree t begins at ``roots[t]`` and adds to the outputs of ``groups[t]``:
    each group has as many outputs as ``values`` has columns.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    missing_left: Tensor
    roots: Tensor
    groups: Tensor
    base: Tensor

    def __init__(self, *, nodes: int, leaves: int, width: int, trees: int, groups: int) -> None:
        super().__init__()
        self.register_buffer("feature", torch.full((nodes,), -1, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(nodes))
        self.register_buffer("left", torch.zeros(nodes, dtype=torch.int32))
        self.register_buffer("missing_left", torch.zeros(nodes, dtype=torch.bool))
        self.register_buffer("roots", torch.zeros(trees, dtype=torch.int32))
        self.register_buffer("groups", torch.zeros(trees, dtype=torch.int32))
        self.register_buffer("base", torch.zeros(groups * width, dtype=torch.float64))
        self.values = nn.Parameter(torch.zeros(leaves, width), requires_grad=False)

    @staticmethod
    def of(trees: Sequence[TreeNodes], groups: Sequence[int], base: Array) -> "Trees":
        """Return these trees; tree t adds to the outputs of ``groups[t]``, on top of ``base``."""
        orders = [tree.breadth_first() for tree in trees]
        inner = [tree.feature[order] >= 0 for tree, order in zip(trees, orders, strict=True)]
        width = trees[0].value.shape[1]
        found = Trees(
            nodes=sum(map(len, orders)),
            leaves=sum(int((~one).sum()) for one in inner),
            width=width,
            trees=len(trees),
            groups=len(base) // width,
        )
        node = leaf = 0
        for number, (tree, order, goes_on) in enumerate(zip(trees, orders, inner, strict=True)):
            here, leaves = slice(node, node + len(order)), int((~goes_on).sum())
            # The children of the k-th node that goes on are the nodes 2k + 1 and 2k + 2.
            child = 2 * np.cumsum(goes_on) - 1
            left = np.where(goes_on, node + child, leaf + np.cumsum(~goes_on) - 1)
            arrays = {
                found.feature: np.where(goes_on, tree.feature[order], -1),
                found.threshold: np.where(goes_on, round_down(tree.threshold[order]), 0.0),
                found.left: left,
                found.missing_left: goes_on & tree.missing_left[order].astype(bool),
            }
            for tensor, array in arrays.items():
                tensor[here] = torch.from_numpy(array).to(tensor.dtype)
            values = torch.from_numpy(tree.value[order][~goes_on])
            found.values[leaf : leaf + leaves] = values.float()
            found.roots[number] = node
            node, leaf = node + len(order), leaf + leaves
        found.groups.copy_(torch.tensor(groups))
        found.base.copy_(torch.from_numpy(base))
        return found

    def check(self, columns: int) -> None:
        """Raise if the arrays are no trees on this many columns."""
        nodes, (leaves, width) = len(self.feature), self.values.shape
        inner = self.feature >= 0
        number = torch.arange(nodes, device=self.left.device)
        # Children come after their parent, so every path ends.
        ahead = (self.left > number) & (self.left < nodes - 1)
        held = (self.left >= 0) & (self.left < leaves)
        for wrong, right in (
            ("columns", ((self.feature >= -1) & (self.feature < columns)).all()),
            ("children", torch.where(inner, ahead, held).all()),
            ("thresholds", ~self.threshold.isnan().any()),
            ("roots", ((self.roots >= 0) & (self.roots < nodes)).all()),
            ("groups", ((self.groups >= 0) & (self.groups < len(self.base) // width)).all()),
            ("values", self.values.isfinite().all() & self.base.isfinite().all()),
        ):
            if not right:
                raise ValueError(f"the trees have {wrong} that no tree can have")

    def forward(self, inputs: Tensor) -> Tensor:
        """Return float64 sums."""
        return torch.cat([self._sums(rows) for rows in inputs.float().split(TOGETHER)])

    def _sums(self, inputs: Tensor) -> Tensor:
        n, width = len(inputs), self.values.shape[1]
        groups = len(self.base) // width
        found = torch.zeros(groups, n * width, dtype=torch.float64, device=inputs.device)
        chunk = max(1, TOGETHER // max(n, 1))
        gaps = bool(inputs.isnan().any())
        for roots, group in zip(self.roots.split(chunk), self.groups.split(chunk), strict=True):
            leaves = self.left.index_select(0, self._ends(inputs, roots, gaps))
            reached = self.values.index_select(0, leaves).view(len(roots), n * width)
            found.index_add_(0, group, reached.double())
        return found.view(groups, n, width).permute(1, 0, 2).reshape(n, groups * width) + self.base

    def _ends(self, inputs: Tensor, roots: Tensor, gaps: bool) -> Tensor:
        """Return the leaf of every tree that each row reaches, tree by tree."""
        n, columns = inputs.shape
        numbers = inputs.reshape(-1)
        node = ends = roots.repeat_interleave(n)
        start = (torch.arange(n, device=inputs.device) * columns).repeat(len(roots))
        place = torch.arange(len(node), device=inputs.device)
        while True:
            feature = self.feature.index_select(0, node)
            inner = (feature >= 0).nonzero()[:, 0]
            if len(inner) < len(node):  # the others have arrived
                node, feature, start, place = (
                    one.index_select(0, inner) for one in (node, feature, start, place)
                )
            if not len(node):
                return ends
            number = numbers.index_select(0, start + feature)
            right = number > self.threshold.index_select(0, node)
            if gaps:
                right |= number.isnan() & ~self.missing_left.index_select(0, node)
            node = self.left.index_select(0, node) + right
            ends.index_copy_(0, place, node)


def round_down(thresholds: Array) -> Array:
    """Return the largest float32 up to each threshold: float32 numbers compare with it alike."""
    with np.errstate(over="ignore"):
        found = thresholds.astype(np.float32)
    return np.where(found > thresholds, np.nextafter(found, np.float32(-np.inf)), found)


class LogShares(nn.Module):
    """Logits of a forest: the logarithms of its mean shares of the classes."""

    def forward(self, shares: Tensor) -> Tensor:
        return shares.clamp(min=SMALLEST).log()


class LogSoftmax(nn.Module):
    """Logits of boosted trees: the logarithms of the softmax of their scores."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.log_softmax(-1).clamp(min=math.log(SMALLEST))


def forest(trees: Trees) -> Network:
    """Return the network of a forest, whose trees add up to the shares of the classes."""
    return Network(trees, LogShares())


def boosted_trees(trees: Trees) -> Network:
    """Return the network of boosted trees, which add up to the scores of the classes."""
    return Network(trees, LogSoftmax())
