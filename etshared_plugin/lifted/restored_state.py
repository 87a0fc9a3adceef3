"""State of a lifted program as mutable buffers again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from .graph_surgery import (
    aliased_placeholder,
    as_identifier,
    dtype_of,
    insert_cast,
    rename_placeholder,
)
from .lifted_state import LiftedProgram
from .mutating_operators import keep_old_values, memory_of
from .program_surgery import (
    Inputs,
    Outputs,
    assemble,
    buffer_input,
    copy_graph,
    inputs_of,
    insert_clone,
    order_inputs,
    outputs_of,
)
from .separate_branches import keep_results

_NARROW_INTEGERS = frozenset({torch.int32, torch.int16, torch.int8, torch.uint8})


def restore(
    lifted: LiftedProgram,
    initial_values: Mapping[str, torch.Tensor],
    exported: LiftedProgram | None = None,
) -> ExportedProgram:
    """Make state buffers of a lifted program again.

    The program is not changed, but the ranges of its sizes are, which the
    programs share that it was made from: with ``exported``, least sizes are
    those that export allowed.

    ``initial_values`` are what the emitter takes a buffer's shape and layout
    from. ``exported`` is the program before lowering to edge, which in 1.5.1
    widens integers, it makes int64 tensors of Python numbers, and forgets that a
    size may be 1. User inputs get
    names that no buffer has: 1.5.1 looks up the target of a write by fqn and
    argument name at once.
    """
    result_dtypes: tuple[torch.dtype | None, ...] = ()
    if exported is not None:
        lifted = replace(lifted, program=keep_results(lifted.program))
        placeholders = lifted.state_placeholders()
        overwritten = {placeholders[f] for f in lifted.outputs if f in placeholders}
        lifted = replace(lifted, program=keep_old_values(lifted.program, overwritten))
        result_dtypes = exported.result_dtypes()
        _allow_least_sizes(lifted.program, exported.program.range_constraints)
    program = lifted.program
    names = {node: fqn for fqn, node in lifted.state_placeholders().items()}
    graph, nodes = copy_graph(program)
    taken = {str(spec.target) for _, spec in inputs_of(program)} | set(initial_values)
    kept: Inputs = []
    state: Inputs = []
    for old, spec in inputs_of(program):
        node = nodes[old]
        if old in names:
            node.meta.pop("et_init_buffer", None)  # loading must not write state
            rename_placeholder(node, as_identifier(f"b_{names[old]}"), taken)
            state.append((node, buffer_input(node, names[old])))
        elif spec.kind is not InputKind.USER_INPUT:
            kept.append((node, spec))
        elif lifted.anchored:
            graph.erase_node(node)
        else:
            rename_placeholder(node, node.name, taken)
            kept.append((node, spec))
    overwritten = {node for node, s in state if s.target in set(lifted.outputs)}
    state_nodes = {str(s.target): node for node, s in state}
    buffers = {n for n, s in [*state, *kept] if s.kind is InputKind.BUFFER}
    # Where inputs are not in the arena, 1.5.1 returns zeros for one that is a result.
    copied = overwritten | {n for n, s in kept if s.kind is InputKind.USER_INPUT}
    outputs: Outputs = []
    written: set[fx.Node] = set()
    for position, (old_value, result) in enumerate(outputs_of(program)):
        value = nodes[old_value] if isinstance(old_value, fx.Node) else old_value
        if position < len(lifted.outputs):
            assert isinstance(value, fx.Node)
            # The writes happen one after another at the very end: they must not
            # read what an earlier one wrote. 1.5.1 drops a write whose value is
            # a buffer itself, and torch wants a value of its own for each.
            own = state_nodes.get(lifted.outputs[position])
            is_in_place = own is not None and memory_of(value) is own is not value
            if value in written or (
                aliased_placeholder(value) in buffers and not is_in_place
            ):
                value = insert_clone(program, graph, value)
            written.add(value)
            fqn = lifted.outputs[position]
            result = OutputSpec(
                OutputKind.BUFFER_MUTATION, TensorArgument(value.name), fqn
            )
        else:
            if aliased_placeholder(value) in copied:
                value = insert_clone(program, graph, value)
            wanted = result_dtypes[position] if result_dtypes else None
            if dtype_of(value) == torch.int64 and wanted in _NARROW_INTEGERS:
                value = insert_cast(graph, value, wanted)
        outputs.append((value, result))
    used = {fqn: initial_values[fqn] for fqn in lifted.inputs}
    return assemble(
        program,
        graph,
        order_inputs(kept, state),
        outputs,
        state_dict={**program.state_dict, **used},
        call=lifted.call.signature(),
    )


def _allow_least_sizes(program: ExportedProgram, exported: Mapping[Any, Any]) -> None:
    """Let 1.5.1 plan for inputs of size 1 where export allowed it.

    The least size is 2 after lowering, so that the most that ``8 - n`` can be is 6.
    """
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                ranges = size.node.shape_env.var_to_range
                for symbol in size.node.expr.free_symbols & exported.keys():
                    ranges[symbol] |= exported[symbol]
