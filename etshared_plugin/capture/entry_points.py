"""Export several methods of one module, with the state that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn
from torch.export import ExportedProgram

from ..errors import StateError
from ..lifted.lifted_state import keep
from ..lifted.restored_state import restore
from ..state import SharedState, select_state, with_groups
from ..wording import names_in
from .arguments import check_root
from .bound_state import BoundState
from .declarations import EntryPoint, check_entry_points
from .registered_tensors import MemoryMap, refuse_hidden_views
from .traced_entry_points import trace


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
    bound = BoundState(root, entry_points)
    if state is not None:
        state = [*names_in(state, "state", StateError), *bound.values]
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
