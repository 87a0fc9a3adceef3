"""The buffers and parameters of a module tree, by the memory that they lie in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import StateError
from ..lifted.tensor_views import View, lies_in, overlap, view_of_whole

_NAME_OF_CONSTANT = re.compile(r"_?lifted_tensor_(constant)?\d+$")

#: A registry of a module (``_buffers`` or ``_parameters``) and a key of it.
Place = tuple[dict[str, Any], str]


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredTensor:
    """A buffer or parameter with all of its places; a tied one has several.

    ``fqn`` is its first name and ``names`` are all, that one first.
    """

    tensor: torch.Tensor
    names: tuple[str, ...]
    places: tuple[Place, ...]

    @property
    def fqn(self) -> str:
        return self.names[0]

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, nn.Parameter)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Registered tensors that lie in the memory of one of them, the first.

    ``views`` make each of the others from it.
    """

    members: tuple[RegisteredTensor, ...]
    views: tuple[View, ...] = ()

    @property
    def fqn(self) -> str:
        return self.members[0].fqn

    @property
    def whole(self) -> torch.Tensor:
        return self.members[0].tensor

    @property
    def is_plain_buffer(self) -> bool:
        """Whether it is no more than one buffer."""
        return len(self.members) == 1 and not self.members[0].is_parameter

    @property
    def aliases(self) -> tuple[str, ...]:
        """The other names of what is the whole memory in the same form."""
        same = [m for m in self.members if _is_same_view(m.tensor, self.whole)]
        return tuple(sorted(name for m in same for name in m.names if name != self.fqn))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for member in self.members for name in member.names)

    def stand_ins(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Make all members of a contiguous tensor that stands for the first."""
        return [whole, *(view(whole) for view in self.views)]


def registered_tensors(root: nn.Module) -> list[RegisteredTensor]:
    """Return every buffer and parameter once, in the order of the modules.

    Raises:
        StateError: one is called as a constant of the exporter may be, or is no dense
            tensor.
    """
    names: dict[int, list[str]] = {}
    for fqn, tensor in _named_tensors(root, remove_duplicate=False):
        if _NAME_OF_CONSTANT.match(fqn):
            raise StateError(
                f"'{fqn}' has a name that torch.export and ExecuTorch give to"
                " constants, one of which would take its place; rename it",
                fqn=fqn,
            )
        if defect := defect_of(tensor):
            raise StateError(f"'{fqn}' {defect}", fqn=fqn)
        names.setdefault(id(tensor), []).append(fqn)
    places: dict[int, list[Place]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for _, module in root.named_modules():
        for registry in (module._parameters, module._buffers):
            for name, tensor in registry.items():
                if tensor is not None:
                    tensors[id(tensor)] = tensor
                    places.setdefault(id(tensor), []).append((registry, name))
    return [
        RegisteredTensor(tensor, tuple(names[key]), tuple(places[key]))
        for key, tensor in tensors.items()
    ]


def defect_of(tensor: torch.Tensor) -> str | None:
    """Say why no program can hold or take a tensor, and what to do, or None."""
    if is_lazy(tensor):
        return "has no size yet; call the module once before export"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return "is no dense tensor, which programs need; make it one"
    if tensor.is_meta:
        return "is on the meta device, without values; give it some before export"
    return None


def _named_tensors(
    root: nn.Module, *, remove_duplicate: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    yield from root.named_buffers(remove_duplicate=remove_duplicate)
    yield from root.named_parameters(remove_duplicate=remove_duplicate)


class MemoryMap:
    """Tells which registered tensors are one piece of memory.

    Args:
        root: the module whose buffers and parameters are looked at.
        more: tensors that count as if they were registered in it.
    """

    def __init__(self, root: nn.Module, more: Iterable[RegisteredTensor] = ()) -> None:
        self.tensors = [*registered_tensors(root), *more]
        self._families = {
            id(member): family
            for family in _families(self.tensors)
            for member in family
        }
        self._by_name = {name: t for t in self.tensors for name in t.names}

    def memory_of(self, fqn: str) -> Memory:
        """Return the memory that a registered tensor lies in.

        Raises:
            StateError: no member of it is all of it, or another one is no view
                that operators of ExecuTorch can make.
        """
        named = self._by_name[fqn]
        family = self._families[id(named)]
        if len(family) == 1:
            return Memory((named,))
        whole = next((t for t in family if _is_whole(t, family)), None)
        if whole is None:
            raise StateError(
                f"'{family[0].fqn}' and '{family[1].fqn}' lie in one memory, of which"
                " none is all; register a contiguous buffer that is, and make the"
                " others views of it",
                fqn=fqn,
            )
        others = [t for t in family if t is not whole]
        views = []
        for other in others:
            view = view_of_whole(whole.tensor, other.tensor)
            if view is None:
                raise StateError(
                    f"'{other.fqn}' is a view of '{whole.fqn}' that ExecuTorch cannot"
                    " make: it skips elements, or has another dtype; take the view in"
                    " the entry points instead",
                    fqn=other.fqn,
                )
            views.append(view)
        return Memory((whole, *others), tuple(views))

    def layout(self, state: Iterable[str]) -> list[Memory]:
        """Return the memories named by ``state``, and all other buffers as plain."""
        chosen = {m.fqn: m for m in map(self.memory_of, sorted(state))}
        taken = {id(member) for memory in chosen.values() for member in memory.members}
        plain = [
            Memory((tensor,))
            for tensor in self.tensors
            if not tensor.is_parameter and id(tensor) not in taken
        ]
        return [*chosen.values(), *plain]

    def named_by(self, patterns: Iterable[str]) -> set[str]:
        """Return what ``patterns`` name beside plain buffers.

        Globs are for buffers; a parameter has to be named in full.
        """
        return {
            tensor.fqn
            for tensor in self.tensors
            for pattern in patterns
            for name in tensor.names
            if name == pattern
            or (not tensor.is_parameter and fnmatchcase(name, pattern))
            if tensor.is_parameter or len(self._families[id(tensor)]) > 1
        }


def _families(tensors: Iterable[RegisteredTensor]) -> list[list[RegisteredTensor]]:
    """Group tensors whose memory overlaps, directly or through others."""
    by_storage: dict[object, list[list[RegisteredTensor]]] = {}
    for one in tensors:
        # A subclass such as a quantized weight is made of tensors of its own.
        is_composed = is_traceable_wrapper_subclass(one.tensor)
        storage = 0 if is_composed else one.tensor.untyped_storage().data_ptr()
        key: object = storage or id(one)
        groups = by_storage.setdefault(key, [])
        met = [g for g in groups if any(overlap(m.tensor, one.tensor) for m in g)]
        joined = [member for group in met for member in group]
        groups[:] = [g for g in groups if g not in met] + [[*joined, one]]
    return [group for groups in by_storage.values() for group in groups]


def _is_whole(one: RegisteredTensor, family: Iterable[RegisteredTensor]) -> bool:
    return one.tensor.is_contiguous() and all(
        lies_in(other.tensor, one.tensor) for other in family
    )


def _is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def refuse_hidden_views(
    state: Mapping[str, torch.Tensor], constants: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse names for the memory of shared state that are registered nowhere.

    Args:
        state: shared state by fqn.
        constants: by entry point, tensors that tracing took for constants: what
            attributes, closures and partials hold.

    Raises:
        StateError: a constant lies in the memory of state; the exported program
            would keep the value it had at export.
    """
    for method_name, tensors in constants.items():
        for tensor in tensors.values():
            if not isinstance(tensor, torch.Tensor):
                continue
            for fqn, one in state.items():
                if overlap(one, tensor):
                    raise StateError(
                        f"entry point '{method_name}' uses a tensor that is a view of"
                        f" shared state '{fqn}', but is not registered, and would keep"
                        f" the value it had at export; use '{fqn}' itself, or register"
                        " the view as a buffer",
                        method_name=method_name,
                        fqn=fqn,
                    )
