"""ONNX of fitted models: linear models and trees, built from the model's arrays."""

from typing import Any

import torch
from torch import Tensor, nn

from ..networks.trees import SMALLEST, LogShares, Trees
from ..runs.fitted import Fitted

# Versions of the operators, of those for trees, and of the file, that any recent runtime reads.
OPERATORS, TREES, FORMAT = 17, 3, 8


def fitted_bytes(
    algorithm: Fitted, columns: int, names: tuple[str, str, str], temperature: float
) -> bytes:
    """Return the content of an ONNX file from rows to probabilities.

    Args:
        names: of the input, the output and the number of rows.
        temperature: logits are divided by it.
    """
    from onnx import TensorProto, helper, numpy_helper

    taken, given, rows = names
    network: Any = algorithm.model
    tree = isinstance(network.features, Trees)
    build = _trees if tree else _linear
    nodes, constants, classes = build(network, temperature)
    graph = helper.make_graph(
        [
            # The first node takes the rows, and the last one gives the probabilities.
            helper.make_node(
                kind,
                [taken if name == "rows" else name for name in inputs],
                [given if output == "probabilities" else output],
                **attributes,
            )
            for kind, inputs, output, attributes in nodes
        ],
        "fitted",
        [helper.make_tensor_value_info(taken, TensorProto.FLOAT, [rows, columns])],
        [helper.make_tensor_value_info(given, TensorProto.FLOAT, [rows, classes])],
        [numpy_helper.from_array(one.numpy(), name) for name, one in constants.items()],
    )
    versions = [helper.make_opsetid("", OPERATORS), helper.make_opsetid("ai.onnx.ml", TREES)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=FORMAT)
    content: bytes = model.SerializeToString()
    return content


# Of each node: the operator, its inputs, its output and its attributes.
Nodes = list[tuple[str, list[str], str, dict[str, Any]]]
Parts = tuple[Nodes, dict[str, Tensor], int]


def _linear(network: Any, temperature: float) -> Parts:
    """Return nodes, constants and the number of classes of a linear model, all in float64."""
    *ranks, standardise = (
        network.features if isinstance(network.features, nn.Sequential) else [network.features]
    )
    head = network.classifier
    constants = {
        "mean": standardise.mean,
        "std": standardise.std,
        "zero": torch.zeros((), dtype=torch.float64),
        "weight": (head.weight.detach() / temperature).T.contiguous(),
        "bias": head.bias.detach() / temperature,
    }
    nodes: Nodes = [("Cast", ["rows"], "exact" if ranks else "columns", {"to": 11})]
    for layer in ranks:
        more, needed = _with_ranks(layer)
        nodes += more
        constants |= needed
    nodes += [
        ("Sub", ["columns", "mean"], "centred", {}),
        ("Div", ["centred", "std"], "scaled", {}),
        ("IsNaN", ["scaled"], "missing", {}),
        ("Where", ["missing", "zero", "scaled"], "known", {}),
        ("MatMul", ["known", "weight"], "weighted", {}),
        ("Add", ["weighted", "bias"], "logits", {}),
        ("Softmax", ["logits"], "shares", {"axis": 1}),
        ("Cast", ["shares"], "probabilities", {"to": 1}),
    ]
    return nodes, constants, len(head.bias)


def _with_ranks(layer: Any) -> tuple[Nodes, dict[str, Tensor]]:
    """Return nodes from "exact" to "columns", and their constants.

    A line through knots k and heights h is h₀ + Σᵢ (hᵢ₊₁ − hᵢ) cᵢ with (x − kᵢ) / (kᵢ₊₁ − kᵢ),
    limited to 0 … 1, as cᵢ. Zero times x is added, so that what is missing stays missing.
    """
    constants = {
        "knots": layer.knots[:, :-1].contiguous(),
        "gaps": layer.knots.diff().contiguous(),
        "rises": layer.heights.diff().contiguous(),
        "lowest": layer.heights[:, 0].contiguous(),
        "one": torch.ones((), dtype=torch.float64),
        "last_axis": torch.tensor([2]),
    }
    nodes: Nodes = [
        ("Unsqueeze", ["exact", "last_axis"], "each", {}),
        ("Sub", ["each", "knots"], "beyond", {}),
        ("Div", ["beyond", "gaps"], "part", {}),
        ("Max", ["part", "zero"], "positive_part", {}),
        ("Min", ["positive_part", "one"], "share_of_gap", {}),
        ("Mul", ["share_of_gap", "rises"], "risen", {}),
        ("ReduceSum", ["risen", "last_axis"], "height", {"keepdims": 0}),
        ("Mul", ["exact", "zero"], "nothing", {}),
        ("Sum", ["height", "lowest", "nothing"], "ranks", {}),
        ("Concat", ["exact", "ranks"], "columns", {"axis": 1}),
    ]
    return nodes, constants


def _trees(network: Any, temperature: float) -> Parts:
    """Return nodes, constants and the number of classes of a forest or of boosted trees."""
    trees = network.features
    # The operator's own base values would miss the classes that no tree adds to.
    constants = {"base": trees.base.float()}
    nodes: Nodes = [
        ("TreeEnsembleRegressor", ["rows"], "added", {"domain": "ai.onnx.ml", **_ensemble(trees)}),
        ("Add", ["added", "base"], "sums", {}),
    ]
    shares = "sums"
    if not isinstance(network.classifier, LogShares):
        shares = "softmax"
        nodes.append(("Softmax", ["sums"], shares, {"axis": 1}))
    constants["smallest"] = torch.tensor(SMALLEST)
    constants["power"] = torch.tensor(1 / temperature)
    nodes += [
        ("Max", [shares, "smallest"], "positive", {}),
        # A logit is the logarithm of a share, and divided by T that of its power 1/T.
        ("Pow", ["positive", "power"], "powers", {}),
        ("ReduceL1", ["powers"], "total", {"axes": [1], "keepdims": 1}),
        ("Div", ["powers", "total"], "probabilities", {}),
    ]
    return nodes, constants, len(trees.base)


def _ensemble(trees: Trees) -> dict[str, Any]:
    """Return the attributes of the operator, which sums the values of leaves as ``Trees`` does."""
    inner = trees.feature >= 0
    nodes = torch.arange(len(inner))
    # Trees stand one after the other, and their nodes are numbered from each root.
    tree = torch.searchsorted(trees.roots.long(), nodes, right=True) - 1
    number = nodes - trees.roots[tree]
    left = torch.where(inner, trees.left - trees.roots[tree], 0)
    leaf = (~inner).nonzero()[:, 0]
    width = trees.values.shape[1]
    target = trees.groups[tree[leaf]][:, None] * width + torch.arange(width)
    return {
        "n_targets": len(trees.base),
        "aggregate_function": "SUM",
        "nodes_treeids": tree.tolist(),
        "nodes_nodeids": number.tolist(),
        "nodes_featureids": trees.feature.clamp(min=0).tolist(),
        "nodes_modes": ["BRANCH_LEQ" if one else "LEAF" for one in inner.tolist()],
        "nodes_values": trees.threshold.tolist(),
        "nodes_truenodeids": left.tolist(),
        "nodes_falsenodeids": torch.where(inner, left + 1, 0).tolist(),
        "nodes_missing_value_tracks_true": trees.missing_left.long().tolist(),
        **_leaves(tree[leaf], number[leaf], target, trees.values[trees.left[leaf].long()]),
    }


def _leaves(tree: Tensor, number: Tensor, target: Tensor, values: Tensor) -> dict[str, Any]:
    """Return what the leaves add, without zeros but for one number of each leaf."""
    kept = values != 0
    kept[:, 0] = True
    row, column = kept.nonzero(as_tuple=True)
    return {
        "target_treeids": tree[row].tolist(),
        "target_nodeids": number[row].tolist(),
        "target_ids": target[row, column].tolist(),
        "target_weights": values[row, column].tolist(),
    }
