"""Trace a method with the state of its module as inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .errors import EntryPointError, StateError
from .module_snapshot import ModuleSnapshot


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
    return value.contiguous()


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def buffer_owners(root: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return every buffer's places by its first fqn; a tied buffer has several.

    Raises:
        StateError: two buffers are different views of one memory.
    """
    owners: dict[str, list[tuple[nn.Module, str]]] = {}
    first_names: dict[int, str] = {}
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for prefix, module in root.named_modules():
        for name, tensor in module._buffers.items():
            if tensor is None:
                continue
            fqn = f"{prefix}.{name}" if prefix else name
            first = first_names.setdefault(id(tensor), fqn)
            owners.setdefault(first, []).append((module, name))
            if first != fqn or tensor.numel() == 0:
                continue
            others = by_storage.setdefault(tensor.untyped_storage().data_ptr(), [])
            for other, other_tensor in others:
                if _overlap(other_tensor, tensor):
                    raise StateError(
                        f"buffers '{other}' and '{fqn}' are views of one memory;"
                        " register one of them and take the other as a view of it",
                        fqn=fqn,
                    )
            others.append((fqn, tensor))
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
def prepared(
    root: nn.Module,
    method_name: str,
    owners: Mapping[str, list[tuple[nn.Module, str]]],
) -> Iterator[None]:
    """Take away buffers and gradients for tracing; give ``root`` back as it was.

    Raises:
        EntryPointError: something that is no buffer changed, which the exported
            program would have kept at its value.
    """
    snapshot = ModuleSnapshot(root)
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                module._parameters[name] = nn.Parameter(
                    parameter.detach(), requires_grad=False
                )
    for places in owners.values():
        for module, name in places:
            del module._buffers[name]
    snapshot.expect_registered()
    try:
        yield
    except BaseException:
        snapshot.restore()
        raise
    changed = snapshot.restore()
    if changed is not None:
        raise EntryPointError(
            f"entry point '{method_name}' changes '{changed}', which is no buffer:"
            " the exported program would keep the value it had at export; register"
            " it as a buffer",
            method_name=method_name,
            fqn=changed,
        )


def refuse_hidden_views(root: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Refuse attributes that are views of shared state.

    Raises:
        StateError: an attribute that is no buffer shares memory with state; the
            exported program would keep the value it had at export.
    """
    storages = {
        tensor.untyped_storage().data_ptr(): fqn
        for fqn, tensor in state.items()
        if tensor.numel()
    }
    for name, tensor in ModuleSnapshot(root).unregistered_tensors():
        fqn = storages.get(tensor.untyped_storage().data_ptr())
        if fqn is not None:
            raise StateError(
                f"attribute '{name}' is a view of shared buffer '{fqn}': the exported"
                f" program would keep its value; take the view of '{fqn}' where it is"
                " used",
                fqn=fqn,
            )
