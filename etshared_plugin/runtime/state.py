"""The state of a session by name, and copies of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..context import Buffer
from ..errors import StateMismatchError
from . import _native
from .tensors import (
    Framework,
    as_bits,
    check_numpy_knows,
    copied_array,
    exchangeable,
    from_native,
    wants_torch,
)


class Snapshot(Mapping[str, "np.ndarray[Any, Any]"]):
    """A copy of state by fqn, which any program with that state can restore.

    It can be pickled, and made from a mapping of arrays. Its arrays are
    read-only; where numpy does not know bfloat16, such arrays hold the bits.
    """

    def __init__(self, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._values: dict[str, np.ndarray[Any, Any]] = {}
        self._dtypes: dict[str, str] = {}
        for name, value in values.items():
            self._add(name, *copied_array(value, f"saved state '{name}'"))

    @classmethod
    def _of(cls, buffers: Iterable[Buffer], values: Iterable[Any]) -> Snapshot:
        snapshot = cls({})
        for buffer, value in zip(buffers, values, strict=True):
            snapshot._add(buffer.fqn, value, buffer.scalar_type.dtype_name)
        return snapshot

    def _add(self, name: str, array: np.ndarray[Any, Any], dtype: str) -> None:
        array.flags.writeable = False
        self._values[name] = array
        self._dtypes[name] = dtype

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shapes = (f"'{name}' {array.shape}" for name, array in self._values.items())
        return f"<Snapshot of {', '.join(shapes) or 'no state'}>"

    def _exchangeable(self, name: str) -> object:
        return as_bits(self._values[name], self._dtypes[name])


class SessionState(Mapping[str, Any]):
    """Live views of a session's state, by fqn or alias.

    A view shows what the entry points have written last, writing to it changes
    the state, and it stays valid for as long as it is referenced. Assigning
    copies a value in. Views do not wait for a call in another thread.
    """

    def __init__(
        self, native: _native.Session, buffers: tuple[Buffer, ...], tensors: Framework
    ) -> None:
        self._native = native
        self._buffers = buffers
        self._tensors: Framework = tensors
        self._indices = {
            name: index
            for index, buffer in enumerate(buffers)
            for name in (buffer.fqn, *buffer.aliases)
        }

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        index = self._index(name)
        dtype = self._buffers[index].scalar_type.dtype_name
        as_torch = wants_torch(self._tensors, ())
        if not as_torch:
            check_numpy_knows((dtype,), f"state '{name}'")
        return from_native(self._native.view(index, as_torch), dtype, as_torch)

    def __setitem__(self, name: str, value: object) -> None:
        label = f"the value for state '{name}'"
        given = exchangeable(value, label)
        self._native.write([(self._index(name), given)], False)

    def __iter__(self) -> Iterator[str]:
        return (buffer.fqn for buffer in self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def __contains__(self, name: object) -> bool:
        return name in self._indices

    def __repr__(self) -> str:
        parts = (
            f"'{buffer.fqn}' {buffer.scalar_type.dtype_name} {buffer.sizes}"
            for buffer in self._buffers
        )
        return f"<SessionState {', '.join(parts) or 'without names'}>"

    def _index(self, name: str) -> int:
        try:
            return self._indices[name]
        except KeyError:
            raise KeyError(f"there is no state '{name}', {self._known()}") from None

    def _known(self) -> str:
        names = ", ".join(f"'{buffer.fqn}'" for buffer in self._buffers)
        return f"only {names}" if names else "none has a name"

    def _matching(self, names: Iterable[str]) -> list[int]:
        """Return the buffers that fqns, aliases, groups or globs name."""
        found: set[int] = set()
        for name in names:
            matches = {
                index
                for index, buffer in enumerate(self._buffers)
                for known in (buffer.fqn, *buffer.aliases, buffer.group)
                if known and (known == name or fnmatchcase(known, name))
            }
            if not matches:
                raise StateMismatchError(f"no state matches '{name}', {self._known()}")
            found |= matches
        return sorted(found)

    def _snapshot(self) -> Snapshot:
        return Snapshot._of(self._buffers, self._native.snapshot())

    def _restore(self, values: Mapping[str, Any]) -> None:
        if not isinstance(values, Mapping):
            raise StateMismatchError(
                f"saved state is of type '{type(values).__name__}', expected a mapping"
            )
        given = values if isinstance(values, Snapshot) else Snapshot(values)
        wanted = {buffer.fqn for buffer in self._buffers}
        missing = ", ".join(f"'{name}'" for name in sorted(wanted - given.keys()))
        unknown = ", ".join(f"'{name}'" for name in sorted(given.keys() - wanted))
        if missing or unknown:
            parts = [f"lacks {missing}"] if missing else []
            parts += [f"has {unknown}, which the program lacks"] if unknown else []
            raise StateMismatchError(f"the snapshot {' and '.join(parts)}")
        self._native.write(
            [
                (index, given._exchangeable(buffer.fqn))
                for index, buffer in enumerate(self._buffers)
            ],
            True,
        )
