"""Export several methods of one module, with the state that they share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from .errors import EntryPointError, EtsharedError, StateError
from .lifted_state import (
    LiftedProgram,
    functionalize,
    keep,
    restore,
)
from .module_buffers import aliases, buffer_owners, refuse_hidden_views
from .program_surgery import assemble, inputs_of, outputs_of, rename_placeholder
from .refusals import refuse_unfaithful
from .signatures import (
    CallingConvention,
    argument_names,
    bind,
    check_names,
    dynamic_shapes,
    leaf_names,
)
from .state import SharedState, select_state
from .tracing import TracedMethod, prepared


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A method to export, with example inputs.

    Args:
        fn: a bound method of the root or of one of its submodules, a
            `functools.partial` of one, or a function. A function that takes one
            more positional argument than ``args`` gives gets the root as its
            first.
        args: example positional inputs, as for `torch.export.export`.
        kwargs: example keyword inputs.
        dynamic_shapes: as for `torch.export.export`, by the names of the
            function's own arguments.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None


class ExportedEntryPoints(dict[str, ExportedProgram]):
    """Exported programs by entry-point name, with the state that they share.

    Names in every program are relative to the root. ``state`` maps the fqn of
    each shared buffer to its initial value and other names.
    """

    def __init__(
        self, programs: Mapping[str, ExportedProgram], state: SharedState
    ) -> None:
        super().__init__(programs)
        self.state = state


def export(
    root: nn.Module,
    entry_points: Mapping[str, EntryPoint],
    *,
    state: Sequence[str] | None = None,
) -> ExportedEntryPoints:
    """Export methods of ``root`` so that they share weights and state.

    Args:
        root: the module that all names are relative to. It is left as it was.
        entry_points: what to export, by the names to export it under.
        state: fqns of the buffers to share, or globs that match whole fqns; by
            default every buffer that any entry point writes.

    Returns:
        A dict of ExportedPrograms, functional, with their state as mutated
        buffers. Their parameters and constants share memory with ``root``;
        initial values of state are copies.

    Raises:
        EntryPointError: an entry point does what cannot be exported faithfully.
        StateError: the state of the entry points does not fit together.
    """
    if not entry_points:
        raise EntryPointError("there is no entry point to export")
    check_names(entry_points)
    owners = buffer_owners(root)
    tensors = {
        fqn: places[0][0]._buffers[places[0][1]] for fqn, places in owners.items()
    }
    buffers = {fqn: t for fqn, t in tensors.items() if t is not None}
    traced = {
        name: _trace(root, name, entry_point, owners, buffers)
        for name, entry_point in entry_points.items()
    }
    lifted = {name: one.lifted for name, one in traced.items()}
    _refuse_merged_state(traced)
    written_by: dict[str, list[str]] = {}
    for name, program in lifted.items():
        for fqn in program.outputs:
            written_by.setdefault(fqn, []).append(name)
    shared = select_state(buffers, written_by, state, aliases(root, owners))
    refuse_hidden_views(
        root,
        {fqn: buffers[fqn] for fqn in shared},
        {name: one.program.constants for name, one in lifted.items()},
    )
    # Copies: running an exported program changes its buffers.
    initial_values = {f: buffer.initial_value.clone() for f, buffer in shared.items()}
    return ExportedEntryPoints(
        {
            name: restore(keep(program, shared), initial_values)
            for name, program in lifted.items()
        },
        shared,
    )


@dataclass(frozen=True, slots=True)
class _Traced:
    """An entry point with the state that it writes in place or makes one."""

    lifted: LiftedProgram
    in_place: frozenset[str]
    merged: tuple[tuple[str, str], ...]


def _trace(
    root: nn.Module,
    name: str,
    entry_point: EntryPoint,
    owners: Mapping[str, list[tuple[nn.Module, str]]],
    buffers: Mapping[str, torch.Tensor],
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
    state = [
        t.detach().clone(memory_format=torch.contiguous_format)
        for t in buffers.values()
    ]
    method = TracedMethod(root, name, function, owners)
    try:
        with (
            prepared(root, name, owners),
            torch.no_grad(),
            warnings.catch_warnings(),
        ):
            # Lists of RNN weights follow the parameters that tracing swaps in.
            warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights")
            program = torch.export.export(
                method,
                (state, args, kwargs),
                dynamic_shapes=shapes and ([None] * len(state), *shapes),
            )
        _, in_spec = pytree.tree_flatten((args, kwargs))
        assert program.call_spec.out_spec is not None
        out_spec = program.call_spec.out_spec.child(1)
        lifted = LiftedProgram(
            program,
            inputs=tuple(buffers),
            outputs=tuple(buffers),
            call=CallingConvention(in_spec, out_spec, tuple(names)),
        )
        # Buffers are no longer the module's: the program holds them.
        program.state_dict.update(buffers)
        lifted = functionalize(lifted)
    except EtsharedError:
        raise
    except Exception as error:
        raise EntryPointError(
            f"entry point '{name}' cannot be exported: {error}", method_name=name
        ) from error
    refuse_unfaithful(name, lifted)
    in_place = frozenset(lifted.outputs) - method.assigned
    return _Traced(_name_inputs(lifted), in_place, tuple(method.merged))


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
        readable = "".join(c if c.isalnum() else "_" for c in name).strip("_")
        rename_placeholder(node, readable, taken)
    return replace(
        lifted,
        program=assemble(program, program.graph, inputs, outputs_of(program)),
    )
