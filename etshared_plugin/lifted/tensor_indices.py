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
        indices = [None] * (dim % x.meta["val"].dim()) + [number.args[0]]
        with graph.inserting_before(node):
            new = insert_call(graph, target, x, indices, *values)
        new.meta = {**node.meta, "val": new.meta["val"]}
        node.replace_all_uses_with(new)
        graph.erase_node(node)
