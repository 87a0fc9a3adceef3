"""Writes that operators make though their schemas do not say so."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .program_surgery import insert_call

_aten = torch.ops.aten


def show_hidden_writes(graph: fx.Graph) -> None:
    """Write the running statistics of instance normalization with operators.

    `torch.export` takes ``instance_norm`` for functional. What it gives does not
    depend on the statistics that it updates.
    """
    for node in list(graph.nodes):
        if node.target is not _aten.instance_norm.default:
            continue
        x, weight, bias, mean, variance, uses_input, momentum, *rest = node.args
        if not uses_input or mean is None:
            continue
        with graph.inserting_before(node):
            dims = list(range(2, x.meta["val"].dim()))
            _average(graph, mean, momentum, insert_call(graph, _aten.mean.dim, x, dims))
            found = insert_call(graph, _aten.var.correction, x, dims, correction=1)
            _average(graph, variance, momentum, found)
        node.args = (x, weight, bias, None, None, uses_input, momentum, *rest)


def _average(graph: fx.Graph, old: fx.Node, momentum: float, by_example: Any) -> None:  # noqa: ANN401
    new = insert_call(graph, _aten.mean.dim, by_example, [0])
    insert_call(graph, _aten.mul_.Tensor, old, 1 - momentum)
    insert_call(graph, _aten.add_.Tensor, old, new, alpha=momentum)
