"""Trace entry points with all the state that any of them turns out to have."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ..errors import EtsharedError, StateError
from ..lifted.control_flow import attributes_of, take_writes_out
from ..lifted.graph_surgery import (
    as_identifier,
    nodes_written_in_place,
    rename_placeholder,
)
from ..lifted.hidden_writes import show_hidden_writes
from ..lifted.layouts import copy_in_layout, use_contiguous_state
from ..lifted.lifted_state import LiftedProgram, functionalize
from ..lifted.mutating_operators import write_views_apart
from ..lifted.program_surgery import assemble, inputs_of, outputs_of
from ..lifted.signatures import (
    CallingConvention,
    argument_names,
    bind,
    dynamic_shapes,
    leaf_names,
)
from ..lifted.tensor_indices import read_by_tensors
from .declarations import EntryPoint
from .export_failures import not_exported
from .layout_refusals import refuse_layouts
from .overlap_refusals import refuse_overlaps
from .refusals import refuse_control_flow, refuse_unfaithful
from .registered_tensors import Memory, MemoryMap
from .tracing import TracedMethod, names_of_one, prepared


def trace(
    root: nn.Module,
    entry_points: Mapping[str, EntryPoint],
    memories: MemoryMap,
    named: set[str],
) -> tuple[dict[str, LiftedProgram], list[Memory]]:
    """Trace all entry points.

    Buffers in memory of their own are always lifted. Parameters, and tensors that
    are views of one another, are so where an entry point writes them, which the
    first trace tells, or where they are among ``named``.

    Returns:
        Functional programs, and the state that is their first inputs and outputs.

    Raises:
        EntryPointError, StateError: as :func:`etshared_plugin.export`.
    """
    state = {memories.memory_of(fqn).fqn for fqn in named}
    while True:
        layout = memories.layout(state)
        traced = {
            name: _trace(root, name, entry_point, layout, memories)
            for name, entry_point in entry_points.items()
        }
        written = {
            memories.memory_of(f) for one in traced.values() for f in one.written
        }
        more = {memory.fqn for memory in written if not memory.is_plain_buffer} - state
        if not more:
            break
        state |= more
    lifted = {name: _functionalized(name, one.lifted) for name, one in traced.items()}
    _refuse_merged_state(traced)
    return lifted, layout


@dataclass(frozen=True, slots=True)
class _Traced:
    """An entry point with what it writes, in place or not, and makes one."""

    lifted: LiftedProgram
    written: frozenset[str]
    in_place: frozenset[str]
    merged: tuple[tuple[str, str], ...]


def _trace(
    root: nn.Module,
    name: str,
    entry_point: EntryPoint,
    layout: Sequence[Memory],
    memories: MemoryMap,
) -> _Traced:
    function, bound = bind(
        root, name, entry_point.fn, entry_point.args, entry_point.kwargs or {}
    )
    shapes = dynamic_shapes(name, entry_point.dynamic_shapes, bound)
    names = argument_names(bound)
    # Copies: an example that is a buffer of the module, or given twice, would
    # be taken for one tensor.
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone(), (bound.args, dict(bound.kwargs))
    )
    tensors = {memory.fqn: memory.whole.detach() for memory in layout}
    state = [copy_in_layout(tensor) for tensor in tensors.values()]
    try:
        with (
            prepared(root, name, layout) as snapshot,
            torch.no_grad(),
            warnings.catch_warnings(),
        ):
            # Lists of RNN weights follow the parameters that tracing swaps in.
            warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights")
            method = TracedMethod(
                root, name, function, layout, memories.tensors, snapshot
            )
            program = torch.export.export(
                method,
                (state, args, kwargs),
                dynamic_shapes=shapes and ([None] * len(state), *shapes),
            )
        refuse_control_flow(name, program.graph_module)
        show_hidden_writes(program.graph)
        # Tracing has not seen what dropout is that is switched off.
        values = [value for value, _ in outputs_of(program)]
        merged = {*method.merged, *names_of_one(zip(tensors, values, strict=False))}
        write_views_apart(program.graph)
        _, in_spec = pytree.tree_flatten((args, kwargs))
        assert program.call_spec.out_spec is not None
        out_spec = program.call_spec.out_spec.child(1)
        lifted = LiftedProgram(
            program,
            inputs=tuple(tensors),
            outputs=tuple(tensors),
            call=CallingConvention(in_spec, out_spec, tuple(names)),
        )
        take_writes_out(
            program.graph,
            attributes_of(program.graph_module),
            name,
            {
                clone: fqn
                for fqn, node in lifted.state_placeholders().items()
                for clone in node.users
            },
        )
        read_by_tensors(program.graph)
        refuse_layouts(name, lifted, layout)
        refuse_overlaps(name, lifted)
        # State is no longer the module's: the program holds it.
        program.state_dict.update(tensors)
    except EtsharedError:
        raise
    except Exception as error:
        raise not_exported(name, error) from error
    in_place = _written_in_place(lifted)
    return _Traced(
        lifted,
        frozenset({*in_place, *method.assigned, *method.replaced}),
        frozenset(in_place),
        tuple(sorted(merged)),
    )


def _written_in_place(lifted: LiftedProgram) -> set[str]:
    """Return the fqns of state and parameters that in-place operators write."""
    nodes = nodes_written_in_place(lifted.program.graph)
    state = lifted.state_placeholders()
    parameters = lifted.program.graph_signature.inputs_to_parameters
    return {
        # The method acts on a clone of each state input.
        *(fqn for fqn, node in state.items() if nodes & set(node.users)),
        *(parameters[node.name] for node in nodes if node.name in parameters),
    }


def _functionalized(name: str, lifted: LiftedProgram) -> LiftedProgram:
    try:
        functional = use_contiguous_state(functionalize(lifted))
    except Exception as error:
        raise not_exported(name, error) from error
    refuse_unfaithful(name, functional)
    return _name_inputs(functional)


def _refuse_merged_state(traced: Mapping[str, _Traced]) -> None:
    """Refuse buffers that become one tensor and are then written in place."""
    for name, one in traced.items():
        for pair in one.merged:
            for other_name, other in traced.items():
                for fqn in pair:
                    if fqn in other.in_place:
                        raise StateError(
                            f"entry point '{name}' makes one tensor of buffers"
                            f" '{pair[0]}' and '{pair[1]}', and entry point"
                            f" '{other_name}' writes '{fqn}' in place, which would"
                            " change both; assign a clone",
                            method_name=name,
                            fqn=fqn,
                        )


def _name_inputs(lifted: LiftedProgram) -> LiftedProgram:
    """Name placeholders after the arguments of the Python signature."""
    program = lifted.program
    taken = set(lifted.inputs)
    inputs = inputs_of(program)
    user_inputs = [n for n, spec in inputs if spec.kind is InputKind.USER_INPUT]
    for node, name in zip(
        user_inputs[len(lifted.inputs) :], leaf_names(lifted.call), strict=True
    ):
        rename_placeholder(node, as_identifier(name).strip("_"), taken)
    return replace(
        lifted,
        program=assemble(program, program.graph, inputs, outputs_of(program)),
    )
