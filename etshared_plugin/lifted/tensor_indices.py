"""Elements that a tensor without dimensions chooses."""

from __future__ import annotations

import torch
from torch import fx

from .graph_surgery import insert_call

_aten = torch.ops.aten

_READS = frozenset({_aten.item.default, _aten._local_scalar_dense.default})


def index_by_tensors(graph: fx.Graph) -> None:
    """Let the functional ``x[i]`` index by the tensor ``i`` instead of its number.

    1.5.1 lowers no element whose number is only known when the program runs. The
    graph is changed in place.
    """
    for node in list(graph.nodes):
        if node.target is _aten.select.int:
            x, dim, number = node.args
            target, values = _aten.index.Tensor, []
        elif node.target is _aten.select_scatter.default:
            x, value, dim, number = node.args
            target, values = _aten.index_put.default, [value]
        else:
            continue
        if not isinstance(number, fx.Node) or number.target not in _READS:
            continue
        tensor = number.args[0]
        assert isinstance(tensor, fx.Node)
        with graph.inserting_before(node):
            index = _scalar_index(graph, tensor)
            indices = [None] * (dim % x.meta["val"].dim()) + [index]
            new = insert_call(graph, target, x, indices, *values)
        new.meta = {**node.meta, "val": new.meta["val"]}
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _scalar_index(graph: fx.Graph, tensor: fx.Node) -> fx.Node:
    """Insert what makes of a tensor of one integer an index that adds no dimension."""
    if tensor.meta["val"].dim():
        tensor = insert_call(graph, _aten.view.default, tensor, [])
    if tensor.meta["val"].dtype != torch.int64:
        to_copy = _aten._to_copy.default
        tensor = insert_call(graph, to_copy, tensor, dtype=torch.int64)
    return tensor
