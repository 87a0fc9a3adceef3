"""Shared state as explicit inputs and outputs of an ExportedProgram, and back.

Between tracing and memory planning every pass of ExecuTorch that knows buffers
is a danger to shared state: functionalization rejects copies between buffers,
constant folding and delegates freeze a buffer that this method only reads, and
write-backs are keyed by names that arguments may have too. A lifted program
has none of that: its first user inputs are the old values of the state and its
first user outputs the new ones, so every pass and every partitioner treats
state as what it is, data that changes from call to call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    OutputKind,
)

from .branch_constants import lift_branch_constants
from .control_flow import copied_attributes, take_writes_out
from .decompositions import FAITHFUL_DECOMPOSITIONS
from .graph_surgery import (
    clone_before_use,
    copied_value,
    dtype_of,
    is_functional,
    relayout_copy,
    use_contiguous_value,
)
from .hidden_writes import show_hidden_writes
from .mutating_operators import write_views_apart
from .program_surgery import (
    Inputs,
    Outputs,
    assemble,
    buffer_fqns,
    buffer_input,
    buffer_tensor,
    copy_graph,
    inputs_of,
    order_inputs,
    outputs_of,
    user_input,
    user_output,
)
from .signatures import CallingConvention
from .sizes import forget_pending_sizes
from .tensor_indices import index_by_tensors

#: Name of an input that only keeps a program from having none.
_ANCHOR = "etshared_anchor"


@dataclass(frozen=True, slots=True)
class LiftedProgram:
    """A program whose first user inputs and outputs are shared state.

    ``inputs`` and ``outputs`` are the fqns of the leading user inputs and
    outputs, ``call`` is what the user sees without them. An ``anchored``
    program has no user input but one that nothing uses.
    """

    program: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    call: CallingConvention
    anchored: bool = False

    def result_dtypes(self) -> tuple[torch.dtype | None, ...]:
        """Return the dtype of each output, None for what is no tensor."""
        return tuple(dtype_of(value) for value, _ in outputs_of(self.program))

    def state_placeholders(self) -> dict[str, fx.Node]:
        """Return the node of each state input by fqn."""
        user_inputs = [
            node
            for node, spec in inputs_of(self.program)
            if spec.kind is InputKind.USER_INPUT
        ]
        return dict(zip(self.inputs, user_inputs, strict=False))

    def reads(self) -> frozenset[str]:
        """Return the fqns whose old value this program uses."""
        return frozenset(
            fqn for fqn, node in self.state_placeholders().items() if node.users
        )


def lift(
    program: ExportedProgram,
    fqns: Collection[str] | None = None,
    *,
    canonical: Mapping[str, str] = MappingProxyType({}),
    method_name: str | None = None,
) -> LiftedProgram:
    """Turn the named buffers of ``program``, by default all, into inputs and outputs.

    ``program`` is not changed. Where it has in-place operators, as `torch.export`
    leaves it, so has the result. Names of one tensor become one input, named as
    ``canonical`` says.
    """
    wanted = set(buffer_fqns(program) if fqns is None else fqns)
    graph, nodes = copy_graph(program)
    attributes = copied_attributes(program.graph_module)
    show_hidden_writes(graph)
    write_views_apart(graph)
    names = {
        nodes[old]: str(spec.target)
        for old, spec in inputs_of(program)
        if spec.kind is InputKind.BUFFER
    }
    take_writes_out(graph, attributes, method_name, names)
    functional = is_functional(graph)
    if functional:
        _drop_copies(graph)
    kept: Inputs = []
    state: dict[str, fx.Node] = {}
    for old, spec in inputs_of(program):
        node = nodes[old]
        if spec.kind is not InputKind.BUFFER or spec.target not in wanted:
            kept.append((node, spec))
            continue
        fqn = canonical.get(str(spec.target), str(spec.target))
        if state.setdefault(fqn, node) is not node:
            node.replace_all_uses_with(state[fqn])
            graph.erase_node(node)
    written: dict[str, fx.Node] = {}
    results: Outputs = []
    values = graph.output_node().args[0]
    assert isinstance(values, tuple | list)
    for value, (_, output) in zip(values, outputs_of(program), strict=True):
        if output.kind is OutputKind.BUFFER_MUTATION and output.target in wanted:
            assert isinstance(value, fx.Node)
            written[canonical.get(str(output.target), str(output.target))] = value
        else:
            results.append((value, output))
    if not functional and not written:
        # In-place operators act on the clone, which then is the new value.
        written = {fqn: clone_before_use(node) for fqn, node in state.items()}
    state_inputs = [(node, user_input(node)) for node in state.values()]
    return LiftedProgram(
        assemble(
            program,
            graph,
            order_inputs(kept, state_inputs),
            [(node, user_output(node)) for node in written.values()] + results,
            attributes=attributes,
        ),
        inputs=tuple(state),
        outputs=tuple(written),
        call=CallingConvention.of(program),
    )


def _drop_copies(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        source = copied_value(node)
        if source is not None:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif node.target is torch.ops.aten.copy.default:
            relayout_copy(node)


def functionalize(lifted: LiftedProgram) -> LiftedProgram:
    """Remove in-place operators and copies; drop outputs that equal their input."""
    program = lift_branch_constants(lifted.program)
    forget_pending_sizes(program)
    program = program.run_decompositions(FAITHFUL_DECOMPOSITIONS)
    index_by_tensors(program.graph)
    _drop_copies(program.graph)
    old_values = replace(lifted, program=program).state_placeholders()
    results = outputs_of(program)
    # Arguments and constants that the method writes come before other outputs.
    first = sum(spec.kind is not OutputKind.USER_OUTPUT for _, spec in results)
    state = results[first : first + len(lifted.outputs)]
    written = [
        (fqn, value)
        for fqn, (value, _) in zip(lifted.outputs, state, strict=True)
        if value is not old_values.get(fqn)
    ]
    for _, value in written:
        use_contiguous_value(value)
    results = outputs_of(program)
    results[first : first + len(lifted.outputs)] = [
        (value, user_output(value)) for _, value in written
    ]
    return replace(
        lifted,
        program=assemble(
            program,
            program.graph,
            inputs_of(program),
            results,
        ),
        outputs=tuple(fqn for fqn, _ in written),
    )


def keep(lifted: LiftedProgram, state: Collection[str]) -> LiftedProgram:
    """Leave only ``state`` lifted; other buffers become constants again.

    Inputs that are neither read nor written are removed.
    """
    program = lifted.program
    names = {node: fqn for fqn, node in lifted.state_placeholders().items()}
    constants: dict[str, torch.Tensor] = {}
    kept: Inputs = []
    stay: Inputs = []
    remaining: list[str] = []
    for node, spec in inputs_of(program):
        fqn = names.get(node)
        if fqn is None:
            kept.append((node, spec))
        elif not node.users and fqn not in lifted.outputs:
            program.graph.erase_node(node)
        elif fqn in state:
            stay.append((node, spec))
            remaining.append(fqn)
        else:
            constants[fqn] = buffer_tensor(program, fqn)
            kept.append((node, buffer_input(node, fqn)))
    return replace(
        lifted,
        program=assemble(
            program,
            program.graph,
            order_inputs(kept, stay),
            outputs_of(program),
            state_dict={**program.state_dict, **constants},
        ),
        inputs=tuple(remaining),
    )


def anchor(lifted: LiftedProgram) -> LiftedProgram:
    """Give a program without user inputs one that nothing uses.

    ExecuTorch 1.5.1 places the constants that it lifts before the first user
    input, and leaves an invalid program where there is none.
    """
    program = lifted.program
    inputs = inputs_of(program)
    if any(spec.kind is InputKind.USER_INPUT for _, spec in inputs):
        return lifted
    graph = program.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        node = graph.placeholder(_ANCHOR)
    fake_mode = torch._guards.detect_fake_mode(
        [n.meta["val"] for n in graph.nodes if "val" in n.meta]
    )
    value = torch.zeros(1)
    node.meta["val"] = (
        fake_mode.from_tensor(value, static_shapes=True) if fake_mode else value
    )
    return replace(
        lifted,
        program=assemble(
            program, graph, [*inputs, (node, user_input(node))], outputs_of(program)
        ),
        anchored=True,
    )
