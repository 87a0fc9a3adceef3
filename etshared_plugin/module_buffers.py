"""The buffers of a module tree, and what else shares their memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .errors import StateError


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
                if overlap(other_tensor, tensor):
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


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors that have elements lie in each other's memory."""

    def extent(t: torch.Tensor) -> tuple[int, int]:
        start = t.data_ptr()
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        return start, start + (last + 1) * t.element_size()

    (a_start, a_end), (b_start, b_end) = extent(a), extent(b)
    return a_start < b_end and b_start < a_end


def refuse_hidden_views(
    root: nn.Module,
    state: Mapping[str, torch.Tensor],
    constants: Mapping[str, Mapping[str, Any]],
) -> None:
    """Refuse other names for the memory of shared state.

    Args:
        root: the module whose parameters are looked at.
        state: shared buffers by fqn.
        constants: by entry point, tensors that tracing took for constants: what
            attributes, closures and partials hold.

    Raises:
        StateError: a parameter or constant shares memory with state; the exported
            program would keep the value it had at export.
    """
    storages = {
        tensor.untyped_storage().data_ptr(): fqn
        for fqn, tensor in state.items()
        if tensor.numel()
    }
    for name, parameter in root.named_parameters():
        fqn = storages.get(parameter.untyped_storage().data_ptr())
        if fqn is not None:
            raise StateError(
                f"shared buffer '{fqn}' has the memory of parameter '{name}', which"
                " would keep the value it had at export; use the buffer in its place",
                fqn=fqn,
            )
    for method_name, fqn in _frozen(storages, constants):
        raise StateError(
            f"entry point '{method_name}' uses a tensor that is shared buffer '{fqn}'"
            " or a view of it, but not under its name, and would keep the value it had"
            f" at export; use '{fqn}' itself",
            method_name=method_name,
            fqn=fqn,
        )


def _frozen(
    storages: Mapping[int, str], constants: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    for method_name, tensors in constants.items():
        for tensor in tensors.values():
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                fqn = storages.get(tensor.untyped_storage().data_ptr())
                if fqn is not None:
                    yield method_name, fqn
