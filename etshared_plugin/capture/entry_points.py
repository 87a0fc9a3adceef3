"""Export several methods of one module, with the state that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from ..errors import EntryPointError
from ..lifted.lifted_state import keep
from ..lifted.restored_state import restore
from ..lifted.signatures import check_names
from ..state import SharedState, select_state, with_groups
from .arguments import check_root
from .bound_state import Bind, BoundState
from .registered_tensors import MemoryMap, refuse_hidden_views
from .traced_entry_points import trace


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
        binds: state that the function takes and returns, by name: it is shared, and
            no input or output of the entry point.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    binds: Mapping[str, Bind] | None = None


class ExportedEntryPoints(dict[str, ExportedProgram]):
    """Exported programs by entry-point name, with the state that they share.

    Names in every program are relative to the root. ``state`` maps the fqn of
    each piece of state to its initial value and other names.
    """

    def __init__(
        self, programs: Mapping[str, ExportedProgram], state: SharedState
    ) -> None:
        super().__init__(programs)
        self.state = state


def check_entry_points(entry_points: Mapping[str, EntryPoint]) -> None:
    """Refuse what is no declaration of entry points.

    Raises:
        EntryPointError: it is not.
    """
    if not isinstance(entry_points, Mapping):
        raise EntryPointError(
            f"entry_points is a {type(entry_points).__name__}, expected a dict of"
            " EntryPoints by name"
        )
    if not entry_points:
        raise EntryPointError("there is no entry point to export")
    check_names(entry_points)
    for name, one in entry_points.items():
        if not isinstance(one, EntryPoint):
            raise EntryPointError(
                f"entry point '{name}' is a {type(one).__name__}, expected an"
                f" EntryPoint; write EntryPoint(model.{name}, (x,))",
                method_name=name,
            )
        if not isinstance(one.args, (tuple, list)):
            raise EntryPointError(
                f"entry point '{name}': args are a {type(one.args).__name__}, expected"
                " a tuple; write (x,)",
                method_name=name,
            )
        for key, bound in (one.binds or {}).items():
            if not isinstance(bound, Bind):
                raise EntryPointError(
                    f"entry point '{name}': bind '{key}' is a {type(bound).__name__},"
                    " expected a Bind",
                    method_name=name,
                )


def export(
    root: nn.Module,
    entry_points: Mapping[str, EntryPoint],
    *,
    state: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> ExportedEntryPoints:
    """Export methods of ``root`` so that they share weights and state.

    Args:
        root: the module that all names are relative to. It is left as it was.
        entry_points: what to export, by the names to export it under.
        state: fqns of the buffers and parameters to share, or globs that match
            whole fqns of buffers and of parameters that an entry point writes; by
            default all that any entry point writes.
        groups: fqns or globs of state by the name of the group that it is in. The
            state of a group lies together, and a session resets it by that name.

    Returns:
        A dict of ExportedPrograms, functional, with their state as mutated
        buffers, parameters among them. Other parameters and constants share memory
        with ``root``; initial values of state are copies.

    Raises:
        EntryPointError: an entry point does what cannot be exported faithfully.
        StateError: the state of the entry points does not fit together.
    """
    check_root(root)
    check_entry_points(entry_points)
    if isinstance(state, str):
        state = [state]
    bound = BoundState(root, entry_points)
    if state is not None:
        state = [*state, *bound.values]
    memories = MemoryMap(root, bound.tensors())
    lifted, layout = trace(
        root, bound.entry_points, memories, memories.named_by(state or ())
    )
    written_by: dict[str, list[str]] = {}
    for name, program in lifted.items():
        for fqn in program.outputs:
            written_by.setdefault(fqn, []).append(name)
    shared = select_state(
        {memory.fqn: memory.whole for memory in layout},
        written_by,
        state,
        {memory.fqn: memory.aliases for memory in layout},
        {memory.fqn: memory.names for memory in layout},
    )
    shared = with_groups(shared, groups)
    refuse_hidden_views(
        {memory.fqn: memory.whole for memory in layout if memory.fqn in shared},
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
