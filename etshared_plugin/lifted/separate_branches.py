"""Memory of their own for what goes into control-flow operators and comes out."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from .branch_results import own_operands
from .control_flow import (
    attributes_of,
    branches_of,
    control_flow_nodes,
    copied_attributes,
    replace_but_in,
)
from .graph_surgery import rename_placeholder
from .program_surgery import (
    CONSTANT_INPUTS,
    Attributes,
    assemble,
    assemble_copy,
    buffer_tensor,
    clone_operator,
    copy_graph,
    inputs_of,
    order_inputs,
    outputs_of,
)


def separate_constants(program: ExportedProgram) -> ExportedProgram:
    """Give control-flow operators inputs of their own for constants.

    1.5.1 cannot delegate an operator whose weight also goes into a branch.
    """
    users = control_flow_nodes(program.graph)
    inputs = inputs_of(program)
    shared = [
        (node, spec)
        for node, spec in inputs
        if spec.kind in CONSTANT_INPUTS
        and 0 < sum(user in users for user in node.users) < len(node.users)
    ]
    if not shared:
        return program
    graph = program.graph
    state_dict = dict(program.state_dict)
    taken: set[str] = set()
    for node, spec in shared:
        with graph.inserting_after(node):
            own = graph.placeholder(node.name)
        own.meta.update(node.meta)
        rename_placeholder(own, node.name, taken)
        node.replace_all_uses_with(own, lambda user: user in users)
        fqn = f"{spec.target}_in_branches"
        state_dict[fqn] = buffer_tensor(program, str(spec.target))
        kind = (
            InputKind.PARAMETER
            if spec.kind is InputKind.PARAMETER
            else InputKind.BUFFER
        )
        inputs.append((own, InputSpec(kind, TensorArgument(own.name), fqn, True)))
    return assemble(
        program,
        graph,
        order_inputs(inputs, []),
        outputs_of(program),
        state_dict=state_dict,
    )


def separate_operands(program: ExportedProgram) -> ExportedProgram:
    """Clone what is an operand of one control-flow operator twice.

    Functional programs have no clones, so that two of state may have become one. The
    program is not changed.
    """
    if not control_flow_nodes(program.graph):
        return program
    graph, nodes = copy_graph(program)
    attributes = copied_attributes(program.graph_module)
    _separate_operands(graph, attributes)
    return assemble_copy(program, graph, nodes, attributes)


def _separate_operands(graph: fx.Graph, attributes: Attributes) -> None:
    for node in control_flow_nodes(graph):
        own_operands(node)
        for branch in branches_of(node, attributes):
            _separate_operands(branch.graph, attributes_of(branch))
            branch.recompile()


def keep_results(program: ExportedProgram) -> ExportedProgram:
    """Copy the results of control-flow operators out of their branches' memory.

    1.5.1 plans the branches of all operators into one memory and leaves results
    there, where the next operator overwrites them and views do not find them. The
    program is not changed.
    """
    if not control_flow_nodes(program.graph):
        return program
    graph, nodes = copy_graph(program)
    attributes = copied_attributes(program.graph_module)
    _copy_results(graph, attributes, clone_operator(program))
    return assemble_copy(program, graph, nodes, attributes)


def _copy_results(graph: fx.Graph, attributes: Attributes, clone: Any) -> None:  # noqa: ANN401
    for node in control_flow_nodes(graph):
        for branch in branches_of(node, attributes):
            _copy_results(branch.graph, attributes_of(branch), clone)
            branch.recompile()
        for result in list(node.users):
            if not isinstance(result.meta.get("val"), torch.Tensor):
                continue
            # Partitioners may have moved it behind the next operator.
            node.append(result)
            with graph.inserting_after(result):
                copy = graph.call_function(clone, (result,))
            copy.meta.update(result.meta)
            replace_but_in(result, copy)
