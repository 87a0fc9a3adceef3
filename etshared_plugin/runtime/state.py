"""The state of a session by name, and copies of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..context import Buffer
from ..errors import StateMismatchError
from ..state_names import matching
from ..wording import kind_of, quoted
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

    #: Whether it was taken of chosen state only, so that the rest is not missing.
    _is_part = False

    def __init__(self, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._values: dict[str, np.ndarray[Any, Any]] = {}
        self._dtypes: dict[str, str] = {}
        for name, value in values.items():
            self._add(name, *copied_array(value, f"saved state '{name}'"))

    @classmethod
    def _of(
        cls, buffers: Iterable[Buffer], values: Iterable[Any], *, is_part: bool
    ) -> Snapshot:
        snapshot = cls({})
        snapshot._is_part = is_part
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

    def _exchangeable(self, buffer: Buffer) -> object:
        """Return a value for the native module; saved bits are what they were."""
        array, dtype = self._values[buffer.fqn], self._dtypes[buffer.fqn]
        if dtype in ("uint16", "void16"):  # numpy's files know no bfloat16
            dtype = buffer.scalar_type.dtype_name
        return as_bits(array, dtype)


class SessionState(Mapping[str, Any]):
    """Live views of a session's state, by fqn or alias.

    A view shows what the entry points have written last, writing to it changes
    the state, and it stays valid for as long as it is referenced. Assigning
    copies a value in. Views do not wait for a call in another thread.
    """

    def __init__(
        self,
        native: _native.Session,
        buffers: Mapping[int, Buffer],
        tensors: Framework,
    ) -> None:
        self._native = native
        self._buffers = buffers  # by their index in the record
        self._tensors: Framework = tensors
        self._indices = {
            name: index
            for index, buffer in buffers.items()
            for name in (buffer.fqn, *buffer.aliases)
        }

    def group(self, name: str) -> SessionState:
        """Return the state of a group, or of what else a name stands for.

        Args:
            name: as for :meth:`Session.reset`.

        Raises:
            StateMismatchError: if no state has such a name.
        """
        chosen = {index: self._buffers[index] for index in self._matching([name])}
        return SessionState(self._native, chosen, self._tensors)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        index = self._index(name)
        dtype = self._buffers[index].scalar_type.dtype_name
        as_torch = wants_torch(self._tensors, ())
        if not as_torch:
            check_numpy_knows((dtype,), f"state '{name}'")
        return from_native(self._native.view(index, as_torch), dtype, as_torch)

    def __setitem__(self, name: str, value: object) -> None:
        index = self._index(name)
        if value is None:
            raise StateMismatchError(f"the value for state '{name}' is None")
        given = exchangeable(value, f"the value for state '{name}'")
        self._native.assign(index, given)

    def __iter__(self) -> Iterator[str]:
        return (buffer.fqn for buffer in self._buffers.values())

    def __len__(self) -> int:
        return len(self._buffers)

    def __contains__(self, name: object) -> bool:
        return name in self._indices

    def __repr__(self) -> str:
        parts = (
            f"'{buffer.fqn}' {buffer.scalar_type.dtype_name} {buffer.sizes}"
            for buffer in self._buffers.values()
        )
        return f"<SessionState {', '.join(parts) or 'without names'}>"

    def _index(self, name: str) -> int:
        try:
            return self._indices[name]
        except KeyError:
            hint = "; a view of state is part of the state that is all of its memory"
            if isinstance(name, str) and matching(
                name, [[fqn] for fqn in self._indices]
            ):
                hint = f"; group({name!r}) has all of its parts"
            raise KeyError(
                f"there is no state '{name}', {self._known()}{hint}"
            ) from None

    def _known(self) -> str:
        buffers = self._buffers.values()
        groups = quoted(sorted({buffer.group for buffer in buffers} - {""}))
        if not buffers:
            return "none has a name"
        names = quoted(buffer.fqn for buffer in buffers)
        return f"only {names}" + (f", in groups {groups}" if groups else "")

    def _matching(self, names: str | Iterable[str] | None) -> list[int]:
        """Return the indices of buffers that a caller names; None names all."""
        if names is None:
            return list(self._buffers)
        given = [names] if isinstance(names, str) else names
        if not isinstance(given, Iterable):
            given = [given]
        found: set[int] = set()
        indices, buffers = list(self._buffers), self._buffers.values()
        fqns = [(buffer.fqn, *buffer.aliases) for buffer in buffers]
        groups = [buffer.group for buffer in buffers]
        for name in given:
            if not isinstance(name, str):
                raise StateMismatchError(
                    f"state is named by {kind_of(name)}, expected a string or several"
                )
            matches = matching(name, fqns, groups)
            if not matches:
                raise StateMismatchError(f"no state matches '{name}', {self._known()}")
            found |= {indices[position] for position in matches}
        return sorted(found)

    def _snapshot(self, names: str | Iterable[str] | None) -> Snapshot:
        chosen = self._matching(names)
        return Snapshot._of(
            [self._buffers[index] for index in chosen],
            self._native.snapshot(chosen),
            is_part=names is not None,
        )

    def _restore(
        self, values: Mapping[str, Any], names: str | Iterable[str] | None
    ) -> None:
        if not isinstance(values, Mapping):
            raise StateMismatchError(
                f"saved state is of type '{type(values).__name__}', expected a mapping"
            )
        given = values if isinstance(values, Snapshot) else Snapshot(values)
        chosen = {self._buffers[index].fqn: index for index in self._matching(names)}
        unknown = () if names is not None else sorted(given.keys() - chosen.keys())
        if names is None and given._is_part:
            chosen = {fqn: index for fqn, index in chosen.items() if fqn in given}
        missing = sorted(chosen.keys() - given.keys())
        if missing or unknown:
            parts = [f"lacks {quoted(missing)}"] if missing else []
            if unknown:
                parts.append(f"has {quoted(unknown)}, which the program lacks")
            hint = "; name what to restore of it" if missing and names is None else ""
            raise StateMismatchError(f"the snapshot {' and '.join(parts)}{hint}")
        self._native.restore(
            [
                (index, given._exchangeable(self._buffers[index]))
                for index in chosen.values()
            ]
        )
