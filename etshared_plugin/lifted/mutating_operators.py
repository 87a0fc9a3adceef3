"""Custom operators that write into their arguments.

torch makes them functional by a wrapper that returns what they wrote. ExecuTorch 1.5.1
takes the wrapper away at the end, whether or not something still needs the old values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.export import ExportedProgram

from .graph_surgery import (
    BASES,
    insert_call,
    is_mutating,
    is_view,
    memory_owners,
    old_value,
    written_values,
)
from .program_surgery import assemble_copy, clone_operator, copy_graph


def memory_of(node: fx.Node) -> fx.Node:
    """Return the first value in the memory that operators wrote in turn."""
    while (old := old_value(node)) is not None:
        node = old
    return node


def write_views_apart(graph: fx.Graph) -> None:
    """Let operators that write views write copies of them instead.

    The copies are then written back by operators that ExecuTorch has. The graph,
    which has in-place operators, is changed in place.
    """
    for node in list(graph.nodes):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace == "aten":
            continue
        owners = memory_owners(graph)
        for view in _written_arguments(node):
            if owners[view] == {view}:
                continue
            with graph.inserting_before(node):
                copy = insert_call(graph, torch.ops.aten.clone.default, view)
            node.replace_input_with(view, copy)
            with graph.inserting_after(node):
                insert_call(graph, torch.ops.aten.copy_.default, view, copy)


def keep_old_values(program: ExportedProgram, written: set[fx.Node]) -> ExportedProgram:
    """Let operators write copies, except of state whose old value nothing needs.

    The program, which is not changed, has its final order of nodes. ``written`` are
    the placeholders of state that has a new value at the end.
    """
    if not any(is_mutating(node) for node in program.graph.nodes):
        return program
    graph, nodes = copy_graph(program)
    free = {nodes[node] for node in written}
    for node in list(graph.nodes):
        if not is_mutating(node):
            continue
        bases = written_values(node)
        for i, base in enumerate(bases):
            if memory_of(base) in free and not _is_used_after(base, node):
                continue
            with graph.inserting_before(node):
                copy = graph.call_function(clone_operator(program), (base,))
            copy.meta.update(base.meta)
            free.add(copy)
            bases[i] = copy
        node.kwargs = {**node.kwargs, BASES: bases}
    return assemble_copy(program, graph, nodes)


def _written_arguments(node: fx.Node) -> Iterator[fx.Node]:
    assert isinstance(node.target, torch._ops.OpOverload)
    for position, argument in enumerate(node.target._schema.arguments):
        value = node.kwargs.get(argument.name)
        if not argument.kwarg_only and position < len(node.args):
            value = node.args[position]
        if argument.alias_info is not None and argument.alias_info.is_write:
            if isinstance(value, fx.Node):
                yield value


def _is_used_after(value: fx.Node, node: fx.Node) -> bool:
    """Tell whether a value, or a view of it, is used behind ``node``."""
    return any(
        user > node or (user < node and is_view(user) and _is_used_after(user, node))
        for user in value.users
        if user is not node
    )
