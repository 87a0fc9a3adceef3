"""Reading of FlatBuffers that may be damaged.

flatc generates no verifier for Python, and its readers silently cut strings and
wrap negative positions. :func:`read` and :func:`check` apply the rules of
FlatBuffers' C++ verifier and accept nothing that it refuses; they also refuse
offsets of zero and vtables without their two sizes. Only what :func:`check` has
accepted may the generated readers see.
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

_INT32 = struct.Struct("<i")
_UNSIGNED = {
    packed.size: packed for packed in map(struct.Struct, ("<B", "<H", "<I", "<Q"))
}
_UINT8, _UINT16, _UINT32 = (_UNSIGNED[nbytes] for nbytes in (1, 2, 4))


def read(
    data: memoryview, tables: Tables, root: str, identifier: bytes
) -> dict[str, Any]:
    """Return the root table: its present fields by name, tables in it likewise.

    Scalars come back as unsigned integers, vectors of bytes as views of ``data``,
    other vectors as tuples. Unions are checked, but not read.

    Raises:
        FormatError: with the offset in ``data`` of what is wrong: an offset, vector
            or string that does not lie inside, or a string that is not UTF-8.
    """
    if len(data) < 8:
        raise FormatError(f"{len(data)} bytes are too few for a FlatBuffer", offset=0)
    found = bytes(data[4:8])
    if found != identifier:
        raise FormatError(
            f"file identifier is {found!r}, expected {identifier!r}", offset=4
        )
    reader = _Reader(data, tables)
    return reader.table(root, reader.reference(0), MAX_DEPTH)


def check(data: memoryview, tables: Tables, root: str, identifier: bytes) -> None:
    """Check what :func:`read` would, for readers that are generated.

    Raises:
        FormatError: as :func:`read`.
    """
    read(data, tables, root, identifier)


def text(table: Any, field: str) -> str:  # noqa: ANN401
    """Return a string field of a generated reader; absent is empty."""
    return _decoded(getattr(table, field)() or b"", field)


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


class _Reader:
    def __init__(self, data: memoryview, tables: Tables) -> None:
        self._data = data
        self._tables = tables
        self._unreached = _MAX_REACHED * len(data)

    def table(self, name: str, position: int, depth: int) -> dict[str, Any]:
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
        values = {}
        # Fields that a newer schema has appended stay unread and unchecked.
        for slot, ((key, field), offset) in enumerate(
            zip(self._tables[name], offsets, strict=False)
        ):
            if not offset:
                continue
            if isinstance(field, dict):
                number = offsets[slot - 1]
                kind = self._number(_UINT8, position + number) if number else 0
                self._union(field["union"], kind, position + offset, depth)
            else:
                values[key] = self._field(field, position + offset, depth)
        return values

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

    def _field(self, field: int | str | list[int | str], at: int, depth: int) -> object:
        if isinstance(field, int):
            return self._number(_UNSIGNED[field], at)
        if isinstance(field, list):
            return self._vector(field[0], self.reference(at), depth)
        if field == "string":
            return self._string(self.reference(at))
        return self.table(field, self.reference(at), depth - 1)

    def _vector(self, element: int | str, position: int, depth: int) -> object:
        count = self._number(_UINT32, position)
        start = position + 4
        nbytes = count * (element if isinstance(element, int) else 4)
        self._claim(start, nbytes, 1)
        if element == 1:
            return self._data[start : start + nbytes]
        if isinstance(element, int):
            code = _UNSIGNED[element].format[-1]
            return struct.unpack_from(f"<{count}{code}", self._data, start)
        return tuple(
            self._field(element, at, depth) for at in range(start, start + nbytes, 4)
        )

    def _string(self, position: int) -> str:
        length = self._number(_UINT32, position)
        start = position + 4
        self._claim(start, length + 1, 1)
        if self._data[start + length]:
            raise FormatError("a string has no end", offset=position)
        try:
            return str(self._data[start : start + length], "utf-8")
        except UnicodeDecodeError as cause:
            raise FormatError("a string is not valid UTF-8", offset=start) from cause

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
