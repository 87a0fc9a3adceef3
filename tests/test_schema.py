from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import flatbuffers
import pytest

from etshared_plugin.backends._generated import xnnpack_graph
from etshared_plugin.context import CONTEXT_KEY, CONTEXT_VERSION, ScalarType
from etshared_plugin.context._generated import shared_context
from etshared_plugin.errors import FormatError
from etshared_plugin.flatbuffer import check
from etshared_plugin.pte._generated import program

SCHEMA = Path(__file__).parents[1] / "schema"
README = (SCHEMA / "README.md").read_text(encoding="utf-8")


def executorch_schema(*parts: str) -> Path:
    spec = importlib.util.find_spec("executorch")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)), *parts)


def regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "regenerate", SCHEMA / "regenerate.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_scalar_types_are_executorchs() -> None:
    text = executorch_schema("schema", "scalar_type.fbs").read_text()
    declared = dict(re.findall(r"^\s*(\w+) = (\d+),", text, re.MULTILINE))
    assert declared == {
        name: str(value.value) for name, value in ScalarType.__members__.items()
    }


@pytest.mark.parametrize(
    ("generated", "schema"),
    [
        (shared_context, SCHEMA / "shared_context.fbs"),
        (program, executorch_schema("schema", "program.fbs")),
        (
            xnnpack_graph,
            executorch_schema(
                "backends", "xnnpack", "serialization", "runtime_schema.fbs"
            ),
        ),
    ],
)
def test_generated_layouts_are_the_schemas(generated: ModuleType, schema: Path) -> None:
    assert regenerate().layout(schema) in Path(str(generated.__file__)).read_text()


def test_the_released_schema_is_the_one_of_this_version() -> None:
    released = SCHEMA / "released" / f"{CONTEXT_VERSION}.fbs"
    assert released.read_text() == (SCHEMA / "shared_context.fbs").read_text()


def test_the_specification_names_every_table_and_field() -> None:
    missing = [
        f"{table}.{field}"
        for table, fields in shared_context.TABLES.items()
        for field in [table, *(name for name, _ in fields)]
        if f"`{field}`" not in README
    ]
    assert missing == []
    assert f"`{CONTEXT_KEY}`" in README
    assert f"`{shared_context.IDENTIFIER.decode()}`" in README


TABLES = {
    "Root": [
        ("flag", 1),
        ("name", "string"),
        ("child", "Root"),
        ("sizes", [8]),
        ("any_type", 1),
        ("any", {"union": ("Root", "Leaf")}),
    ],
    "Leaf": [("number", 8)],
}


def built() -> bytearray:
    """A root with a name, sizes and a leaf as its union's value."""
    builder = flatbuffers.Builder(64)
    builder.StartObject(1)
    builder.PrependInt64Slot(0, 7, 0)
    leaf = builder.EndObject()
    name = builder.CreateString("name")
    builder.StartVector(8, 2, 8)
    builder.PrependInt64(1)
    builder.PrependInt64(2)
    sizes = builder.EndVector()
    builder.StartObject(6)
    builder.PrependUOffsetTRelativeSlot(1, name, 0)
    builder.PrependUOffsetTRelativeSlot(3, sizes, 0)
    builder.PrependUint8Slot(4, 2, 0)
    builder.PrependUOffsetTRelativeSlot(5, leaf, 0)
    builder.Finish(builder.EndObject(), b"TEST")
    return bytearray(builder.Output())


def check_test(data: bytes | bytearray) -> None:
    check(memoryview(data), TABLES, "Root", b"TEST")


def test_a_sound_buffer_passes() -> None:
    check_test(built())


@pytest.mark.parametrize(
    ("found", "put", "message"),
    [
        (b"TEST", b"NOPE", "identifier is b'NOPE', expected b'TEST'"),
        (b"\x04\0\0\0name", b"\x40\0\0\0name", "lie outside the"),
        (b"name\0", b"name!", "a string has no end"),
        (b"\x02\0\0\0\x02\0\0\0", b"\xff\xff\xff\xff\x02\0\0\0", "lie outside the"),
    ],
)
def test_damage_is_found(found: bytes, put: bytes, message: str) -> None:
    data = built()
    position = data.index(found)
    data[position : position + len(put)] = put
    with pytest.raises(FormatError, match=message):
        check_test(data)


@pytest.mark.parametrize("root", [0, 2, 9, 1 << 31])
def test_impossible_roots_are_found(root: int) -> None:
    data = built()
    data[:4] = root.to_bytes(4, "little")
    with pytest.raises(FormatError):
        check_test(data)


def scalar_position(data: bytearray, slot: int) -> int:
    """Where the root's field ``slot`` lies."""
    root = int.from_bytes(data[:4], "little")
    vtable = root - int.from_bytes(data[root : root + 4], "little", signed=True)
    entry = vtable + 4 + 2 * slot
    return root + int.from_bytes(data[entry : entry + 2], "little")


def test_a_union_of_an_unknown_kind_is_left_alone() -> None:
    data = built()
    data[scalar_position(data, 4)] = 9
    check_test(data)
    value = scalar_position(data, 5)
    data[value : value + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(FormatError, match="lie outside"):
        check_test(data)
