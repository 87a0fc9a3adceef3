"""Trace a method with the state of its module as inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .errors import EntryPointError, StateError
from .module_snapshot import ModuleSnapshot
from .state import tensor_kind


class TracedMethod(nn.Module):
    """Calls a function with the buffers of ``root`` replaced by arguments.

    Parameters and submodules are those of ``root`` under their own names. What
    the function leaves in the buffers, by whatever kind of write, is returned
    before its result. After a call, ``assigned`` holds the fqns of buffers that
    are other tensors than before, and ``merged`` pairs that became one memory.
    """

    assigned: set[str]
    merged: list[tuple[str, str]]

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
        self.__dict__["_call"] = (root, method_name, function, owners)

    def forward(
        self, state: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[torch.Tensor], Any]:
        root, method_name, function, owners = self.__dict__["_call"]
        live = {fqn: value.clone() for fqn, value in zip(owners, state, strict=True)}
        storages = {fqn: _storage(value) for fqn, value in live.items()}
        for fqn, places in owners.items():
            for module, name in places:
                module._buffers[name] = live[fqn]
        parameters = _parameters(root)
        try:
            result = function(*args, **kwargs)
            for name, parameter in _parameters(root).items():
                if parameters.get(name) is not parameter:
                    raise EntryPointError(
                        f"entry point '{method_name}' replaces the parameter"
                        f" '{name[1]}'; register it as a buffer to change it",
                        method_name=method_name,
                        fqn=name[1],
                    )
            values = {
                fqn: _new_value(method_name, fqn, places, live[fqn])
                for fqn, places in owners.items()
            }
        finally:
            for places in owners.values():
                for module, name in places:
                    module._buffers.pop(name, None)
        self.__dict__["assigned"] = {f for f, v in values.items() if v is not live[f]}
        self.__dict__["merged"] = _merged(values)
        for fqn, value in values.items():
            if value is live[fqn] and _storage(value) != storages[fqn]:
                raise EntryPointError(
                    f"entry point '{method_name}' gives buffer '{fqn}' other data,"
                    " which tracing cannot see; copy into the buffer instead",
                    method_name=method_name,
                    fqn=fqn,
                )
        return [value.contiguous() for value in values.values()], result


def _parameters(root: nn.Module) -> dict[tuple[int, str], Any]:
    return {
        (id(module), name): parameter
        for module in root.modules()
        for name, parameter in module._parameters.items()
    }


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _merged(values: Mapping[str, torch.Tensor]) -> list[tuple[str, str]]:
    first: dict[int, str] = {}
    return [
        (first[storage], fqn)
        for fqn, storage in ((f, _storage(v)) for f, v in values.items())
        if first.setdefault(storage, fqn) != fqn
    ]


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
            f" {tensor_kind(old)} to {tensor_kind(value)}; state keeps its shape and"
            " dtype, so register it at its largest size and write into a slice",
            method_name=method_name,
            fqn=fqn,
        )
    return value


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
