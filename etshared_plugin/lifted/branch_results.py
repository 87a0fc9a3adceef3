"""Branches' results and operands that lie in one memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from ..errors import EntryPointError
from .graph_surgery import aliased_inputs, insert_call, memory_owners

#: Nodes of control-flow operators with whose memory a result may be.
Aliases = dict[fx.Node, set[fx.Node]]


def own_results(branch: fx.Graph, aliases: Aliases) -> set[fx.Node]:
    """Let each result of a branch have memory of its own, which torch insists on.

    Args:
        aliases: what results of operators in the branch may lie in.

    Returns:
        Placeholders in whose memory a result may lie in eager.
    """
    owners = memory_owners(branch)
    output = branch.output_node()
    values = output.args[0]
    if not isinstance(values, tuple | list):  # the condition of a loop
        return set()
    results = list(values)
    taken = {node for node in branch.nodes if node.op == "placeholder"}
    inputs: set[fx.Node] = set()
    for i, value in enumerate(results):
        if not isinstance(value, fx.Node) or not _is_tensor(value):
            continue
        memory = owners[value]
        inputs |= {
            node
            for owner in memory
            for node in aliases.get(owner, {owner})
            if node.op == "placeholder"
        }
        if memory & taken:
            with branch.inserting_before(output):
                results[i] = insert_call(branch, torch.ops.aten.clone.default, value)
        taken |= memory
    output.args = (tuple(results),)
    return inputs


def own_operands(node: fx.Node) -> None:
    """Let each operand of a control-flow operator have memory of its own.

    torch takes branches for aliasing where two operands are one tensor, or views of
    one. The graph is changed in place.
    """
    owners = memory_owners(node.graph)
    taken: set[fx.Node] = set()

    def own(operand: fx.Node) -> fx.Node:
        if operand.op == "get_attr" or not _is_tensor(operand):
            return operand
        memory = owners[operand]
        if memory & taken:
            with node.graph.inserting_before(node):
                return insert_call(node.graph, torch.ops.aten.clone.default, operand)
        taken.update(memory)
        return operand

    node.args = fx.map_arg(node.args, own)


def refuse_writes_to_aliases(
    graph: fx.Graph,
    aliases: Aliases,
    own_writes: Mapping[fx.Node, fx.Node],
    method_name: str | None,
    names: Mapping[fx.Node, str],
) -> None:
    """Refuse writes that a result of a branch would show in eager, or be shown in.

    Args:
        graph: with all control-flow operators.
        aliases: operators with what their results may lie in, in eager.
        own_writes: nodes that write what branches wrote before they returned, with
            the operator of the branches.
        method_name, names: for error messages.

    Raises:
        EntryPointError: there is one, and what it would show in is used later.
    """
    if not aliases:
        return
    owners = memory_owners(graph)
    written: Aliases = {}  # what a later use of a node's memory would see
    for node in graph.nodes:
        for used in node.all_input_nodes:
            for owner in owners[used]:
                if owner in written:
                    fqns = [names[one] for one in written[owner] if one in names]
                    what = f"'{fqns[0]}'" if fqns else "a tensor"
                    raise EntryPointError(
                        f"entry point '{method_name}' writes {what} after a branch of"
                        " torch.cond returned it, or writes that result, and uses the"
                        " other one then; return a clone from the branch",
                        method_name=method_name,
                        fqn=fqns[0] if fqns else None,
                    )
        for value, is_written in aliased_inputs(node):
            if not is_written:
                continue
            for owner in owners[value]:
                for result, others in aliases.items():
                    if owner is result:
                        written |= {one: {one} for one in others}
                    elif owner in others and result < node:
                        if own_writes.get(node) is not result:
                            written[result] = {owner}


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
