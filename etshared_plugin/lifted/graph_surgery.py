"""Changes to the graphs of programs, and what they say about memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch.fx.experimental.symbolic_shapes import statically_known_true

_aten = torch.ops.aten

#: In a functional graph these return the value of their argument.
_IDENTITIES = frozenset(
    {
        _aten.clone.default,
        _aten.alias.default,
        _aten.detach.default,
        _aten.lift_fresh_copy.default,
    }
)

#: Copies that ExecuTorch 1.5.1 turns into views of their argument's memory.
_VIEWS_AFTER_PLANNING = frozenset({"aten::view_copy", "aten::_unsafe_view"})

#: Where the wrapper of a mutating operator has what the operator writes.
BASES = "_all_bases"


def as_identifier(name: str) -> str:
    """Put underscores for dots, and what else keys of a ModuleDict may have."""
    return re.sub(r"\W", "_", name)


def rename_placeholder(node: fx.Node, name: str, taken: set[str]) -> None:
    """Name a placeholder ``name``, or that with a number if it is taken."""
    candidate, count = name, 0
    names = taken | {n.name for n in node.graph.nodes if n is not node}
    while candidate in names:
        count += 1
        candidate = f"{name}_{count}"
    node.name = candidate
    node.target = candidate


def is_functional(graph: fx.Graph) -> bool:
    """Tell whether no operator writes into its arguments."""
    return not any(
        isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        for node in graph.nodes
    )


def memory_owners(graph: fx.Graph) -> dict[fx.Node, set[fx.Node]]:
    """Map each node to the nodes in whose memory its value lies, itself at least."""
    owners: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        aliased = [value for value, _ in aliased_inputs(node)]
        owners[node] = {o for value in aliased for o in owners[value]} or {node}
    return owners


def nodes_written_in_place(graph: fx.Graph) -> set[fx.Node]:
    """Return nodes whose memory operators write, be it through views of it."""
    owners = memory_owners(graph)
    return {
        owner
        for node in graph.nodes
        for value, is_written in aliased_inputs(node)
        if is_written
        for owner in owners[value]
    }


def aliased_inputs(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """Yield inputs in whose memory a result may lie, and whether it is written."""
    if node.target is operator.getitem:
        yield node.all_input_nodes[0], False
    elif isinstance(node.target, torch._ops.OpOverload):
        is_cast = node.target.overloadpacket is _aten.to
        if is_cast and dtype_of(node) != dtype_of(node.args[0]):
            return
        arguments = node.target._schema.arguments
        given = dict(zip((a.name for a in arguments), node.args, strict=False))
        for argument in arguments:
            value = given.get(argument.name, node.kwargs.get(argument.name))
            if argument.alias_info is not None:
                inputs: list[fx.Node] = []
                fx.map_arg(value, inputs.append)
                for one in inputs:
                    yield one, argument.alias_info.is_write


def copied_value(node: fx.Node) -> fx.Node | None:
    """Return what a copy in a functional graph copies, if it can stand for it."""
    if node.target is _aten.copy.default:
        destination, source = node.args[:2]
        assert isinstance(destination, fx.Node) and isinstance(source, fx.Node)
        old, new = destination.meta["val"], source.meta["val"]
        same = old.dtype == new.dtype and tuple(old.shape) == tuple(new.shape)
        same_layout = old.stride() == new.stride() or (
            old.is_contiguous() and is_contiguous(new)
        )
        return source if same and same_layout else None
    if node.target not in _IDENTITIES:
        return None
    source = node.args[0]
    assert isinstance(source, fx.Node)
    layout = node.kwargs.get("memory_format")
    if layout in (None, torch.preserve_format):
        return source
    is_same = layout is torch.contiguous_format and is_contiguous(source.meta["val"])
    return source if is_same else None


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Tell whether strides say so, also those of dimensions of size one."""
    strides = pairwise(tensor.stride())
    return tensor.is_contiguous() and all(
        statically_known_true(outer >= inner) for outer, inner in strides
    )


def relayout_copy(node: fx.Node) -> None:
    """Replace a copy between layouts, which 1.5.1's kernel does byte by byte."""
    destination, source = node.args[:2]
    assert isinstance(destination, fx.Node) and isinstance(source, fx.Node)
    old, new = destination.meta["val"], source.meta["val"]
    if old.dtype == new.dtype and old.shape == new.shape and old.is_contiguous():
        node.target = _aten.clone.default
        node.args = (source,)
        node.kwargs = {"memory_format": torch.contiguous_format}


def clone_before_use(node: fx.Node, **kwargs: object) -> fx.Node:
    """Let all users of a placeholder take a clone of it."""
    first = next(n for n in node.graph.nodes if n.op != "placeholder")
    with node.graph.inserting_before(first):
        clone = insert_call(node.graph, _aten.clone.default, node, **kwargs)
    node.replace_all_uses_with(clone, delete_user_cb=lambda user: user is not clone)
    return clone


def use_contiguous_value(node: fx.Node) -> None:
    """Let all users of a value take its contiguous copy ``node``, if it is one.

    XNNPACK's lowering in 1.5.1 drops the copy and then fails where both the
    value and its copy leave the delegate.
    """
    if node.target is not _aten.clone.default:
        return
    value = node.args[0]
    if isinstance(value, fx.Node) and value.op != "placeholder":
        value.append(node)
        value.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node)


def is_mutating(node: fx.Node) -> bool:
    """Tell whether a node of a functional graph is a wrapped operator."""
    return node.target is auto_functionalized_v2


def wrapped_operator(node: fx.Node) -> torch._ops.OpOverload:
    target = node.args[0]
    assert isinstance(target, torch._ops.OpOverload)
    return target


def old_value(node: fx.Node) -> fx.Node | None:
    """Return what an operator wrote ``node`` over, if it is what one wrote."""
    if node.target is not operator.getitem:
        return None
    call, position = node.args
    if not isinstance(call, fx.Node) or not is_mutating(call):
        return None
    assert isinstance(position, int)
    # A wrapped operator without results returns None before what it wrote.
    first = max(1, len(wrapped_operator(call)._schema.returns))
    return written_values(call)[position - first] if position >= first else None


def written_values(call: fx.Node) -> list[fx.Node]:
    """Return the old values of what a wrapped operator writes."""
    bases = call.kwargs[BASES]
    assert isinstance(bases, list | tuple)
    return [base for base in bases if isinstance(base, fx.Node)]


def aliased_placeholder(value: object) -> fx.Node | None:
    """Return the placeholder whose memory ``value`` may lie in, if there is one."""
    while isinstance(value, fx.Node) and value.op != "placeholder":
        old = old_value(value)
        if old is not None:
            value = old
            continue
        if not (is_view(value) or value.target is operator.getitem):
            return None
        value = value.args[0] if value.args else None
    return value if isinstance(value, fx.Node) else None


def is_view(node: fx.Node) -> bool:
    """Tell whether a value lies in its argument's memory, after planning at least."""
    target = node.target
    if isinstance(target, EdgeOpOverload):
        target = target._op
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target.is_view or target._schema.name in _VIEWS_AFTER_PLANNING


def insert_call(
    graph: fx.Graph,
    target: Any,  # noqa: ANN401
    *args: Any,  # noqa: ANN401
    **kwargs: Any,  # noqa: ANN401
) -> fx.Node:
    """Insert a call, whose keyword arguments are no nodes, with its meta value."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*fx.map_arg(args, lambda n: n.meta["val"]), **kwargs)
    return node


def insert_cast(graph: fx.Graph, value: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Append a conversion of ``value`` of an edge program."""
    target = exir_ops.edge.dim_order_ops._to_dim_order_copy.default
    with graph.inserting_before(graph.output_node()):
        node = graph.call_function(target, (value,), {"dtype": dtype})
    node.meta.update(value.meta)
    node.meta["val"] = value.meta["val"].to(dtype)
    return node


def dtype_of(value: object) -> torch.dtype | None:
    """Return the dtype of a graph's value, None for what is no tensor."""
    found = value.meta.get("val") if isinstance(value, fx.Node) else None
    return found.dtype if isinstance(found, torch.Tensor) else None
