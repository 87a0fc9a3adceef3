"""Writes that operators make unseen by their schemas, or through odd views."""

from __future__ import annotations

import torch
from torch import fx

from .graph_surgery import insert_call

_aten = torch.ops.aten
_DROPOUTS = (_aten.dropout.default, _aten.feature_dropout.default)


def show_hidden_writes(graph: fx.Graph) -> None:
    """Write running statistics and diagonals with operators that torch follows.

    `torch.export` takes normalization layers for functional. What they return while
    they update their statistics does not depend on them. Behind `fill_diagonal_` is
    `as_strided`, which torch does not follow into a view. Dropout that is switched
    off returns its input itself, which may be written later. The graph is changed in
    place.
    """
    for node in list(graph.nodes):
        if node.target in _DROPOUTS and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            continue
        if node.target is _aten.fill_diagonal_.default:
            _fill_diagonals(graph, node)
            continue
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


def _fill_diagonals(graph: fx.Graph, fill: fx.Node) -> None:
    x, value, *wrap = fill.args
    assert isinstance(x, fx.Node)
    shape = x.meta["val"].shape
    offsets = [0]
    if wrap and wrap[0] and len(shape) == 2:
        # One row below the square another diagonal begins.
        offsets = list(range(0, -shape[0], -(shape[1] + 1)))
    with graph.inserting_before(fill):
        for offset in offsets:
            diagonal = insert_call(graph, _aten.diagonal.default, x, offset)
            for _ in shape[2:]:
                diagonal = insert_call(
                    graph, _aten.diagonal.default, diagonal, 0, 0, -1
                )
            insert_call(graph, _aten.fill_.Scalar, diagonal, value)
    fill.replace_all_uses_with(x)
    graph.erase_node(fill)
