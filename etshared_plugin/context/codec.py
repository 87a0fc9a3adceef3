"""The record as FlatBuffer bytes.

Records and tables have the same field names, so one walk over the schema's
layout serves them all; this module says only where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import flatbuffers
import numpy as np

from ..errors import ContextFormatError, FormatError
from ..flatbuffer import Field, check, items, numbers, text, texts
from ._generated import shared_context as schema
from .model import (
    CONTEXT_VERSION,
    Access,
    Arena,
    ArenaKind,
    Argument,
    Buffer,
    BufferUse,
    Delegate,
    EntryPointRecord,
    Extension,
    InitialValue,
    InputSizes,
    Producer,
    SharedContext,
    Structure,
    StructureKind,
    Weight,
)
from .scalar_type import ScalarType
from .validation import validate

_RECORDS: dict[str, Callable[..., Any]] = {
    "Producer": Producer,
    "Structure": Structure,
    "Argument": Argument,
    "InputSizes": InputSizes,
    "BufferUse": BufferUse,
    "EntryPoint": EntryPointRecord,
    "Buffer": Buffer,
    "Arena": Arena,
    "Weight": Weight,
    "OperatorCount": lambda name, count: (name, count),
    "BackendOption": lambda key, value: (key, value),
    "Delegate": Delegate,
    "Extension": Extension,
    "SharedContext": SharedContext,
}

_ENUMS: dict[tuple[str, str], type[IntEnum]] = {
    ("Structure", "kind"): StructureKind,
    ("BufferUse", "access"): Access,
    ("Buffer", "scalar_type"): ScalarType,
    ("Buffer", "initial_value"): InitialValue,
    ("Arena", "kind"): ArenaKind,
    ("Weight", "scalar_type"): ScalarType,
}

_BYTES = {"digest", "payload_digest", "payload"}

#: What an absent table stands for.
_ABSENT = {"Producer": Producer("", "", ""), "Structure": Structure()}


def encode(context: SharedContext) -> bytes:
    """Return the record's bytes; equal records give equal bytes.

    Raises:
        ContextFormatError: if the record breaks a rule of ``schema/README.md``.
    """
    validate(context)
    builder = flatbuffers.Builder(4096)
    builder.Finish(_write(builder, schema.ROOT, context), schema.IDENTIFIER)
    return bytes(builder.Output())


def decode(data: bytes | memoryview) -> SharedContext:
    """Return the record that ``data`` holds, checked against every rule.

    Raises:
        ContextFormatError: if the bytes are damaged, of another version, or the
            record breaks a rule of ``schema/README.md``. ``offset`` counts from
            the start of ``data``.
    """
    view = memoryview(data).cast("B")
    try:
        check(view, schema.TABLES, schema.ROOT, schema.IDENTIFIER)
        root = schema.SharedContext.GetRootAs(view)
        if root.Version() != CONTEXT_VERSION:
            # Another version may use the other fields in another way.
            validate(SharedContext(Producer("", "", ""), version=root.Version()))
        context: SharedContext = _read(schema.ROOT, root)
    except ContextFormatError:
        raise
    except FormatError as cause:
        raise ContextFormatError(
            f"the record is damaged: {cause}", offset=cause.offset
        ) from cause
    validate(context)
    return context


def _write(builder: flatbuffers.Builder, table: str, record: object) -> int:
    fields = schema.TABLES[table]
    if isinstance(record, tuple):
        values = list(record)
    else:
        values = [getattr(record, name) for name, _ in fields]
    written = [
        (name, _write_field(builder, field, value))
        for (name, field), value in zip(fields, values, strict=True)
        if isinstance(field, int) or value
    ]
    getattr(schema, f"{table}Start")(builder)
    for name, value in written:
        getattr(schema, f"{table}Add{_camel(name)}")(builder, value)
    position: int = getattr(schema, f"{table}End")(builder)
    return position


def _write_field(builder: flatbuffers.Builder, field: Field, value: Any) -> int:  # noqa: ANN401
    if isinstance(field, int):
        return int(value)
    if isinstance(field, list):
        return _write_vector(builder, field[0], value)
    if field == "string":
        return int(builder.CreateString(value))
    return _write(builder, str(field), value)


def _write_vector(
    builder: flatbuffers.Builder,
    element: int | str,
    values: Sequence[Any],
) -> int:
    if isinstance(values, bytes):
        return int(builder.CreateByteVector(values))
    if isinstance(element, int):
        return int(builder.CreateNumpyVector(np.array(values, f"<u{element}")))
    positions = [_write_field(builder, element, value) for value in values]
    builder.StartVector(4, len(positions), 4)
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    return int(builder.EndVector())


def _read(table: str, reader: Any) -> Any:  # noqa: ANN401
    if reader is None:
        return _ABSENT[table]
    return _RECORDS[table](
        **{
            name: _read_field(table, name, field, reader)
            for name, field in schema.TABLES[table]
        }
    )


def _read_field(table: str, name: str, field: Field, reader: Any) -> Any:  # noqa: ANN401
    accessor = _camel(name)
    if isinstance(field, int):
        value = getattr(reader, accessor)()
        enum = _ENUMS.get((table, name))
        return value if enum is None else _enum(enum, value, f"{table}.{name}")
    if isinstance(field, list):
        if name in _BYTES:
            return bytes(numbers(reader, accessor))
        if field[0] == "string":
            return texts(reader, accessor)
        if isinstance(field[0], int):
            return numbers(reader, accessor)
        return tuple(_read(field[0], item) for item in items(reader, accessor))
    if field == "string":
        return text(reader, accessor)
    return _read(str(field), getattr(reader, accessor)())


def _enum(enum: type[IntEnum], value: int, place: str) -> IntEnum:
    try:
        return enum(value)
    except ValueError as cause:
        raise FormatError(f"{place} {value} is unknown") from cause


@cache
def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
