"""Elements that a tensor without dimensions chooses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from .graph_surgery import aliased_inputs, insert_call, memory_owners

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
        if _is_read(number):
            _replace(node, target, x, dim, number.args[0], values)


def read_by_tensors(graph: fx.Graph) -> None:
    """Copy what such an index chooses, where no write comes before its last use.

    torch cannot make a graph functional in which it is a view of memory that is
    written. The graph, which has in-place operators, is changed in place.
    """
    order = {node: position for position, node in enumerate(graph.nodes)}
    owners = memory_owners(graph)
    writes = [
        (order[node], owners[value])
        for node in graph.nodes
        for value, is_written in aliased_inputs(node)
        if is_written
    ]
    chosen = []
    for node in order:
        if node.target is not _aten.select.int or not _is_read(node.args[2]):
            continue
        number = node.args[2]
        users = {user for view in _views(node, order) for user in view.users}
        last = max((order[user] for user in users), default=order[node])
        if not any(
            (order[node] < at <= last and written & owners[node])
            or (order[number] < at < order[node] and written & owners[number.args[0]])
            for at, written in writes
        ):
            chosen.append(node)
    for node in chosen:
        x, dim, number = node.args
        _replace(node, _aten.index.Tensor, x, dim, number.args[0], [])


def _views(node: fx.Node, order: Iterable[fx.Node]) -> set[fx.Node]:
    """Return a node and those that lie in its memory by way of it."""
    views = {node}
    for one in order:
        if any(value in views for value, _ in aliased_inputs(one)):
            views.add(one)
    return views


def _is_read(number: object) -> bool:
    return isinstance(number, fx.Node) and number.target in _READS


def _replace(
    node: fx.Node,
    target: Any,  # noqa: ANN401
    x: fx.Node,
    dim: int,
    tensor: fx.Node,
    values: list[fx.Node],
) -> None:
    graph = node.graph
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
