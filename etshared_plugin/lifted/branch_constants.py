"""Constants of branches as inputs of the program."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from .control_flow import attributes_of, branches_of, control_flow_nodes
from .graph_surgery import rename_placeholder
from .program_surgery import assemble, inputs_of, order_inputs, outputs_of

#: Nodes that stand for constants.
Constants = dict[fx.Node, torch.Tensor]


def lift_branch_constants(program: ExportedProgram) -> ExportedProgram:
    """Make operands of the constants in branches, like `torch.tensor(1)` there.

    torch makes no program functional that has constants in its branches. A number
    that is written to a part of a tensor is one. The graph, its branches and the
    constants of ``program`` are changed in place.
    """
    inputs = inputs_of(program)
    constants = _operands_of_constants(program.graph_module)
    if not constants:
        return program
    first = next(iter(program.graph.nodes))
    for node, value in constants.items():
        with program.graph.inserting_before(first):
            own = program.graph.placeholder(node.name)
        own.meta.update(node.meta)
        rename_placeholder(own, f"c_{node.name}", set())
        node.replace_all_uses_with(own)
        program.graph.erase_node(node)
        argument = TensorArgument(own.name)
        inputs.append((own, InputSpec(InputKind.CONSTANT_TENSOR, argument, own.name)))
        program.constants[own.name] = value
    outputs = outputs_of(program)
    return assemble(program, program.graph, order_inputs(inputs, []), outputs)


def _operands_of_constants(module: fx.GraphModule) -> Constants:
    """Take its constants, and those of its branches, out of a module."""
    attributes = attributes_of(module)
    constants = {
        node: attributes[str(node.target)]
        for node in module.graph.nodes
        if node.op == "get_attr"
        and isinstance(attributes[str(node.target)], torch.Tensor)
    }
    for name in {str(node.target) for node in constants}:
        delattr(module, name)  # a program must know each buffer of its modules
    for node in control_flow_nodes(module.graph):
        branches = branches_of(node, attributes)
        for branch in branches:
            for inner, value in _operands_of_constants(branch).items():
                constants[_operand(node, inner, branches)] = value
        for branch in branches:
            branch.recompile()
    return constants


def _operand(
    node: fx.Node, constant: fx.Node, branches: list[fx.GraphModule]
) -> fx.Node:
    """Replace a constant of one branch by an operand that all branches take."""
    with node.graph.inserting_before(node):
        operand = node.graph.create_node("get_attr", constant.name)
    operand.meta.update(constant.meta)
    # The operands stand last, whatever the operator.
    *others, operands = node.args
    assert isinstance(operands, tuple | list)
    node.args = (*others, (*operands, operand))
    for branch in branches:
        graph = branch.graph
        after = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(after):
            placeholder = graph.placeholder(constant.name)
        rename_placeholder(placeholder, operand.name, set())
        placeholder.meta.update(constant.meta)
        if graph is constant.graph:
            constant.replace_all_uses_with(placeholder)
    constant.graph.erase_node(constant)
    return operand
