"""Writes that operators make though their schemas do not say so."""

from __future__ import annotations

import torch
from torch import fx

from .graph_surgery import insert_call

_aten = torch.ops.aten


def show_hidden_writes(graph: fx.Graph) -> None:
    """Write the running statistics of normalization layers with operators.

    `torch.export` takes these layers for functional. What they return while they
    update their statistics does not depend on them. The graph is changed in place.
    """
    for node in list(graph.nodes):
        if node.target is _aten.instance_norm.default:
            by_example = True
        elif node.target is _aten.batch_norm.default:
            by_example = False
        else:
            continue
        x, weight, bias, mean, variance, updates, momentum, *rest = node.args
        if not updates or mean is None:
            continue
        dims = list(range(2, x.meta["val"].dim()))
        if not by_example:
            dims.insert(0, 0)
        with graph.inserting_before(node):
            for old, target, correction in (
                (mean, _aten.mean.dim, {}),
                (variance, _aten.var.correction, {"correction": 1}),
            ):
                new = insert_call(graph, target, x, dims, **correction)
                if by_example:
                    new = insert_call(graph, _aten.mean.dim, new, [0])
                insert_call(graph, _aten.mul_.Tensor, old, 1 - momentum)
                insert_call(graph, _aten.add_.Tensor, old, new, alpha=momentum)
        node.args = (x, weight, bias, None, None, updates, momentum, *rest)
