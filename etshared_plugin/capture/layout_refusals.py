"""Refusals of entry points whose results depend on where elements lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ..errors import EntryPointError, StateError
from ..lifted.control_flow import attributes_of, branches_of, nodes_of
from ..lifted.graph_surgery import memory_owners, nodes_written_in_place
from ..lifted.layouts import is_apart
from ..lifted.lifted_state import LiftedProgram
from ..lifted.program_surgery import Attributes
from .registered_tensors import Memory

#: Copy where a view cannot be had.
_MAY_COPY = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("contiguous", "flatten", "ravel", "reshape", "reshape_as")
)

#: Those that look through any layout of a single row or column.
_VIEW_LINES = frozenset(
    getattr(torch.ops.aten, name) for name in ("flatten", "reshape", "reshape_as")
)


def refuse_layouts(name: str, lifted: LiftedProgram, layout: Sequence[Memory]) -> None:
    """Refuse what the program, in which all tensors are contiguous, gets wrong.

    Raises:
        EntryPointError: ``as_strided`` of what is not contiguous.
        StateError: a copy, in eager, of state with gaps that is written.
    """
    _refuse_strides(name, lifted, layout)
    _refuse_gaps(name, lifted, layout)


def _refuse_strides(name: str, lifted: LiftedProgram, layout: Sequence[Memory]) -> None:
    """Refuse `as_strided` of what comes from values that the program keeps otherwise.

    A sum takes on the layout of what is added, for one.
    """
    placeholders = lifted.state_placeholders()
    origins = {
        placeholders[memory.fqn]: f"'{memory.fqn}'"
        for memory in layout
        if not memory.whole.is_contiguous()
    }
    attributes = attributes_of(lifted.program.graph_module)
    for node in lifted.program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            if not value.is_contiguous():
                origins.setdefault(node, "an input or weight")
        origin = next((origins[n] for n in node.all_input_nodes if n in origins), None)
        if origin is None:
            continue
        origins.setdefault(node, origin)
        if torch.ops.aten.as_strided in map(_operator, _nodes(node, attributes)):
            raise EntryPointError(
                f"entry point '{name}' uses as_strided on what comes from {origin},"
                " which is not contiguous, but is in the program; index it, or make it"
                " contiguous",
                method_name=name,
            )


def _refuse_gaps(name: str, lifted: LiftedProgram, layout: Sequence[Memory]) -> None:
    """Refuse writes beside what eager makes a copy of, but tracing a view."""
    apart = [memory for memory in layout if is_apart(memory.whole)]
    if not apart:
        return
    graph = lifted.program.graph
    placeholders = lifted.state_placeholders()
    owners = memory_owners(graph)
    written = nodes_written_in_place(graph)
    fqns = {
        clone: memory.fqn
        for memory in apart
        for clone in written & placeholders[memory.fqn].users.keys()
    }
    attributes = attributes_of(lifted.program.graph_module)
    for node in graph.nodes:
        inputs = {owner for one in node.all_input_nodes for owner in owners[one]}
        found = sorted(
            str(_operator(one)) for one in _nodes(node, attributes) if _may_copy(one)
        )
        for clone in inputs & fqns.keys() if found else ():
            operator = found[0].removeprefix("aten.")
            raise StateError(
                f"entry point '{name}' uses {operator} of '{fqns[clone]}', in which"
                " elements do not lie side by side, and writes; eager would copy it,"
                " the program would not: register a contiguous tensor",
                method_name=name,
                fqn=fqns[clone],
            )


def _may_copy(node: fx.Node) -> bool:
    operator = _operator(node)
    if operator not in _MAY_COPY:
        return False
    sizes = node.all_input_nodes[0].meta["val"].shape
    is_line = sum(not isinstance(size, int) or size != 1 for size in sizes) <= 1
    return not (is_line and operator in _VIEW_LINES)


def _operator(node: fx.Node) -> Any:  # noqa: ANN401
    return getattr(node.target, "overloadpacket", None)


def _nodes(node: fx.Node, attributes: Attributes) -> list[fx.Node]:
    """Return a node, and those of its branches."""
    nodes = [node]
    for branch in branches_of(node, attributes):
        nodes += nodes_of(branch)
    return nodes
