"""Changes to an ExportedProgram that keep graph and signature in step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch import fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

_aten = torch.ops.aten

#: torch.export's order of graph inputs; state stands first among user inputs.
_INPUT_ORDER = {
    InputKind.TOKEN: 0,
    InputKind.PARAMETER: 1,
    InputKind.BUFFER: 2,
    InputKind.CONSTANT_TENSOR: 3,
    InputKind.CUSTOM_OBJ: 4,
    InputKind.USER_INPUT: 6,
}
_STATE_INPUT_ORDER = 5

#: Inputs whose values a program holds.
CONSTANT_INPUTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)

_Spec = TypeVar("_Spec", InputSpec, OutputSpec)

Inputs = list[tuple[fx.Node, InputSpec]]
Outputs = list[tuple[Any, OutputSpec]]

#: What the nodes of a graph refer to by name: graphs of branches, and delegates.
Attributes = dict[str, Any]


def inputs_of(program: ExportedProgram) -> Inputs:
    """Pair each placeholder with its spec."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    return list(zip(nodes, program.graph_signature.input_specs, strict=True))


def outputs_of(program: ExportedProgram) -> Outputs:
    """Pair each output value with its spec."""
    values = program.graph.output_node().args[0]
    assert isinstance(values, tuple | list)
    return list(zip(values, program.graph_signature.output_specs, strict=True))


def buffer_fqns(program: ExportedProgram) -> list[str]:
    return [
        str(spec.target)
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.BUFFER
    ]


def buffer_tensor(program: ExportedProgram, fqn: str) -> torch.Tensor:
    """Return the value of a buffer or constant, wherever the program keeps it."""
    value: torch.Tensor | None = program.state_dict.get(fqn)
    if value is None:
        value = program.constants[fqn]
    assert value is not None
    return value


def copy_graph(program: ExportedProgram) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """Copy the graph; nodes share their meta values, not the meta dicts."""
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(program.graph, nodes, return_output_node=True)
    assert isinstance(result, tuple)
    values, old_output = result
    output = graph.output(values)
    output.meta.update(old_output.meta)
    nodes[old_output] = output
    return graph, nodes


def order_inputs(inputs: Inputs, state: Inputs) -> Inputs:
    """Bring graph inputs into torch.export's order, ``state`` before other inputs."""
    lifted = {node for node, _ in state}

    def rank(pair: tuple[fx.Node, InputSpec]) -> int:
        node, spec = pair
        if spec.kind is InputKind.USER_INPUT and node in lifted:
            return _STATE_INPUT_ORDER
        return _INPUT_ORDER[spec.kind]

    return sorted([*inputs, *state], key=rank)


def assemble(
    program: ExportedProgram,
    graph: fx.Graph,
    inputs: Inputs,
    outputs: Outputs,
    *,
    attributes: Attributes | None = None,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    call: ModuleCallSignature | None = None,
) -> ExportedProgram:
    """Make a program of ``graph`` with exactly these inputs and outputs.

    Specs take the names that their nodes have. Everything else is taken from
    ``program``, whose tensors the result shares, and its modules but for those that
    ``attributes`` names. Without ``call``
    the result has no calling convention of its own: it takes and returns flat
    tuples.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    wanted = [node for node, _ in inputs]
    if placeholders != wanted:
        anchor = next(node for node in graph.nodes if node.op != "placeholder")
        for node in wanted:
            anchor.prepend(node)
    output = graph.output_node()
    output.args = (tuple(value for value, _ in outputs),)
    graph.lint()
    if call is None:
        user_inputs = sum(s.kind is InputKind.USER_INPUT for _, s in inputs)
        user_outputs = sum(s.kind is OutputKind.USER_OUTPUT for _, s in outputs)
        call = flat_call(user_inputs, user_outputs)
    return ExportedProgram(
        root=program.graph_module if attributes is None else attributes,
        graph=graph,
        graph_signature=ExportGraphSignature(
            input_specs=[_named_after(node, spec) for node, spec in inputs],
            output_specs=[_named_after(value, spec) for value, spec in outputs],
        ),
        state_dict=dict(program.state_dict if state_dict is None else state_dict),
        range_constraints=program.range_constraints,
        module_call_graph=[ModuleCallEntry(fqn="", signature=call)],
        example_inputs=None,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )


def copied_program(program: ExportedProgram) -> ExportedProgram:
    """Copy a program whose graph is to be changed; tensors are shared."""
    return assemble_copy(program, *copy_graph(program))


def assemble_copy(
    program: ExportedProgram,
    graph: fx.Graph,
    nodes: Mapping[fx.Node, fx.Node],
    attributes: Attributes | None = None,
) -> ExportedProgram:
    """Make a program of what ``copy_graph`` returned, changed between its ends."""
    values = graph.output_node().args[0]
    assert isinstance(values, tuple | list)
    return assemble(
        program,
        graph,
        [(nodes[node], spec) for node, spec in inputs_of(program)],
        list(zip(values, program.graph_signature.output_specs, strict=True)),
        attributes=attributes,
    )


def flat_call(input_count: int, output_count: int) -> ModuleCallSignature:
    """Return the convention of a program that takes and returns flat tuples."""
    from torch.utils import _pytree as pytree

    _, in_spec = pytree.tree_flatten(((0,) * input_count, {}))
    _, out_spec = pytree.tree_flatten((0,) * output_count)
    return ModuleCallSignature([], [], in_spec, out_spec)


def user_input(node: fx.Node) -> InputSpec:
    return InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)


def buffer_input(node: fx.Node, fqn: str) -> InputSpec:
    return InputSpec(InputKind.BUFFER, TensorArgument(node.name), fqn, persistent=True)


def user_output(value: object) -> OutputSpec:
    argument = (
        TensorArgument(value.name)
        if isinstance(value, fx.Node)
        else ConstantArgument("", value)  # type: ignore[arg-type]
    )
    return OutputSpec(OutputKind.USER_OUTPUT, argument, None)


def _named_after(value: object, spec: _Spec) -> _Spec:
    if isinstance(value, fx.Node) and hasattr(spec.arg, "name"):
        return replace(spec, arg=replace(spec.arg, name=value.name))
    return spec


def clone_operator(program: ExportedProgram) -> Any:  # noqa: ANN401
    """Return the operator that copies a tensor in the dialect of ``program``."""
    if program.dialect != "EDGE":
        return _aten.clone.default
    # Only its verifier knows what EdgeCompileConfig said.
    if getattr(program.verifiers[0](), "use_dim_order", True):
        return exir_ops.edge.dim_order_ops._clone_dim_order.default
    return exir_ops.edge.aten.clone.default


def insert_clone(program: ExportedProgram, graph: fx.Graph, value: fx.Node) -> fx.Node:
    """Append a copy of ``value`` in the dialect of ``program``."""
    with graph.inserting_before(graph.output_node()):
        node = graph.call_function(clone_operator(program), (value,))
    node.meta.update(value.meta)
    return node
