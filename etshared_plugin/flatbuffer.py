"""Bounds checking of FlatBuffers, and reading of what has been checked.

flatc generates no verifier for Python, and its readers silently cut strings and
wrap negative positions. :func:`check` applies the rules of FlatBuffers' C++
verifier and accepts nothing that it refuses; it also refuses offsets of zero and
vtables without their two sizes. Only afterwards may the generated readers see a
buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .errors import FormatError

#: A field's type as ``schema/regenerate.py`` writes it: the bytes of a scalar,
#: "string", a table's name, a list of one of these for a vector, or a union.
Field = int | str | list[int | str] | dict[str, tuple[str, ...]]
Tables = Mapping[str, Sequence[tuple[str, Field]]]

#: Nesting of tables; FlatBuffers' C++ verifier has the same limit.
MAX_DEPTH = 64

# Honest writers store an object once for each use, so the bytes that are
# reached add up to the buffer's size. Without a limit a small buffer whose
# vectors refer to each other's elements could stand for billions of them.
_MAX_REACHED = 4

_UINT8 = struct.Struct("<B")
_UINT16 = struct.Struct("<H")
_INT32 = struct.Struct("<i")
_UINT32 = struct.Struct("<I")


def check(data: memoryview, tables: Tables, root: str, identifier: bytes) -> None:
    """Check that every offset, vector and string lies inside ``data``.

    Raises:
        FormatError: with the offset in ``data`` of what is wrong.
    """
    if len(data) < 8:
        raise FormatError(f"{len(data)} bytes are too few for a FlatBuffer", offset=0)
    found = bytes(data[4:8])
    if found != identifier:
        raise FormatError(
            f"file identifier is {found!r}, expected {identifier!r}", offset=4
        )
    checker = _Checker(data, tables)
    checker.table(root, checker.reference(0), MAX_DEPTH)


def text(table: Any, field: str) -> str:  # noqa: ANN401
    """Return a string field of a generated reader; absent is empty."""
    return _decoded(getattr(table, field)() or b"", field)


def texts(table: Any, field: str) -> tuple[str, ...]:  # noqa: ANN401
    return tuple(_decoded(item, field) for item in items(table, field))


def numbers(table: Any, field: str) -> tuple[int, ...]:  # noqa: ANN401
    """Return a vector of scalars; absent is empty."""
    if not getattr(table, f"{field}Length")():
        return ()
    return tuple(getattr(table, f"{field}AsNumpy")().tolist())


def items(table: Any, field: str) -> Iterator[Any]:  # noqa: ANN401
    """Yield the tables or encoded strings of a vector."""
    item = getattr(table, field)
    return (item(index) for index in range(getattr(table, f"{field}Length")()))


def _decoded(encoded: bytes, field: str) -> str:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise FormatError(f"field '{field}' is not valid UTF-8") from cause


class _Checker:
    def __init__(self, data: memoryview, tables: Tables) -> None:
        self._data = data
        self._tables = tables
        self._unreached = _MAX_REACHED * len(data)

    def table(self, name: str, position: int, depth: int) -> None:
        if depth == 0:
            raise FormatError(
                f"tables are nested more than {MAX_DEPTH} deep", offset=position
            )
        vtable = position - self._number(_INT32, position)
        # Tables of one shape share their vtable, so it does not count as reached.
        self._inside(vtable, 2, 2)
        nbytes = _UINT16.unpack_from(self._data, vtable)[0]
        if nbytes < 4 or nbytes % 2:
            raise FormatError(
                f"table '{name}' has a vtable of {nbytes} bytes", offset=vtable
            )
        self._inside(vtable, nbytes, 2)
        present = (nbytes - 4) // 2
        offsets = struct.unpack_from(f"<{present}H", self._data, vtable + 4)
        # Fields that a newer schema has appended stay unread and unchecked.
        fields = self._tables[name]
        for slot, ((_, field), offset) in enumerate(zip(fields, offsets, strict=False)):
            if not offset:
                continue
            if isinstance(field, dict):
                number = offsets[slot - 1]
                kind = self._number(_UINT8, position + number) if number else 0
                self._union(field["union"], kind, position + offset, depth)
            else:
                self._field(field, position + offset, depth)

    def reference(self, position: int) -> int:
        offset = self._number(_UINT32, position)
        if not offset:
            raise FormatError("an offset refers to itself", offset=position)
        return position + offset

    def _union(
        self, members: tuple[str, ...], kind: int, position: int, depth: int
    ) -> None:
        value = self.reference(position)
        if 0 < kind <= len(members):
            self.table(members[kind - 1], value, depth - 1)
        else:
            # A kind of a newer schema; readers can tell it and leave it alone.
            self._inside(value, 1, 1)

    def _field(self, field: int | str | list[int | str], at: int, depth: int) -> None:
        if isinstance(field, int):
            self._claim(at, field, field)
        elif isinstance(field, list):
            self._vector(field[0], self.reference(at), depth)
        elif field == "string":
            self._string(self.reference(at))
        else:
            self.table(field, self.reference(at), depth - 1)

    def _vector(self, element: int | str, position: int, depth: int) -> None:
        count = self._number(_UINT32, position)
        start = position + 4
        if isinstance(element, int):
            self._claim(start, count * element, 1)
            return
        self._claim(start, count * 4, 1)
        for at in range(start, start + count * 4, 4):
            self._field(element, at, depth)

    def _string(self, position: int) -> None:
        length = self._number(_UINT32, position)
        self._claim(position + 4, length + 1, 1)
        if self._data[position + 4 + length]:
            raise FormatError("a string has no end", offset=position)

    def _number(self, packed: struct.Struct, position: int) -> int:
        self._claim(position, packed.size, packed.size)
        value: int = packed.unpack_from(self._data, position)[0]
        return value

    def _claim(self, position: int, nbytes: int, alignment: int) -> None:
        self._inside(position, nbytes, alignment)
        self._unreached -= nbytes
        if self._unreached < 0:
            raise FormatError("too many objects share their bytes", offset=position)

    def _inside(self, position: int, nbytes: int, alignment: int) -> None:
        size = len(self._data)
        if position < 0 or nbytes > size - position:
            raise FormatError(
                f"{nbytes} bytes at {position} lie outside the {size} bytes there are",
                offset=max(position, 0),
            )
        if position % alignment:
            raise FormatError(
                f"{nbytes} bytes at {position} are not aligned", offset=position
            )
