"""The record as FlatBuffer bytes.

Records and tables have the same field names, so one walk over the schema's
layout serves them all; this module says only where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import flatbuffers
import numpy as np

from ..errors import ContextFormatError, FormatError
from ..flatbuffer import Field, read
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

#: What scalars are read as, other than integers.
_SCALARS: dict[tuple[str, str], type[IntEnum] | type[bool]] = {
    ("Argument", "keyword_only"): bool,
    ("EntryPoint", "generated"): bool,
    ("Structure", "kind"): StructureKind,
    ("BufferUse", "access"): Access,
    ("Buffer", "scalar_type"): ScalarType,
    ("Buffer", "initial_value"): InitialValue,
    ("Arena", "kind"): ArenaKind,
    ("Weight", "scalar_type"): ScalarType,
    ("Weight", "external"): bool,
}

_BYTES = {"digest", "payload_digest", "payload"}

#: Tables that may be absent, and scalars that are not 0 when they are.
_ABSENT: dict[tuple[str, str], object] = {
    ("SharedContext", "producer"): Producer("", "", ""),
    ("Argument", "structure"): Structure(),
    ("EntryPoint", "result"): Structure(),
    ("BufferUse", "access"): Access.READ,
}


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
        root = read(view, schema.TABLES, schema.ROOT, schema.IDENTIFIER)
        version = root.get("version", 0)
        if version != CONTEXT_VERSION:
            # Another version may use the other fields in another way.
            validate(SharedContext(Producer("", "", ""), version=version))
        context: SharedContext = _record(schema.ROOT, root)
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


def _record(table: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    return _RECORDS[table](
        **{
            name: _value(table, name, field, values[name])
            if name in values
            else _absent(table, name, field)
            for name, field in schema.TABLES[table]
        }
    )


def _value(table: str, name: str, field: Field, value: Any) -> object:  # noqa: ANN401
    if isinstance(field, int):
        return _scalar(table, name, value)
    if isinstance(field, list):
        if field[0] in schema.TABLES:
            return tuple(_record(str(field[0]), item) for item in value)
        if field[0] == 1:
            return bytes(value) if name in _BYTES else tuple(value)
        return value
    return value if field == "string" else _record(str(field), value)


def _absent(table: str, name: str, field: Field) -> object:
    if (table, name) in _ABSENT:
        return _ABSENT[table, name]
    if isinstance(field, int):
        return _scalar(table, name, 0)
    if isinstance(field, list):
        return b"" if name in _BYTES else ()
    return ""


def _scalar(table: str, name: str, value: int) -> int:
    kind = _SCALARS.get((table, name))
    if kind is None:
        return value
    try:
        return kind(value)
    except ValueError as cause:
        raise FormatError(f"{table}.{name} {value} is unknown") from cause


@cache
def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
