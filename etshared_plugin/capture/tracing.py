"""Trace a method with the state of its module as inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import EntryPointError, StateError
from ..state import tensor_kind
from .module_snapshot import ModuleSnapshot
from .registered_tensors import Memory, RegisteredTensor
from .tensor_substitution import TensorSubstitution


class TracedMethod(nn.Module):
    """Calls a function with the state of ``root`` replaced by arguments.

    Other parameters and submodules are those of ``root`` under their own names.
    What the function leaves in the state, by whatever kind of write, is returned
    before its result.

    Args:
        root: the module.
        method_name: for error messages.
        function: what to call.
        layout: the state. All buffers must be in it.
        tensors: all that is registered, also what is no state.
        snapshot: what no attribute may differ from after a call.

    After a call, ``assigned`` holds the fqns of state that is another tensor than
    before, ``merged`` pairs that became one memory, and ``replaced`` parameters
    outside of the state that were assigned.
    """

    assigned: set[str]
    merged: list[tuple[str, str]]
    replaced: set[str]

    def __init__(
        self,
        root: nn.Module,
        method_name: str,
        function: Callable[..., Any],
        layout: Sequence[Memory],
        tensors: Sequence[RegisteredTensor],
        snapshot: ModuleSnapshot,
    ) -> None:
        super().__init__()
        self._parameters = root._parameters
        self._modules = root._modules
        # Not submodules: their parameters must keep their names.
        self.__dict__["_call"] = (method_name, function, layout, tensors, snapshot)

    def forward(
        self, state: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[torch.Tensor], Any]:
        method_name, function, layout, tensors, snapshot = self.__dict__["_call"]
        wholes = [value.clone() for value in state]
        storages = {
            memory.fqn: _storage(whole)
            for memory, whole in zip(layout, wholes, strict=True)
        }
        live = {
            member: stand_in
            for memory, whole in zip(layout, wholes, strict=True)
            for member, stand_in in zip(
                memory.members, memory.stand_ins(whole), strict=True
            )
        }
        for member, stand_in in live.items():
            if member.is_parameter:
                stand_in._is_param = True
            _register(member, stand_in)
        before = {tensor: _registered(tensor) for tensor in tensors}
        substitution = TensorSubstitution((t.tensor, v[0]) for t, v in before.items())
        try:
            # torch.export has a symbol for each size of what a branch is given, also
            # for sizes that are fixed, and then fails where a branch reshapes it.
            static = torch._dynamo.config.patch(assume_static_by_default=True)
            with substitution, static:
                # torch.export swaps some; afterwards it hides what changed.
                swapped = snapshot.changed_attributes()
                result = function(*args, **kwargs)
                for name in snapshot.changed_attributes():
                    if name not in swapped:
                        raise _changes_attribute(method_name, name)
            result = pytree.tree_map_only(torch.Tensor, substitution.current, result)
            found = {tensor: _registered(tensor) for tensor in tensors}
        finally:
            for tensor, stand_ins in before.items():
                for (registry, name), stand_in in zip(
                    tensor.places, stand_ins, strict=True
                ):
                    registry[name] = None if tensor in live else stand_in
        self.__dict__["replaced"] = {
            tensor.fqn
            for tensor, stand_ins in before.items()
            if any(f is not s for f, s in zip(found[tensor], stand_ins, strict=True))
            or any(substitution.has_new_data(s) for s in stand_ins)
        } - {member.fqn for member in live}
        values: dict[str, torch.Tensor] = {}
        assigned: set[str] = set()
        for memory, whole in zip(layout, wholes, strict=True):
            values[memory.fqn] = whole
            for member in memory.members:
                value = _value(method_name, member, found[member])
                if value is not live[member] or substitution.has_new_data(value):
                    value = substitution.current(value)
                    _check_assignment(method_name, memory, member)
                    values[memory.fqn] = value
                    assigned.add(memory.fqn)
            _check_kind(method_name, memory, values[memory.fqn])
            if memory.fqn not in assigned and _storage(whole) != storages[memory.fqn]:
                raise EntryPointError(
                    f"entry point '{method_name}' gives '{memory.fqn}' other memory,"
                    " which tracing cannot see; copy into it instead",
                    method_name=method_name,
                    fqn=memory.fqn,
                )
        self.__dict__["assigned"] = assigned
        self.__dict__["merged"] = names_of_one(
            (fqn, _storage(value)) for fqn, value in values.items()
        )
        return [value.contiguous() for value in values.values()], result


def _register(tensor: RegisteredTensor, value: torch.Tensor | None) -> None:
    for registry, name in tensor.places:
        registry[name] = value


def _registered(tensor: RegisteredTensor) -> list[Any]:
    return [registry.get(name) for registry, name in tensor.places]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def names_of_one(named: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """Pair each name of what has several with the first of them."""
    first: dict[object, str] = {}
    return [
        (first[thing], name)
        for name, thing in named
        if first.setdefault(thing, name) != name
    ]


def _value(
    method_name: str, member: RegisteredTensor, found: Sequence[object]
) -> torch.Tensor:
    value = found[0]
    if any(other is not value for other in found):
        raise StateError(
            f"entry point '{method_name}' assigns '{member.fqn}' under one of its"
            " names only, which ends the sharing; write in place instead",
            method_name=method_name,
            fqn=member.fqn,
        )
    if not isinstance(value, torch.Tensor):
        raise StateError(
            f"entry point '{method_name}' leaves '{member.fqn}' as"
            f" {type(value).__name__}, expected a tensor",
            method_name=method_name,
            fqn=member.fqn,
        )
    return value


def _check_assignment(
    method_name: str, memory: Memory, member: RegisteredTensor
) -> None:
    if len(memory.members) > 1:
        other = next(m for m in memory.members if m is not member)
        raise StateError(
            f"entry point '{method_name}' assigns '{member.fqn}', which lies in one"
            f" memory with '{other.fqn}' and would not any more; write in place"
            " instead",
            method_name=method_name,
            fqn=member.fqn,
        )


def _check_kind(method_name: str, memory: Memory, value: torch.Tensor) -> None:
    old = tensor_kind(memory.whole)
    if tensor_kind(value) != old:
        remedy = "register it at its largest size and write into a slice"
        if value.shape == memory.whole.shape:
            remedy = "bring the value to its dtype with '.to()'"
        raise StateError(
            f"entry point '{method_name}' changes '{memory.fqn}' from {old} to"
            f" {tensor_kind(value)}; state keeps its shape and dtype, so {remedy}",
            method_name=method_name,
            fqn=memory.fqn,
        )


@contextmanager
def prepared(
    root: nn.Module, method_name: str, layout: Sequence[Memory]
) -> Iterator[ModuleSnapshot]:
    """Take away state and gradients for tracing; give ``root`` back as it was.

    Raises:
        EntryPointError: something that is no state changed, which the exported
            program would have kept at its value.
    """
    snapshot = ModuleSnapshot(root)
    for memory in layout:
        for member in memory.members:
            _register(member, None)
    frozen: dict[nn.Parameter, nn.Parameter] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                module._parameters[name] = frozen.setdefault(
                    parameter, nn.Parameter(parameter.detach(), requires_grad=False)
                )
    snapshot.expect_registered()
    try:
        yield snapshot
    except BaseException:
        snapshot.restore()
        raise
    changed = snapshot.restore()
    if changed is not None:
        if _is_registered_as_none(root, changed):
            raise EntryPointError(
                f"entry point '{method_name}' assigns '{changed}', which is registered"
                " as None; give it a tensor before export",
                method_name=method_name,
                fqn=changed,
            )
        raise _changes_attribute(method_name, changed)


def _is_registered_as_none(root: nn.Module, fqn: str) -> bool:
    prefix, _, name = fqn.rpartition(".")
    module = dict(root.named_modules()).get(prefix)
    return module is not None and any(
        name in registry and registry[name] is None
        for registry in (module._buffers, module._parameters)
    )


def _changes_attribute(method_name: str, fqn: str) -> EntryPointError:
    return EntryPointError(
        f"entry point '{method_name}' changes '{fqn}', which is no buffer: the"
        " exported program would keep the value it had at export; register it as a"
        " buffer before export",
        method_name=method_name,
        fqn=fqn,
    )
