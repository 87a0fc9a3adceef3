from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etshared_plugin.context import (
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
    ScalarType,
    SharedContext,
    Structure,
    StructureKind,
    Weight,
    decode,
    encode,
    validate,
)
from etshared_plugin.context._generated import shared_context as schema
from etshared_plugin.errors import ContextFormatError

GOLDEN = Path(__file__).parent / "golden" / "shared_context_1.bin"

LEAF = Structure()
PAIR = Structure(StructureKind.TUPLE, (LEAF, LEAF))

# Every field holds something, so that the golden file covers the whole schema.
RECORD = SharedContext(
    producer=Producer("0.1.0", "1.5.1", "2.13.0"),
    entry_points=(
        EntryPointRecord(
            name="forward",
            arguments=(
                Argument(
                    "batch",
                    Structure(StructureKind.DICT, (LEAF, PAIR), ("größe", "x")),
                ),
                Argument("gain", keyword_only=True),
            ),
            result=Structure(
                StructureKind.CUSTOM,
                (LEAF, Structure(StructureKind.LIST, (LEAF,))),
                ("logits", "caches"),
                "models.vad:Output",
            ),
            buffers=(BufferUse(0, Access.READ_WRITE), BufferUse(1, Access.READ)),
            delegates=(0, 1),
            activation_nbytes=96,
            inputs=(
                InputSizes((2, 3), (16, 3), (1, 0)),
                InputSizes((), (), ()),
                InputSizes((2,), (16,), (1,)),
                InputSizes((0, 1), (2**31 - 1, 4), (3, 2)),
            ),
        ),
        EntryPointRecord(
            name="reset_state",
            buffers=(BufferUse(0, Access.WRITE), BufferUse(1, Access.WRITE)),
            generated=True,
        ),
    ),
    buffers=(
        Buffer(
            fqn="encoder.cache",
            scalar_type=ScalarType.FLOAT,
            sizes=(2, 3),
            dim_order=(1, 0),
            mem_id=2,
            offset=0,
            nbytes=24,
            initial_value=InitialValue.GIVEN,
            aliases=("cache", "decoder.cache"),
            group="caches",
        ),
        Buffer("count", ScalarType.LONG, (), (), 2, 32, 8),
    ),
    arenas=(
        Arena(1, 128, 16, ArenaKind.ACTIVATIONS),
        Arena(2, 48, 16, ArenaKind.SHARED_STATE),
        Arena(3, 1 << 40, 64, ArenaKind.CUSTOM),
    ),
    weights=(
        Weight(
            identity="layer.weight float32",
            digest=bytes(range(32)),
            nbytes=64,
            scalar_type=ScalarType.CHAR,
            sizes=(8, 8),
            keys=("key a", "key b"),
            fqns=("layer.weight", "tied.weight"),
            quantization="per-channel int8, axis 0",
            delegates=(0, 1),
            entry_points=(0,),
        ),
        Weight("scale", bytes(32), 4, ScalarType.FLOAT, (1,), entry_points=(0, 1)),
    ),
    delegates=(
        Delegate(
            backend_id="XnnpackBackend",
            entry_point=0,
            index=0,
            payload_digest=bytes(range(32, 64)),
            payload_nbytes=1 << 33,
            operators=(("Conv2d", 2), ("FullyConnected", 1)),
            weights=(0,),
            options=(("workspace", "disabled"),),
        ),
        Delegate("XnnpackBackend", 0, 1, bytes(32), 7, weights=(0,)),
    ),
    extensions=(Extension("example", 3, b"\0payload\xff"),),
)


def test_decode_returns_what_was_encoded() -> None:
    assert decode(encode(RECORD)) == RECORD
    assert decode(memoryview(encode(RECORD))) == RECORD


def test_a_record_without_anything_survives() -> None:
    empty = SharedContext(Producer("", "", ""))
    assert decode(encode(empty)) == empty


def test_the_record_of_version_1_has_these_bytes() -> None:
    assert encode(RECORD) == GOLDEN.read_bytes()


def test_the_record_of_version_1_is_still_read() -> None:
    assert decode(GOLDEN.read_bytes()) == RECORD


def entry(index: int, **changes: object) -> SharedContext:
    return changed("entry_points", index, **changes)


def changed(field: str, index: int, **changes: object) -> SharedContext:
    records = list(getattr(RECORD, field))
    records[index] = replace(records[index], **changes)
    return replace(RECORD, **{field: tuple(records)})


def argument(structure: Structure) -> SharedContext:
    inputs = (InputSizes(),) * structure.leaf_count
    return entry(0, arguments=(Argument("x", structure),), inputs=inputs)


def one_input(sizes: InputSizes) -> SharedContext:
    return entry(0, arguments=(Argument("x"),), inputs=(sizes,))


def nested(depth: int) -> Structure:
    structure = LEAF
    for _ in range(depth - 1):
        structure = Structure(StructureKind.LIST, (structure,))
    return structure


WEIGHT = RECORD.weights[0]
FORWARD, RESET = RECORD.entry_points
CACHE, COUNT = RECORD.buffers

BROKEN_RULES: dict[str, tuple[SharedContext, str]] = {
    "version": (
        replace(RECORD, version=2),
        "has version 2, expected 1; use the release of etshared_plugin",
    ),
    "NUL in a text": (
        replace(RECORD, producer=Producer("0\0", "", "")),
        "producer: a text holds a NUL character",
    ),
    "text is not UTF-8": (
        replace(RECORD, producer=Producer("\ud800", "", "")),
        "producer: a text is not valid UTF-8",
    ),
    "arena order": (
        replace(RECORD, arenas=RECORD.arenas[::-1]),
        "arenas are not strictly ascending",
    ),
    "arena 0": (
        changed("arenas", 0, mem_id=0, kind=ArenaKind.CUSTOM),
        "arena 0: mem_id is 0, expected 1 to 4294967295",
    ),
    "arena size": (changed("arenas", 2, nbytes=1 << 63), "arena 3: nbytes is"),
    "arena alignment": (
        changed("arenas", 2, alignment=24),
        "arena 3: alignment 24 is not a power of two",
    ),
    "arena without alignment": (
        changed("arenas", 2, alignment=0),
        "arena 3: alignment is 0",
    ),
    "activations elsewhere": (
        changed("arenas", 2, kind=ArenaKind.ACTIVATIONS),
        "arena 3: kind is ACTIVATIONS",
    ),
    "activations are something else": (
        changed("arenas", 0, kind=ArenaKind.CUSTOM),
        "arena 1: kind is CUSTOM",
    ),
    "buffer without a name": (changed("buffers", 1, fqn=""), "a name is empty"),
    "alias without a name": (
        changed("buffers", 0, aliases=("",)),
        "buffer 'encoder.cache': aliases: a name is empty",
    ),
    "alias order": (
        changed("buffers", 0, aliases=("b", "a")),
        "buffer 'encoder.cache': aliases are not strictly ascending",
    ),
    "buffer name twice": (
        changed("buffers", 1, fqn="cache"),
        "buffer 'cache': name 'cache' is used twice",
    ),
    "group in two pieces": (
        replace(
            RECORD,
            buffers=(
                *RECORD.buffers,
                replace(COUNT, fqn="z", offset=48, group="caches"),
            ),
        ),
        "buffer 'z': group 'caches' is not contiguous",
    ),
    "too many dimensions": (
        changed("buffers", 1, sizes=(1,) * 17, dim_order=tuple(range(17))),
        "buffer 'count': 17 dimensions, expected at most 16",
    ),
    "negative size": (
        changed("buffers", 1, sizes=(-1,), dim_order=(0,)),
        "buffer 'count': size is -1",
    ),
    "dim order": (
        changed("buffers", 0, dim_order=(0, 0)),
        r"buffer 'encoder.cache': dim order \[0, 0\] is not a permutation of 2",
    ),
    "buffer size": (
        changed("buffers", 0, nbytes=20),
        r"buffer 'encoder.cache': 20 bytes, expected 24 for float32\[2, 3\]",
    ),
    "buffer in no arena": (
        changed("buffers", 1, mem_id=4),
        "buffer 'count': mem_id 4 is no arena of shared state",
    ),
    "buffer among activations": (
        changed("buffers", 1, mem_id=1),
        "buffer 'count': mem_id 1 is no arena of shared state",
    ),
    "buffer alignment": (
        changed("buffers", 1, offset=40),
        "buffer 'count': offset 40 is not aligned to 16",
    ),
    "element alignment": (
        replace(
            changed("buffers", 1, offset=36),
            arenas=(RECORD.arenas[0], replace(RECORD.arenas[1], alignment=4)),
        ),
        "buffer 'count': offset 36 is not aligned",
    ),
    "buffer outside its arena": (
        changed("buffers", 1, offset=48),
        "buffer 'count': bytes 48 to 56 lie outside arena 2 of 48 bytes",
    ),
    "buffer order": (
        replace(RECORD, buffers=(COUNT, replace(CACHE, group=""))),
        "buffers are not ascending by mem_id and offset",
    ),
    "overlap": (
        changed("buffers", 1, offset=16),
        "buffer 'count': overlaps buffer 'encoder.cache'",
    ),
    "entry point without a name": (entry(0, name=""), "entry point: a name is empty"),
    "entry point order": (
        entry(0, name="z"),
        "entry points are not strictly ascending",
    ),
    "entry point twice": (
        entry(0, name="reset_state"),
        "entry points are not strictly ascending",
    ),
    "argument without a name": (
        entry(0, arguments=(Argument(""),)),
        "entry point 'forward': argument: a name is empty",
    ),
    "argument twice": (
        entry(0, arguments=(Argument("x"), Argument("x"))),
        "entry point 'forward': argument 'x' stands twice",
    ),
    "positional after keyword-only": (
        entry(0, arguments=(Argument("x", keyword_only=True), Argument("y"))),
        "positional argument 'y' follows a keyword-only one",
    ),
    "leaf with children": (
        argument(Structure(children=(LEAF,))),
        "argument 'x': a leaf has children",
    ),
    "keys missing": (
        argument(Structure(StructureKind.DICT, (LEAF,))),
        "argument 'x': 0 keys for 1 children of a DICT",
    ),
    "keys of a tuple": (
        argument(Structure(StructureKind.TUPLE, (LEAF,), ("k",))),
        "argument 'x': 1 keys for 1 children of a TUPLE",
    ),
    "keys repeat": (
        argument(Structure(StructureKind.DICT, (LEAF, LEAF), ("k", "k"))),
        "argument 'x': keys of a DICT repeat",
    ),
    "custom without type": (
        argument(Structure(StructureKind.CUSTOM)),
        "argument 'x': type: a name is empty",
    ),
    "type of a list": (
        argument(Structure(StructureKind.LIST, type_name="a:B")),
        "argument 'x': a LIST has the type name 'a:B'",
    ),
    "structure depth": (argument(nested(33)), "nested more than 32 deep"),
    "structure count": (
        argument(Structure(StructureKind.LIST, (LEAF,) * 65536)),
        "more than 65536 structures",
    ),
    "result": (
        entry(0, result=Structure(children=(LEAF,))),
        "entry point 'forward': result: a leaf has children",
    ),
    "sizes of an input missing": (
        entry(0, inputs=FORWARD.inputs[1:]),
        "entry point 'forward': sizes of 3 inputs, expected 4",
    ),
    "sizes of no input": (
        entry(1, inputs=(InputSizes(),)),
        "entry point 'reset_state': sizes of 1 inputs, expected 0",
    ),
    "sizes without their minimum": (
        one_input(InputSizes((), (4,), (0,))),
        "input 0: 0 min_sizes, 1 max_sizes and 1 symbols, expected one of each",
    ),
    "sizes without their symbols": (
        one_input(InputSizes((4,), (4,), ())),
        "input 0: 1 min_sizes, 1 max_sizes and 0 symbols, expected one of each",
    ),
    "dimensions of an input": (
        one_input(InputSizes((1,) * 17, (1,) * 17, (0,) * 17)),
        "input 0: 17 dimensions, expected at most 16",
    ),
    "minimum above maximum": (
        one_input(InputSizes((5,), (4,), (0,))),
        "input 0: min_size is 5, expected 0 to 4",
    ),
    "negative minimum": (
        one_input(InputSizes((-1,), (4,), (0,))),
        "input 0: min_size is -1, expected 0 to 4",
    ),
    "maximum": (
        one_input(InputSizes((0,), (1 << 31,), (0,))),
        "input 0: size is 2147483648, expected 0 to 2147483647",
    ),
    "symbol": (
        one_input(InputSizes((0,), (1,), (-1,))),
        "input 0: symbol is -1, expected 0 to 4294967295",
    ),
    "unknown buffer": (
        entry(0, buffers=(BufferUse(2, Access.READ),)),
        "entry point 'forward': buffer 2 is none of 2",
    ),
    "buffer use order": (
        entry(0, buffers=FORWARD.buffers[::-1]),
        "entry point 'forward': buffers are not strictly ascending",
    ),
    "delegates of an entry point": (
        entry(0, delegates=(0,)),
        r"entry point 'forward': delegates are \[0\], expected \[0, 1\]",
    ),
    "activation size": (
        entry(0, activation_nbytes=129),
        "entry point 'forward': activation_nbytes is 129, expected 0 to 128",
    ),
    "two generated entry points": (
        entry(0, generated=True),
        "entry points 'forward', 'reset_state' are all generated, expected one",
    ),
    "no initial value": (
        entry(1, buffers=(BufferUse(0, Access.WRITE), BufferUse(1, Access.READ))),
        "buffer 'count': no generated entry point writes its initial value",
    ),
    "generated with arguments": (
        entry(1, arguments=(Argument("x"),), inputs=(InputSizes(),)),
        "entry point 'reset_state': generated, but has arguments",
    ),
    "delegate order": (
        replace(RECORD, delegates=RECORD.delegates[::-1]),
        "delegates are not strictly ascending",
    ),
    "delegate of no entry point": (
        changed("delegates", 1, entry_point=2),
        "delegate 1: entry point 2 is none of 2",
    ),
    "backend": (
        changed("delegates", 0, backend_id=""),
        "delegate 0: backend id: a name is empty",
    ),
    "payload digest": (
        changed("delegates", 0, payload_digest=bytes(31)),
        "delegate 0: digest has 31 bytes, expected 32",
    ),
    "payload size": (
        changed("delegates", 0, payload_nbytes=-1),
        "delegate 0: payload_nbytes is -1",
    ),
    "operator order": (
        changed("delegates", 0, operators=(("b", 1), ("a", 1))),
        "delegate 0: operators are not strictly ascending",
    ),
    "operator count": (
        changed("delegates", 0, operators=(("a", 0),)),
        "delegate 0: count of 'a' is 0, expected 1 to",
    ),
    "unknown weight": (
        changed("delegates", 0, weights=(2,)),
        "delegate 0: weight 2 is none of 2",
    ),
    "weight order": (
        changed("delegates", 0, weights=(1, 0)),
        "delegate 0: weights are not strictly ascending",
    ),
    "option twice": (
        changed("delegates", 0, options=(("k", "1"), ("k", "2"))),
        "delegate 0: an option stands twice",
    ),
    "option without a name": (
        changed("delegates", 0, options=(("", "1"),)),
        "delegate 0: option: a name is empty",
    ),
    "delegates of a weight": (
        changed("weights", 0, delegates=(0,)),
        r"weight 0: delegates are \[0\], but \[0, 1\] use it",
    ),
    "weight without identity": (
        changed("weights", 0, identity=""),
        "weight 0: identity: a name is empty",
    ),
    "identity twice": (
        changed("weights", 1, identity=WEIGHT.identity),
        "weight 1: identity 'layer.weight float32' stands twice",
    ),
    "weight digest": (
        changed("weights", 0, digest=b""),
        "weight 0: digest has 0 bytes, expected 32",
    ),
    "weight size": (changed("weights", 0, nbytes=-1), "weight 0: nbytes is -1"),
    "weight shape": (changed("weights", 0, sizes=(-2,)), "weight 0: size is -2"),
    "key order": (
        changed("weights", 0, keys=("b", "a")),
        "weight 0: keys are not strictly ascending",
    ),
    "fqn order": (
        changed("weights", 0, fqns=("b", "a")),
        "weight 0: fqns are not strictly ascending",
    ),
    "users order": (
        changed("weights", 1, entry_points=(1, 0)),
        "weight 1: entry points are not strictly ascending",
    ),
    "unknown user": (
        changed("weights", 1, entry_points=(2,)),
        "weight 1: entry point 2 is none of 2",
    ),
    "extension without a name": (
        changed("extensions", 0, plugin=""),
        "extension: a name is empty",
    ),
    "extension twice": (
        replace(RECORD, extensions=RECORD.extensions * 2),
        "extensions are not strictly ascending",
    ),
}


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_broken_rule_is_refused(rule: str) -> None:
    record, message = BROKEN_RULES[rule]
    with pytest.raises(ContextFormatError, match=message):
        encode(record)


def test_limits_may_be_reached() -> None:
    validate(argument(nested(32)))
    used = 2 + 1  # the argument's list, forward's other results
    used += 3
    wide = Structure(StructureKind.LIST, (LEAF,) * (65536 - used))
    validate(argument(wide))


def test_decode_refuses_what_encode_would_not_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, message = BROKEN_RULES["overlap"]
    monkeypatch.setattr("etshared_plugin.context.codec.validate", lambda _: None)
    data = encode(record)
    monkeypatch.undo()
    with pytest.raises(ContextFormatError, match=message):
        decode(data)


def test_another_version_is_refused_by_its_number() -> None:
    data = bytearray(GOLDEN.read_bytes())
    root = int.from_bytes(data[:4], "little")
    vtable = root - int.from_bytes(data[root : root + 4], "little", signed=True)
    version = root + int.from_bytes(data[vtable + 4 : vtable + 6], "little")
    data[version] = 9
    with pytest.raises(ContextFormatError, match="has version 9, expected 1"):
        decode(bytes(data))


def test_another_file_is_refused_by_its_identifier() -> None:
    with pytest.raises(ContextFormatError, match="identifier is b'ET12'") as raised:
        decode(b"\x10\0\0\0ET12" + bytes(64))
    assert raised.value.offset == 4


def test_every_truncation_is_refused() -> None:
    data = GOLDEN.read_bytes()
    padding = 3
    for length in range(len(data) - padding):
        with pytest.raises(ContextFormatError):
            decode(data[:length])


def test_any_changed_byte_gives_a_valid_record_or_is_refused() -> None:
    data = GOLDEN.read_bytes()
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= (0x01, 0x80, 0xFF)[offset % 3]
        assert_decodes_or_refuses(bytes(damaged))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8))))
def test_random_damage_gives_a_valid_record_or_is_refused(
    damages: list[tuple[int, bytes]],
) -> None:
    data = bytearray(GOLDEN.read_bytes())
    for place, patch in damages:
        offset = place % len(data)
        data[offset : offset + len(patch)] = patch
    assert_decodes_or_refuses(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=256))
def test_random_bytes_are_refused(tail: bytes) -> None:
    assert_decodes_or_refuses(b"\x08\0\0\0ETSC" + tail)


def assert_decodes_or_refuses(data: bytes) -> None:
    try:
        record = decode(data)
    except ContextFormatError:
        return
    assert decode(encode(record)) == record


def hostile(structure: Callable[[flatbuffers.Builder], int]) -> bytes:
    """A record whose only entry point returns what ``structure`` builds."""
    builder = flatbuffers.Builder(1024)
    result = structure(builder)
    name = builder.CreateString("f")
    schema.EntryPointStart(builder)
    schema.EntryPointAddName(builder, name)
    schema.EntryPointAddResult(builder, result)
    entry_points = vector(builder, [schema.EntryPointEnd(builder)])
    schema.SharedContextStart(builder)
    schema.SharedContextAddVersion(builder, 1)
    schema.SharedContextAddEntryPoints(builder, entry_points)
    builder.Finish(schema.SharedContextEnd(builder), b"ETSC")
    return bytes(builder.Output())


def vector(builder: flatbuffers.Builder, positions: list[int]) -> int:
    builder.StartVector(4, len(positions), 4)
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    return int(builder.EndVector())


def layers(depth: int, width: int) -> Callable[[flatbuffers.Builder], int]:
    """Structures of which each refers ``width`` times to the same next one."""

    def build(builder: flatbuffers.Builder) -> int:
        position = None
        for _ in range(depth):
            children = None
            if position is not None:
                children = vector(builder, [position] * width)
            schema.StructureStart(builder)
            if children is not None:
                schema.StructureAddKind(builder, StructureKind.LIST)
                schema.StructureAddChildren(builder, children)
            position = schema.StructureEnd(builder)
        assert position is not None
        return int(position)

    return build


def test_hostile_records_are_like_ordinary_ones_where_they_keep_the_rules() -> None:
    decoded = decode(hostile(layers(depth=3, width=1)))
    assert decoded.entry_points[0].result == nested(3)


def test_deep_structures_are_refused() -> None:
    with pytest.raises(ContextFormatError, match="nested more than 32 deep"):
        decode(hostile(layers(depth=40, width=1)))
    with pytest.raises(ContextFormatError, match="nested more than 64 deep"):
        decode(hostile(layers(depth=5000, width=1)))


def test_a_small_record_that_stands_for_billions_of_structures_is_refused() -> None:
    data = hostile(layers(depth=30, width=50))
    assert len(data) < 10_000
    with pytest.raises(ContextFormatError, match="too many objects share their bytes"):
        decode(data)


def test_impossible_counts_are_refused() -> None:
    data = hostile(layers(depth=2, width=3))
    position = data.rindex((3).to_bytes(4, "little"))
    damaged = bytearray(data)
    damaged[position : position + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(ContextFormatError, match="lie outside"):
        decode(bytes(damaged))


def test_texts_that_are_not_utf_8_are_refused() -> None:
    data = GOLDEN.read_bytes().replace("größe".encode(), b"gr\xff\xff\xff\xffe")
    with pytest.raises(ContextFormatError, match="a string is not valid UTF-8"):
        decode(data)


def test_unknown_enum_values_are_refused() -> None:
    def build(builder: flatbuffers.Builder) -> int:
        schema.StructureStart(builder)
        schema.StructureAddKind(builder, 9)
        return int(schema.StructureEnd(builder))

    with pytest.raises(ContextFormatError, match="Structure.kind 9 is unknown"):
        decode(hostile(build))
