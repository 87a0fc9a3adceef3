"""Layers whose weight an entry point computes, as those that are stored quantized."""

from __future__ import annotations

from executorch.exir.dialects._ops import ops as exir_ops
from torch import fx

_aten = exir_ops.edge.aten

#: Position of the weight of each product.
_WEIGHTS = {
    _aten.linear.default: 1,
    _aten.mm.default: 1,
    _aten.addmm.default: 2,
}

#: What may lie between a product and its weight for XNNPACK to find it.
_TRANSPOSITIONS = (
    _aten.t_copy.default,
    _aten.permute_copy.default,
    _aten.transpose_copy.int,
)


def separate_computed_weights(graph: fx.Graph) -> None:
    """Let no product with a computed weight be known as that of a linear layer.

    XNNPACK's partitioner in 1.5.1 takes all that comes from one call of a linear
    layer, follows its weight back to a constant, and multiplies by that: a scale on
    the way, as in a weight that is stored in integers, is lost without an error.
    """
    for node in graph.nodes:
        position = _WEIGHTS.get(node.target)
        if position is None:
            continue
        weight = node.args[position]
        while weight.target in _TRANSPOSITIONS:
            weight = weight.args[0]
        if weight.op != "placeholder":
            node.meta["source_fn_stack"] = [(node.name, node.target)]
