"""Trace a method with the state of its module as inputs and outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .errors import EntryPointError, StateError

#: Attributes of a module that tracing handles by themselves.
_TENSOR_DICTS = ("_parameters", "_buffers", "_modules")


class TracedMethod(nn.Module):
    """Calls a function with the buffers of ``root`` replaced by arguments.

    Parameters and submodules are those of ``root`` under their own names. What
    the function leaves in the buffers, by whatever kind of write, is returned
    before its result.
    """

    def __init__(
        self,
        root: nn.Module,
        method_name: str,
        function: Callable[..., Any],
        owners: Mapping[str, list[tuple[nn.Module, str]]],
    ) -> None:
        super().__init__()
        self._parameters = root._parameters
        self._modules = root._modules
        # Not submodules: their parameters must keep their names.
        self.__dict__["_call"] = (method_name, function, owners)

    def forward(
        self, state: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[torch.Tensor], Any]:
        method_name, function, owners = self.__dict__["_call"]
        for value, places in zip(state, owners.values(), strict=True):
            live = value.clone()
            for module, name in places:
                module._buffers[name] = live
        try:
            result = function(*args, **kwargs)
            new_state = [
                _new_value(method_name, fqn, places, old)
                for (fqn, places), old in zip(owners.items(), state, strict=True)
            ]
        finally:
            for places in owners.values():
                for module, name in places:
                    module._buffers.pop(name, None)
        return new_state, result


def _new_value(
    method_name: str,
    fqn: str,
    places: list[tuple[nn.Module, str]],
    old: torch.Tensor,
) -> torch.Tensor:
    values = [module._buffers.get(name) for module, name in places]
    value = values[0]
    if any(other is not value for other in values):
        raise StateError(
            f"entry point '{method_name}' assigns buffer '{fqn}' under one of its"
            " names only, which ends the sharing; write in place instead",
            method_name=method_name,
            fqn=fqn,
        )
    if not isinstance(value, torch.Tensor):
        raise StateError(
            f"entry point '{method_name}' leaves buffer '{fqn}' as"
            f" {type(value).__name__}, expected a tensor",
            method_name=method_name,
            fqn=fqn,
        )
    if value.dtype != old.dtype or tuple(value.shape) != tuple(old.shape):
        raise StateError(
            f"entry point '{method_name}' changes buffer '{fqn}' from"
            f" {_describe(old)} to {_describe(value)}; state keeps its shape and"
            " dtype, so register it at its largest size and write into a slice",
            method_name=method_name,
            fqn=fqn,
        )
    return value


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def buffer_owners(root: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return every buffer's places by its first fqn; a tied buffer has several.

    Raises:
        StateError: two buffers are different views of one memory.
    """
    owners: dict[str, list[tuple[nn.Module, str]]] = {}
    first_names: dict[int, str] = {}
    storages: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in root.named_modules():
        for name, tensor in module._buffers.items():
            if tensor is None:
                continue
            fqn = f"{prefix}.{name}" if prefix else name
            first = first_names.setdefault(id(tensor), fqn)
            owners.setdefault(first, []).append((module, name))
            if first != fqn or tensor.numel() == 0:
                continue
            other = storages.setdefault(
                tensor.untyped_storage().data_ptr(), (fqn, tensor)
            )
            if other[0] != fqn and _overlap(other[1], tensor):
                raise StateError(
                    f"buffers '{other[0]}' and '{fqn}' are views of one memory; "
                    "register one of them and take the other as a view of it",
                    fqn=fqn,
                )
    return owners


def aliases(root: nn.Module, owners: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the other fqns of each tied buffer."""
    by_tensor: dict[int, list[str]] = {}
    for fqn, tensor in root.named_buffers(remove_duplicate=False):
        by_tensor.setdefault(id(tensor), []).append(fqn)
    return {
        names[0]: tuple(sorted(names[1:]))
        for names in by_tensor.values()
        if names[0] in owners and len(names) > 1
    }


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    def extent(t: torch.Tensor) -> tuple[int, int]:
        start = t.data_ptr()
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        return start, start + (last + 1) * t.element_size()

    (a_start, a_end), (b_start, b_end) = extent(a), extent(b)
    return a_start < b_end and b_start < a_end


@contextmanager
def untouched(root: nn.Module, method_name: str) -> Iterator[None]:
    """Give ``root`` back as it was, parameters without gradients meanwhile.

    Raises:
        EntryPointError: an attribute that is no tensor changed, which the
            exported program would have kept at its value.
    """
    modules = list(root.named_modules())
    tensor_dicts = [
        {key: dict(module.__dict__[key]) for key in _TENSOR_DICTS}
        for _, module in modules
    ]
    attributes = [_attributes(module) for _, module in modules]
    for _, module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                module._parameters[name] = nn.Parameter(
                    parameter.detach(), requires_grad=False
                )
    changed: str | None = None
    completed = False
    try:
        yield
        completed = True
    finally:
        for (prefix, module), dicts, before in zip(
            modules, tensor_dicts, attributes, strict=True
        ):
            for key, saved in dicts.items():
                target = module.__dict__[key]
                target.clear()
                target.update(saved)
            difference = _rewind_attributes(module, before)
            if changed is None and difference is not None:
                changed = f"{prefix}.{difference}" if prefix else difference
    if completed and changed is not None:
        raise EntryPointError(
            f"entry point '{method_name}' changes the attribute '{changed}', which is"
            " no buffer: the exported program would keep the value it had at export;"
            " register it as a buffer",
            method_name=method_name,
            fqn=changed,
        )


def _attributes(module: nn.Module) -> dict[str, _Snapshot]:
    return {
        name: _snapshot(value)
        for name, value in module.__dict__.items()
        if name not in _TENSOR_DICTS
    }


#: A value and, for a container, the snapshots of what it held.
_Snapshot = tuple[Any, Any]


def _snapshot(value: Any) -> _Snapshot:  # noqa: ANN401
    if isinstance(value, dict):
        return value, {key: _snapshot(item) for key, item in value.items()}
    if isinstance(value, list | deque | tuple):
        return value, [_snapshot(item) for item in value]
    return value, set(value) if isinstance(value, set) else None


def _unchanged(current: Any, snapshot: _Snapshot) -> bool:  # noqa: ANN401
    value, held = snapshot
    if isinstance(held, dict):
        return (
            type(current) is type(value)
            and list(current) == list(held)
            and all(_unchanged(current[key], held[key]) for key in held)
        )
    if isinstance(held, list):
        return (
            type(current) is type(value)
            and len(current) == len(held)
            and all(map(_unchanged, current, held))
        )
    if isinstance(held, set):
        return bool(current == held)
    if isinstance(value, bool | int | float | complex | str | bytes):
        return type(current) is type(value) and bool(current == value)
    return current is value


def _rewind(snapshot: _Snapshot) -> Any:  # noqa: ANN401
    """Put back what the snapshot's containers held; return its value."""
    value, held = snapshot
    if isinstance(held, dict):
        items = {key: _rewind(item) for key, item in held.items()}
        value.clear()
        value.update(items)
    elif isinstance(held, list):
        originals = [_rewind(item) for item in held]
        if isinstance(value, list):
            value[:] = originals
        elif isinstance(value, deque):
            value.clear()
            value.extend(originals)
    elif isinstance(held, set):
        value.clear()
        value.update(held)
    return value


def _rewind_attributes(
    module: nn.Module, before: Mapping[str, _Snapshot]
) -> str | None:
    """Put attributes back; return the name of one that had changed."""
    current = module.__dict__
    changed = [n for n in current if n not in before and n not in _TENSOR_DICTS]
    for name in changed:
        del current[name]
    for name, snapshot in before.items():
        if name not in current or not _unchanged(current[name], snapshot):
            changed.append(name)
        elif current[name] is snapshot[0]:
            continue
        current[name] = _rewind(snapshot)
    return changed[0] if changed else None
