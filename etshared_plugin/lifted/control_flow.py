"""Branches of control-flow operators: what they write, and where results lie."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

from ..errors import EntryPointError
from .branch_results import (
    Aliases,
    own_operands,
    own_results,
    refuse_writes_to_aliases,
)
from .graph_surgery import (
    insert_call,
    memory_owners,
    nodes_written_in_place,
)
from .hidden_writes import show_hidden_writes
from .program_surgery import (
    Attributes,
)

_aten = torch.ops.aten


def control_flow_nodes(graph: fx.Graph) -> list[fx.Node]:
    return [
        node
        for node in graph.nodes
        if isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target not in (executorch_call_delegate, auto_functionalized_v2)
    ]


def attributes_of(module: fx.GraphModule) -> Attributes:
    """Return what the nodes of a graph refer to: branches, and delegates."""
    return {
        node.target: operator.attrgetter(node.target)(module)
        for node in module.graph.nodes
        if node.op == "get_attr"
    }


def copied_attributes(module: fx.GraphModule) -> Attributes:
    """Return what the nodes of a graph refer to, with copies of its branches."""
    attributes = attributes_of(module)
    for name, value in attributes.items():
        if isinstance(value, fx.GraphModule):
            graph = fx.Graph()
            values = graph.graph_copy(value.graph, {})
            graph.output(values).meta.update(value.graph.output_node().meta)
            branch = fx.GraphModule(copied_attributes(value), graph)
            branch.meta.update(value.meta)
            attributes[name] = branch
    return attributes


def branches_of(node: fx.Node, attributes: Attributes) -> list[fx.GraphModule]:
    found = [
        attributes.get(str(n.target))
        for n in node.all_input_nodes
        if n.op == "get_attr"
    ]
    return [branch for branch in found if isinstance(branch, fx.GraphModule)]


def graph_modules(module: fx.GraphModule) -> list[fx.GraphModule]:
    """Return a graph and the branches in it."""
    return [one for one in module.modules() if isinstance(one, fx.GraphModule)]


def nodes_of(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the nodes of a graph and of the branches that it refers to."""
    yield from module.graph.nodes
    for branch in attributes_of(module).values():
        if isinstance(branch, fx.GraphModule):
            yield from nodes_of(branch)


def _operands(cond: fx.Node) -> list[Any]:
    operands = cond.args[3]
    assert isinstance(operands, tuple | list)
    return list(operands)


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def take_writes_out(
    graph: fx.Graph,
    attributes: Attributes,
    method_name: str | None,
    names: Mapping[fx.Node, str],
) -> Aliases:
    """Let branches of `torch.cond` return new values of what they write.

    Changes the graph and its branches in place. Results of all branches have memory
    of their own afterwards.

    Args:
        attributes: what the nodes of ``graph`` refer to.
        method_name: for error messages.
        names: fqns of nodes that are state, for error messages.

    Returns:
        Operators with what results of their branches may be in eager.

    Raises:
        EntryPointError: a branch writes what it also gets as another view, or what
            it returned is written while something else is the same in eager.
    """
    aliases: Aliases = {}
    own_writes: dict[fx.Node, fx.Node] = {}
    for node in control_flow_nodes(graph):
        if node.target is not torch.ops.higher_order.cond:
            # torch traces no writes in loops
            for body in branches_of(node, attributes):
                own_results(body.graph, {})
                body.recompile()
            own_operands(node)
            continue
        owners = memory_owners(graph)
        operands = _operands(node)
        written: set[int] = set()
        branches = branches_of(node, attributes)
        for branch in branches:
            show_hidden_writes(branch.graph)
            inputs = _placeholders(branch.graph)
            inner_names = {
                own: names[owner]
                for own, operand in zip(inputs, operands, strict=False)
                if isinstance(operand, fx.Node)
                for owner in owners[operand] & names.keys()
            }
            inner = take_writes_out(
                branch.graph, attributes_of(branch), method_name, inner_names
            )
            returned = own_results(branch.graph, inner)
            branch.recompile()
            for own, operand in zip(inputs, operands, strict=False):
                if own in returned and isinstance(operand, fx.Node):
                    aliases.setdefault(node, set()).update(owners[operand])
            in_place = nodes_written_in_place(branch.graph)
            written |= {i for i, own in enumerate(inputs) if own in in_place}
        for i in sorted(written):
            own_memory = owners[operands[i]]
            fqn = next((names[owner] for owner in own_memory & names.keys()), None)
            for j, other in enumerate(operands):
                if j != i and isinstance(other, fx.Node) and owners[other] & own_memory:
                    what = f"'{fqn}'" if fqn else "a tensor that is no state"
                    raise EntryPointError(
                        f"entry point '{method_name}' writes {what} in a branch of"
                        " torch.cond that uses it under two names or as two views; use"
                        " one of them there",
                        method_name=method_name,
                        fqn=fqn,
                    )
        own_operands(node)
        if written:
            copies = _return_new_values(graph, node, branches, sorted(written))
            own_writes |= dict.fromkeys(copies, node)
    refuse_writes_to_aliases(graph, aliases, own_writes, method_name, names)
    return aliases


def _return_new_values(
    graph: fx.Graph, cond: fx.Node, branches: list[fx.GraphModule], written: list[int]
) -> list[fx.Node]:
    """Return the nodes that write the values afterwards."""
    copies = []
    for branch in branches:
        inputs = _placeholders(branch.graph)
        output = branch.graph.output_node()
        values = list(output.args[0])  # type: ignore[arg-type]
        for i in written:
            with branch.graph.inserting_after(inputs[-1]):
                copy = insert_call(branch.graph, _aten.clone.default, inputs[i])
            replace_but_in(inputs[i], copy)
            with branch.graph.inserting_before(output):
                # torch compares strides of branches, also where a size is 1.
                result = insert_call(
                    branch.graph,
                    _aten.clone.default,
                    copy,
                    memory_format=torch.contiguous_format,
                )
            values.append(result)
        output.args = (tuple(values),)
        branch.recompile()
    operands = _operands(cond)
    results = list(cond.meta["val"])
    after = cond
    for i in written:
        with graph.inserting_after(after):
            new = graph.call_function(operator.getitem, (cond, len(results)))
        new.meta["val"] = operands[i].meta["val"]
        results.append(new.meta["val"])
        with graph.inserting_after(new):
            after = insert_call(graph, _aten.copy_.default, operands[i], new)
        copies.append(after)
    cond.meta["val"] = tuple(results)
    return copies


def replace_but_in(node: fx.Node, copy: fx.Node) -> None:
    """Let all other users of ``node`` take its copy."""
    node.replace_all_uses_with(copy, lambda user: user is not copy)
