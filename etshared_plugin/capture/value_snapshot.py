"""A Python value with everything in it that can change, remembered and put back."""

from __future__ import annotations

import array
import copy
import functools
import io
import itertools
import operator
import random
from collections import deque
from collections.abc import Callable, Iterator
from types import (
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

#: Values whose equality says that nothing changed.
PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)

#: Packages whose objects are not looked into.
OPAQUE_PACKAGES = (
    *("torch", "numpy", "builtins", "functools", "weakref", "enum"),
    # Loggers, locks and paths, which remember answers in attributes.
    *("logging", "threading", "_thread", "pathlib"),
)


def _refill_array(value: Any, content: bytes) -> None:  # noqa: ANN401
    del value[:]
    value.frombytes(content)


def _rewrite(value: Any, held: tuple[Any, int]) -> None:  # noqa: ANN401
    content, position = held
    if value.closed:
        return  # it cannot be opened again
    value.seek(0)
    value.truncate()
    value.write(content)
    value.seek(position)


#: A kind of objects, how one tells what it holds, as something that compares, and how
#: it takes that back.
_Holder: TypeAlias = tuple[Any, Callable[[Any], Any], Callable[[Any, Any], None]]

#: For objects that have no attributes.
_HOLDERS: tuple[_Holder, ...] = (
    (bytearray, bytes, lambda value, held: value.__setitem__(slice(None), held)),
    (array.array, array.array.tobytes, _refill_array),
    (
        (io.StringIO, io.BytesIO),
        lambda value: () if value.closed else (value.getvalue(), value.tell()),
        _rewrite,
    ),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (
        np.random.Generator,
        lambda value: copy.deepcopy(value.bit_generator.state),
        lambda value, held: setattr(value.bit_generator, "state", held),
    ),
    (
        np.random.RandomState,
        lambda value: value.get_state(legacy=False),
        np.random.RandomState.set_state,
    ),
)

#: Iterators that tell by ``__reduce__`` how far they are.
_ITERATORS: tuple[type, ...] = (
    itertools.count,
    type(iter(())),
    type(iter([])),
    type(iter(range(0))),
)


class Snapshot:
    """One value with everything in it that can change.

    Looks into containers, arrays, tensors, generators of random numbers and the
    attributes of plain objects. What it cannot see, such as closures and globals,
    is compared by identity.
    """

    def __init__(self, value: Any, seen: dict[int, Any] | None = None) -> None:  # noqa: ANN401
        self.value = value
        self._held: Any = None
        self._holder: _Holder | None = None
        self._attributes: dict[str, Snapshot] | None = None
        self._first: Snapshot | None = None
        self._restored = value
        self._is_matching = False
        seen = {} if seen is None else seen
        if isinstance(value, PLAIN):
            return
        if id(value) in seen:
            first = seen[id(value)]
            self._first = first if isinstance(first, Snapshot) else None
            return
        seen[id(value)] = self  # keeps the id taken
        parts = _parts(value)
        if parts is not None:
            self._held = [Snapshot(part, seen) for part in parts]
        elif isinstance(value, np.ndarray):
            self._held = value.copy()
        elif isinstance(value, torch.Tensor):
            if not isinstance(value, nn.Parameter):
                self._held = value._version, value.detach().clone()
        elif isinstance(value, _ITERATORS):
            self._held = copy.copy(value)
        else:
            self._holder = next((h for h in _HOLDERS if isinstance(value, h[0])), None)
            self._held = self._holder and self._holder[1](value)
        if _has_attributes(value):
            self._attributes = {
                name: Snapshot(one, seen) for name, one in _attributes(value).items()
            }

    def matches(self, current: Any) -> bool:  # noqa: ANN401
        if self._first is not None:
            # What two attributes hold, torch.export may put back as two copies.
            first = self._first
            return current is self.value or first._is_matching or first.matches(current)
        self._is_matching = True
        try:
            return self._matches(current) and self._has_same_attributes(current)
        finally:
            self._is_matching = False

    def _matches(self, current: Any) -> bool:  # noqa: ANN401
        value, held = self.value, self._held
        if isinstance(value, PLAIN):
            return type(current) is type(value) and (
                current == value or (current != current and value != value)
            )
        if isinstance(held, list):
            if type(current) is not type(value):
                return False
            now = _parts(current)
            assert now is not None
            if isinstance(value, set | frozenset):
                members = [one.value for one in held]
                if current != set(members):
                    return False
                now = members
            return len(now) == len(held) and all(
                one.matches(part) for one, part in zip(held, now, strict=True)
            )
        return current is value and self._is_as_it_was()

    def _is_as_it_was(self) -> bool:
        """Tell whether the value, which is still there, holds the same."""
        value, held = self.value, self._held
        if held is None:
            return True
        if isinstance(value, torch.Tensor):
            return bool(value._version == held[0])
        if isinstance(value, _ITERATORS):
            return bool(value.__reduce__() == held.__reduce__())
        return _is_equal(self._holder[1](value) if self._holder else value, held)

    def _has_same_attributes(self, current: Any) -> bool:  # noqa: ANN401
        held = self._attributes
        if held is None:
            return True
        now = _attributes(current)
        return list(now) == list(held) and all(
            one.matches(now[name]) for name, one in held.items()
        )

    def restore(self) -> Any:  # noqa: ANN401
        """Put back what the value held; return it, or a copy where it cannot."""
        if self._first is not None:
            return self._first._restored
        value, held = self.value, self._held
        if isinstance(held, list):
            value = _refilled(value, [one.restore() for one in held])
        elif not self._is_as_it_was():
            if isinstance(value, _ITERATORS):
                value = held
            elif isinstance(value, torch.Tensor):
                with torch.no_grad():
                    value.copy_(held[1])
            elif isinstance(value, np.ndarray):
                value[...] = held
            elif self._holder is not None:
                self._holder[2](value, held)
        if self._attributes is not None:
            items = self._attributes.items()
            _set_attributes(value, {name: one.restore() for name, one in items})
        self._restored = value
        return value


def _parts(value: Any) -> list[Any] | None:  # noqa: ANN401
    """Return what a container holds; for a dict its keys and then its values."""
    if isinstance(value, dict | MappingProxyType):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | deque | set | frozenset):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    return None


def _refilled(value: Any, parts: list[Any]) -> Any:  # noqa: ANN401
    """Give a container what it held, or make another of those that never change."""
    if isinstance(value, dict):
        half = len(parts) // 2
        value.clear()
        value.update(zip(parts[:half], parts[half:], strict=True))
    elif isinstance(value, list | deque):
        value.clear()
        value.extend(parts)
    elif isinstance(value, set):
        value.clear()
        value.update(parts)
    elif isinstance(value, tuple) and any(map(operator.is_not, value, parts)):
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return value


def _is_equal(value: Any, held: Any) -> bool:  # noqa: ANN401
    if isinstance(held, np.ndarray):
        return np.array_equal(value, held, equal_nan=held.dtype.kind in "fc")
    if isinstance(held, dict):
        return all(_is_equal(value[key], one) for key, one in held.items())
    return bool(value == held)


def _has_attributes(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, type | ModuleType | FunctionType | torch.Tensor):
        return False
    if isinstance(value, nn.Module):
        return True  # one that is registered nowhere
    package = type(value).__module__.partition(".")[0]
    return package not in OPAQUE_PACKAGES and (
        hasattr(value, "__dict__") or next(_slots(value), None) is not None
    )


def _slots(value: Any) -> Iterator[MemberDescriptorType]:  # noqa: ANN401
    names = set()
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            for member in vars(kind).values():
                # A slot of a class above with the same name is out of reach.
                if isinstance(member, MemberDescriptorType):
                    if member.__name__ not in names:
                        yield member
                    names.add(member.__name__)


def _attributes(value: Any) -> dict[str, Any]:  # noqa: ANN401
    attributes = dict(getattr(value, "__dict__", {}))
    for slot in _slots(value):
        try:
            attributes[slot.__name__] = slot.__get__(value)
        except AttributeError:
            continue  # nothing was assigned
    return attributes


def _set_attributes(value: Any, attributes: dict[str, Any]) -> None:  # noqa: ANN401
    now = _attributes(value)
    for slot in _slots(value):
        name = slot.__name__
        if name not in attributes and name in now:
            slot.__delete__(value)
        elif name in attributes and attributes[name] is not now.get(name):
            slot.__set__(value, attributes[name])
        attributes.pop(name, None)
    if hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(attributes)
