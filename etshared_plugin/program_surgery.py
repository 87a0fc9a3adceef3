"""Changes to an ExportedProgram that keep graph and signature in step."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
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

_Spec = TypeVar("_Spec", InputSpec, OutputSpec)

Inputs = list[tuple[fx.Node, InputSpec]]
Outputs = list[tuple[Any, OutputSpec]]


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
    state_dict: Mapping[str, torch.Tensor] | None = None,
    call: ModuleCallSignature | None = None,
) -> ExportedProgram:
    """Make a program of ``graph`` with exactly these inputs and outputs.

    Specs take the names that their nodes have. Everything else is taken from
    ``program``, whose modules and tensors the result shares. Without ``call``
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
        root=program.graph_module,
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
    graph, nodes = copy_graph(program)
    values = graph.output_node().args[0]
    assert isinstance(values, tuple | list)
    return assemble(
        program,
        graph,
        [(nodes[node], spec) for node, spec in inputs_of(program)],
        list(zip(values, program.graph_signature.output_specs, strict=True)),
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


def nodes_written_in_place(graph: fx.Graph) -> set[fx.Node]:
    """Return nodes whose memory operators write, be it through views of it."""
    owners: dict[fx.Node, set[fx.Node]] = {}
    written: set[fx.Node] = set()
    for node in graph.nodes:
        aliased: set[fx.Node] = set()
        if node.target is operator.getitem:
            aliased |= owners[node.args[0]]
        elif isinstance(node.target, torch._ops.OpOverload):
            for argument, value in zip(
                node.target._schema.arguments, node.args, strict=False
            ):
                if argument.alias_info is not None:
                    inputs: list[fx.Node] = []
                    fx.map_arg(value, inputs.append)
                    used = {owner for node in inputs for owner in owners[node]}
                    aliased |= used
                    if argument.alias_info.is_write:
                        written |= used
        owners[node] = aliased or {node}
    return written


def copied_value(node: fx.Node) -> fx.Node | None:
    """Return what a copy in a functional graph copies, if it can stand for it."""
    if node.target is _aten.copy.default:
        destination, source = node.args[:2]
        assert isinstance(destination, fx.Node) and isinstance(source, fx.Node)
        old, new = destination.meta["val"], source.meta["val"]
        same = old.dtype == new.dtype and tuple(old.shape) == tuple(new.shape)
        return source if same and old.stride() == new.stride() else None
    layout = node.kwargs.get("memory_format")
    if node.target in _IDENTITIES and layout in (None, torch.preserve_format):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        return source
    return None


def relayout_copy(node: fx.Node) -> None:
    """Replace a copy between layouts, which 1.5.1's kernel does byte by byte."""
    destination, source = node.args[:2]
    assert isinstance(destination, fx.Node) and isinstance(source, fx.Node)
    old, new = destination.meta["val"], source.meta["val"]
    if old.dtype == new.dtype and old.shape == new.shape and old.is_contiguous():
        node.target = _aten.clone.default
        node.args = (source,)
        node.kwargs = {"memory_format": torch.contiguous_format}


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


def aliased_placeholder(value: object) -> fx.Node | None:
    """Return the placeholder whose memory ``value`` may lie in, if there is one."""
    while isinstance(value, fx.Node) and value.op != "placeholder":
        if not (_is_view(value) or value.target is operator.getitem):
            return None
        value = value.args[0] if value.args else None
    return value if isinstance(value, fx.Node) else None


def _is_view(node: fx.Node) -> bool:
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
