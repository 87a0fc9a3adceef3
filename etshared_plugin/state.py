"""Which buffers entry points share, what they start with, how they come back to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import nn

from .errors import StateError
from .lifted.lifted_state import LiftedProgram, functionalize
from .lifted.program_surgery import flat_call
from .lifted.signatures import CallingConvention
from .state_names import matching
from .wording import dtype_name, kind_of, names_in, quoted

#: Name of the generated entry point unless the caller chooses another.
RESET_STATE = "reset_state"

#: What ``aten::copy_`` of 1.5.1 takes.
_COPYABLE = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class StateBuffer:
    """One piece of shared state.

    ``initial_value`` is a contiguous CPU tensor of its own: calls of the eager
    module after export do not change it. ``aliases`` are the other fqns of a
    tied buffer, ascending.
    """

    fqn: str
    initial_value: torch.Tensor
    aliases: tuple[str, ...] = ()
    group: str = ""

    @property
    def is_zero(self) -> bool:
        """Whether every byte is zero, which is not so of a negative zero."""
        return not bool(self.initial_value.flatten().view(torch.uint8).any())


#: Shared state by fqn, ascending.
SharedState = dict[str, StateBuffer]


def tensor_kind(tensor: torch.Tensor) -> str:
    """Name what every entry point has to agree on: dtype and sizes."""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def select_state(
    buffers: Mapping[str, torch.Tensor],
    written_by: Mapping[str, Sequence[str]],
    patterns: Sequence[str] | None,
    aliases: Mapping[str, tuple[str, ...]],
    names: Mapping[str, tuple[str, ...]] | None = None,
) -> SharedState:
    """Choose the shared state among ``buffers``.

    Args:
        buffers: by fqn, every buffer of the model, and parameters that may be state.
        written_by: names of the entry points that write a buffer, by fqn.
        patterns: fqns or globs over whole fqns; None for all that are written.
        aliases: other fqns of tied buffers.
        names: all that a pattern may call a buffer, by fqn; by default its fqn and
            its aliases.

    Raises:
        StateError: a pattern matches nothing, or a written buffer is left out.
    """
    if names is None:
        names = {fqn: (fqn, *aliases.get(fqn, ())) for fqn in buffers}
    chosen = set(written_by)
    if patterns is not None:
        matched = set()
        for pattern in names_in(patterns, "state", StateError):
            found = {
                fqn
                for fqn in buffers
                if any(fnmatchcase(name, pattern) for name in names[fqn])
            }
            if not found:
                known = quoted(sorted(buffers)) or "none"
                raise StateError(
                    f"state '{pattern}' matches no buffer; the buffers are {known};"
                    " parameters that no entry point writes have to be named in full",
                    fqn=pattern,
                )
            matched |= found
        for fqn in sorted(chosen - matched):
            raise StateError(
                f"entry point '{written_by[fqn][0]}' writes buffer '{fqn}', which"
                " 'state' leaves out: each entry point would get a copy of its own;"
                f" add '{fqn}' to 'state'",
                method_name=written_by[fqn][0],
                fqn=fqn,
            )
        chosen = matched
    for fqn in sorted(chosen):
        if buffers[fqn].dtype not in _COPYABLE:
            raise StateError(
                f"shared buffer '{fqn}' is {dtype_name(buffers[fqn].dtype)}, which"
                " ExecuTorch 1.5.1 cannot copy; register it as another type, such as"
                " int32 or float32",
                fqn=fqn,
            )
    return {
        fqn: StateBuffer(
            fqn,
            buffers[fqn].detach().cpu().clone(memory_format=torch.contiguous_format),
            aliases.get(fqn, ()),
        )
        for fqn in sorted(chosen)
    }


def with_groups(
    state: SharedState, groups: Mapping[str, Sequence[str]] | None
) -> SharedState:
    """Put state into groups, each of which lies in memory without a gap.

    Args:
        groups: by name of the group, fqns of its state, or what they begin with, or
            globs. State that none names stays in its group, at first the one without
            a name.

    Raises:
        StateError: a pattern matches no state, state is in two groups, or a group
            has the name of state that is not all of it, or that fqns of state outside
            of it begin with.
    """
    chosen: dict[str, str] = {}
    fqns = list(state)
    names = [(fqn, *state[fqn].aliases) for fqn in fqns]
    if not isinstance(groups, Mapping | None):
        raise StateError(
            f"groups is {kind_of(groups)}, expected a dict; write {{'group': ['h']}}"
        )
    for group, patterns in (groups or {}).items():
        if not isinstance(group, str) or not group or "\0" in group:
            raise StateError(f"a group of state is named {group!r}, expected a name")
        for pattern in names_in(patterns, f"group '{group}'", StateError):
            found = [fqns[position] for position in matching(pattern, names)]
            if not found:
                known = quoted(state) or "none"
                raise StateError(
                    f"'{pattern}' of group '{group}' matches no shared state; there is"
                    f" {known}",
                    fqn=pattern,
                )
            for fqn in found:
                if chosen.setdefault(fqn, group) != group:
                    raise StateError(
                        f"'{fqn}' is in the groups '{chosen[fqn]}' and '{group}'; leave"
                        " it out of one of them",
                        fqn=fqn,
                    )
    grouped = {
        fqn: replace(buffer, group=chosen.get(fqn, buffer.group))
        for fqn, buffer in state.items()
    }
    _check_group_names(grouped)
    return grouped


def grouped_as(declared: SharedState, state: SharedState) -> SharedState:
    """Put state into the groups that it has in ``declared`` under any of its names."""
    groups = {
        name: buffer.group
        for buffer in declared.values()
        for name in (buffer.fqn, *buffer.aliases)
    }
    return {
        fqn: replace(buffer, group=groups.get(fqn, buffer.group))
        for fqn, buffer in state.items()
    }


def _check_group_names(state: SharedState) -> None:
    names = {name: b for b in state.values() for name in (b.fqn, *b.aliases)}
    for group in {buffer.group for buffer in state.values()} & names.keys():
        members = [buffer for buffer in state.values() if buffer.group == group]
        if members != [names[group]]:
            raise StateError(
                f"group '{group}' has the name of state that is not all of it; rename"
                " the group",
                fqn=group,
            )
    groups = {buffer.group for buffer in state.values()} - {""}
    for name, buffer in names.items():
        for group in groups - {buffer.group}:
            if name.startswith(f"{group}."):
                raise StateError(
                    f"group '{group}' does not have '{name}', which its name would"
                    " stand for too in a session; rename the group",
                    fqn=name,
                )


class _InitialValues(nn.Module):
    """Ignores the old values of state and returns the initial ones."""

    def __init__(self, values: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.count = 0
        for value in values:
            setattr(self, f"initial_value_{self.count}", value)
            self.count += 1

    def forward(self, state: list[torch.Tensor]) -> list[torch.Tensor]:
        return [getattr(self, f"initial_value_{i}") for i in range(self.count)]


def initial_values_program(state: SharedState) -> LiftedProgram:
    """Make the entry point without arguments that writes every initial value."""
    values = [_stored(buffer.initial_value) for buffer in state.values()]
    program = torch.export.export(
        _InitialValues(values),
        ([buffer.initial_value for buffer in state.values()],),
    )
    call = flat_call(0, 0)
    return functionalize(
        LiftedProgram(
            program,
            inputs=tuple(state),
            outputs=tuple(state),
            call=CallingConvention(call.in_spec, call.out_spec),
        )
    )


def _stored(value: torch.Tensor) -> torch.Tensor:
    """Return one element where all are equal: writes broadcast."""
    if value.numel() > 1:
        first = value.flatten()[:1]
        if (
            value.view(torch.uint8)
            .reshape(value.numel(), -1)
            .eq(first.view(torch.uint8))
            .all()
        ):
            return first.reshape(()).clone()
    return value
