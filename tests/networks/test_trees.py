"""Trees as arrays: a row goes the way that a plain walk from node to node takes."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from shoal.networks import trees as module
from shoal.networks.trees import SMALLEST, TreeNodes, Trees, boosted_trees, forest, round_down

COLUMNS = 4


def grown(draw: np.random.RandomState, width: int, depth: int) -> TreeNodes:
    """Return a random tree whose nodes are in a random order, but for the root."""
    nodes: list[dict[str, Any]] = []

    def grow(left: int) -> int:
        number = len(nodes)
        leaf = left == 0 or draw.rand() < 0.2
        nodes.append(
            {
                "feature": -1 if leaf else draw.randint(COLUMNS),
                # Between float32 numbers, on one of them, and beyond all of them.
                "threshold": draw.choice([draw.randn(), 0.5, math.inf, 0.1]),
                "missing_left": draw.rand() < 0.5,
                "value": draw.randn(width),
                "left": 0,
                "right": 0,
            }
        )
        if not leaf:
            nodes[number]["right"] = grow(left - 1)
            nodes[number]["left"] = grow(left - 1)
        return number

    grow(depth)
    return TreeNodes(**{name: np.array([node[name] for node in nodes]) for name in nodes[0]})


def walk(tree: TreeNodes, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the value of the leaf that a row reaches."""
    node = 0
    while tree.feature[node] >= 0:
        number = float(row[tree.feature[node]])
        goes_left = (
            tree.missing_left[node] if math.isnan(number) else number <= tree.threshold[node]
        )
        node = tree.left[node] if goes_left else tree.right[node]
    return np.asarray(tree.value[node])


def rows_of(draw: np.random.RandomState, n: int) -> np.ndarray[Any, Any]:
    rows = draw.choice([0.5, 0.1, -0.1, 1.5, math.nan], (n, COLUMNS)).astype(np.float32)
    random = draw.rand(n, COLUMNS) < 0.5
    return np.where(random, draw.randn(n, COLUMNS).astype(np.float32), rows)


@pytest.mark.parametrize(("width", "groups"), [(3, [0] * 7), (1, [2, 0, 2, 1, 0, 2, 2])])
@pytest.mark.parametrize("together", [10, 80_000])
def test_a_row_reaches_the_leaf_that_a_walk_reaches(
    width: int, groups: list[int], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOGETHER", together)  # less than the rows, and more
    draw = np.random.RandomState(width)
    trees = [grown(draw, width, depth) for depth in (0, 1, 2, 5, 6, 3, 9)]
    base, rows = draw.randn(3), rows_of(draw, 57)
    expected = np.zeros((57, 3)) + base
    for tree, group in zip(trees, groups, strict=True):
        for number, row in enumerate(rows):
            expected[number, group * width : (group + 1) * width] += walk(tree, row)
    found = Trees.of(trees, groups, base)
    found.check(COLUMNS)
    # float32 values, summed in float64.
    np.testing.assert_allclose(found(torch.from_numpy(rows)), expected, atol=1e-6)
    assert found(torch.empty(0, COLUMNS)).shape == (0, 3)


def test_float32_numbers_compare_alike_with_a_rounded_threshold() -> None:
    draw = np.random.RandomState(0)
    numbers = np.concatenate([draw.randn(200).astype(np.float32), np.float32([0, 3.4e38, -3.4e38])])
    middles = (numbers[:-1].astype(float) + np.nextafter(numbers[:-1], np.float32(9e9))) / 2
    thresholds = np.concatenate([numbers.astype(float), middles, [1e300, -1e300, np.inf, 0.1]])
    rounded = round_down(thresholds)
    assert rounded.dtype == np.float32
    everything = numbers.astype(float)[:, None]
    np.testing.assert_array_equal(everything <= thresholds, numbers[:, None] <= rounded)


def test_logits_are_logarithms_of_probabilities() -> None:
    def tree(value: list[float]) -> TreeNodes:
        leaf = {"feature": [-1], "threshold": [0.0], "left": [-1], "right": [-1]}
        arrays = {name: np.array(one) for name, one in leaf.items()}
        return TreeNodes(**arrays, missing_left=np.array([0]), value=np.array([value]))

    rows = torch.zeros(2, COLUMNS)
    shares = Trees.of([tree([0.25, 0.25, 0.0]), tree([0.5, 0.0, 0.0])], [0, 0], np.zeros(3))
    found = forest(shares)(rows)
    assert found[0].exp().tolist() == pytest.approx([0.75, 0.25, SMALLEST])
    scores = Trees.of([tree([2.0]), tree([-1.0])], [1, 2], np.array([0.0, 1.0, -1e4]))
    found = boosted_trees(scores)(rows)
    total = 1 + math.exp(3)
    assert found[0].exp().tolist() == pytest.approx([1 / total, math.exp(3) / total, SMALLEST])


@pytest.mark.parametrize(
    ("name", "place", "value", "wrong"),
    [
        ("feature", 0, COLUMNS, "columns"),
        ("feature", 0, -2, "columns"),
        ("left", 0, 0, "children"),  # a row would never arrive
        ("left", 0, 10**6, "children"),
        ("left", -1, 10**6, "children"),
        ("threshold", 0, math.nan, "thresholds"),
        ("roots", 0, 10**6, "roots"),
        ("groups", 0, 1, "groups"),
        ("values", 0, math.inf, "values"),
    ],
)
def test_arrays_that_are_no_trees(name: str, place: int, value: float, wrong: str) -> None:
    draw = np.random.RandomState(3)
    found = Trees.of([grown(draw, 2, 5)], [0], np.zeros(2))
    found.check(COLUMNS)
    getattr(found, name)[place] = value
    with pytest.raises(ValueError, match=f"the trees have {wrong} that no tree can have"):
        found.check(COLUMNS)
