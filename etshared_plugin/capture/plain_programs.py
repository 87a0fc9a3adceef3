"""Find the state that ExportedPrograms of `torch.export` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..errors import StateError
from ..lifted.graph_surgery import is_functional
from ..lifted.lifted_state import LiftedProgram, functionalize, keep, lift
from ..lifted.program_surgery import (
    CONSTANT_INPUTS,
    buffer_fqns,
    buffer_tensor,
    inputs_of,
)
from ..lifted.tensor_views import identity, overlap
from ..state import SharedState, select_state, tensor_kind
from .refusals import refuse_unfaithful


@dataclass(frozen=True, slots=True)
class _Occurrence:
    method_name: str
    fqn: str
    tensor: torch.Tensor


def lift_declared(
    programs: Mapping[str, ExportedProgram], state: SharedState
) -> dict[str, LiftedProgram]:
    """Lift declared state of programs that were made for it, or put beside them.

    Raises:
        StateError: a program has other state, or the same in another form.
    """
    lifted = {}
    for name, program in programs.items():
        for fqn in state.keys() & buffer_fqns(program):
            own, declared = buffer_tensor(program, fqn), state[fqn].initial_value
            if tensor_kind(own) != tensor_kind(declared):
                raise StateError(
                    f"buffer '{fqn}' of entry point '{name}' is {tensor_kind(own)},"
                    f" expected {tensor_kind(declared)} as it was exported",
                    method_name=name,
                    fqn=fqn,
                )
        one = lift(program, state, method_name=name)
        lifted[name] = (
            one if is_functional(program.graph) else keep(functionalize(one), state)
        )
        refuse_unfaithful(name, lifted[name])
    return lifted


def lift_plain_programs(
    programs: Mapping[str, ExportedProgram], patterns: Sequence[str] | None
) -> tuple[dict[str, LiftedProgram], SharedState]:
    """Lift the state of programs that were exported one by one.

    A tensor is one piece of state under whatever fqns the programs know it. An
    fqn that stands for different tensors is shared only if ``patterns`` say so.

    Raises:
        StateError: as :func:`select_state`, or buffers of one name differ, or a
            program uses the memory of shared state under another name.
    """
    occurrences = [
        _Occurrence(name, fqn, buffer_tensor(program, fqn))
        for name, program in programs.items()
        for fqn in buffer_fqns(program)
    ]
    canonical = _canonical_names(occurrences)
    names: dict[str, set[str]] = {}
    for fqn, first in canonical.items():
        names.setdefault(first, set()).add(fqn)
    lifted = {
        name: functionalize(lift(program, canonical=canonical, method_name=name))
        for name, program in programs.items()
    }
    written_by: dict[str, list[str]] = {}
    for name, program in lifted.items():
        refuse_unfaithful(name, program)
        for fqn in program.outputs:
            written_by.setdefault(fqn, []).append(name)
    state = select_state(
        {o.fqn: o.tensor for o in reversed(occurrences) if canonical[o.fqn] == o.fqn},
        written_by,
        patterns,
        {
            first: tuple(sorted(n - {first}))
            for first, n in names.items()
            if n != {first}
        },
    )
    for fqn in state:
        _check_agreement(
            [o for o in occurrences if canonical[o.fqn] == fqn],
            chosen_by_caller=patterns is not None,
        )
    _refuse_hidden_views(
        programs, [o for o in occurrences if canonical[o.fqn] in state]
    )
    return {name: keep(program, state) for name, program in lifted.items()}, state


def _canonical_names(occurrences: Sequence[_Occurrence]) -> dict[str, str]:
    """Map each fqn to the first fqn of the same tensor."""
    canonical: dict[str, str] = {}
    first_names: dict[object, str] = {}
    for occurrence in occurrences:
        first = first_names.setdefault(_identity(occurrence), occurrence.fqn)
        canonical.setdefault(occurrence.fqn, canonical.get(first, first))
    return canonical


def _identity(occurrence: _Occurrence) -> object:
    """Return what two names of one tensor have in common."""
    return identity(occurrence.tensor) or occurrence.fqn


def _check_agreement(
    occurrences: Sequence[_Occurrence], *, chosen_by_caller: bool
) -> None:
    first = occurrences[0]
    for other in occurrences[1:]:
        where = (
            f"buffer '{first.fqn}' of entry point '{first.method_name}' and"
            f" '{other.fqn}' of entry point '{other.method_name}'"
        )
        if tensor_kind(first.tensor) != tensor_kind(other.tensor):
            problem = f"are {tensor_kind(first.tensor)} and {tensor_kind(other.tensor)}"
        elif _identity(first) == _identity(other):
            continue
        elif not chosen_by_caller:
            problem = (
                "are different tensors; export both from one module, or name the"
                " buffer in 'state' to share it by name"
            )
        elif not torch.equal(first.tensor, other.tensor):
            problem = "have different values"
        else:
            continue
        raise StateError(
            f"{where} {problem}", method_name=other.method_name, fqn=first.fqn
        )


def _refuse_hidden_views(
    programs: Mapping[str, ExportedProgram], state: Sequence[_Occurrence]
) -> None:
    """Refuse what would keep its value when shared state in its memory changes."""
    for name, program in programs.items():
        for node, spec in inputs_of(program):
            if spec.kind not in CONSTANT_INPUTS or not node.users:
                continue
            used = _Occurrence(
                name, str(spec.target), buffer_tensor(program, str(spec.target))
            )
            for one in state:
                if spec.kind is InputKind.BUFFER and _identity(used) == _identity(one):
                    continue
                if (
                    used.tensor.numel()
                    and one.tensor.numel()
                    and overlap(used.tensor, one.tensor)
                ):
                    raise StateError(
                        f"entry point '{name}' uses '{used.fqn}', which lies in the"
                        f" memory of shared buffer '{one.fqn}' and would keep the value"
                        f" it had at export; use '{one.fqn}' itself",
                        method_name=name,
                        fqn=one.fqn,
                    )
