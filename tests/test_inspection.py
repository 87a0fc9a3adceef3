from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.exir._serialize._program import PTEFile
from program_builders import (
    SIZE,
    Accumulator,
    edited,
    record_of,
    stock_program,
    with_named_data,
    with_record,
)

import etshared_plugin as etshared
from etshared_plugin.context import (
    Access,
    BufferUse,
    EntryPointRecord,
    InputSizes,
    SharedContext,
    Structure,
    StructureKind,
    encode,
)
from etshared_plugin.errors import ProgramFormatError
from etshared_plugin.inspection import (
    Finding,
    Severity,
    inspect_program,
    verify_program,
)
from etshared_plugin.pte import PteFile

Save = Callable[[bytes], Path]


@pytest.fixture(scope="module")
def portable() -> bytes:
    return stock_program(delegated=False)


@pytest.fixture(scope="module")
def delegated() -> bytes:
    return stock_program(delegated=True)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def write(data: bytes) -> Path:
        path = tmp_path / "program.pte"
        path.write_bytes(data)
        return path

    return write


def findings(path: Path) -> list[tuple[str, str, str]]:
    return [
        (finding.code, finding.place, finding.message)
        for finding in verify_program(path)
    ]


def test_a_report_tells_what_the_record_says(delegated: bytes, save: Save) -> None:
    path = save(with_record(delegated, record_of(delegated)))
    report = inspect_program(path)
    assert (report.path, report.nbytes) == (str(path), path.stat().st_size)
    assert (report.record, report.record_problem) == ("present", "")
    assert report.producer["executorch"] == "1.5.1"

    forward, peek, reset = report.entry_points
    assert (forward.name, peek.name, reset.name) == ("forward", "peek", "reset_state")
    assert (forward.generated, reset.generated) == (False, True)
    (x,) = forward.arguments
    assert x.name == "x"
    assert [(v.dtype, v.sizes, v.dynamic) for v in x.values] == [
        ("float32", (1, SIZE), False)
    ]
    assert [(v.kind, v.sizes) for v in forward.results] == [("tensor", (1, SIZE))]
    assert [v.kind for v in reset.results] == ["none"]
    assert forward.kernels["aten::copy_"] == 2
    assert (peek.reads, peek.writes) == (("sum",), ())

    total, count = report.state
    assert (total.fqn, total.mem_id, total.offset, total.nbytes) == (
        "sum",
        2,
        0,
        SIZE * 4,
    )
    assert (total.readers, total.writers) == (
        ("forward", "peek"),
        ("forward", "reset_state"),
    )
    assert (total.initial_value, count.initial_value) == ("given", "zero")

    (weight,) = report.weights
    assert weight.fqns == ("layer.weight",)
    assert weight.entry_points == ("forward", "peek")
    assert [d.backend_id for d in report.delegates] == ["XnnpackBackend"] * len(
        report.delegates
    )
    assert [arena.kind for arena in report.arenas] == ["activations", "shared_state"]
    assert report.arenas[1].planned == dict.fromkeys(
        ("forward", "peek", "reset_state"), SIZE * 4 + 16
    )


def test_a_report_is_stable_json(portable: bytes, save: Save) -> None:
    path = save(with_record(portable, record_of(portable)))
    plain = inspect_program(path).to_json()
    assert plain["version"] == 1
    assert json.loads(json.dumps(plain)) == plain
    assert json.dumps(plain) == json.dumps(inspect_program(path).to_json())
    assert plain["entry_points"][0]["kernels"]["aten::copy_"] == 2


def test_a_stock_program_is_described_by_its_plans(
    delegated: bytes, save: Save
) -> None:
    report = inspect_program(save(delegated))
    assert (report.record, report.record_problem) == ("missing", "")
    assert [(s.fqn, s.dtype, s.offset, s.initial_value) for s in report.state] == [
        ("root.sum", "float32", 0, None),
        ("root.count", "int64", SIZE * 4, None),
    ]
    total = report.state[0]
    assert total.readers == ("forward", "peek")
    assert total.writers == ("forward", "reset_state")
    assert [a.name for a in report.entry_points[0].arguments] == ["input 0"]
    assert SIZE * SIZE * 4 in [weight.nbytes for weight in report.weights]
    assert {d.entry_point for d in report.delegates} >= {"forward", "peek"}


def test_a_damaged_record_leaves_a_report_of_the_plans(
    portable: bytes, save: Save
) -> None:
    report = inspect_program(save(with_record(portable, b"ETSC")))
    assert report.record == "damaged"
    assert "too few" in report.record_problem
    assert [s.fqn for s in report.state] == ["root.sum", "root.count"]


def test_a_record_of_another_program_leaves_a_report_of_the_plans(
    portable: bytes, save: Save
) -> None:
    record = renamed(record_of(portable), "peek", "poke")
    report = inspect_program(save(with_record(portable, record)))
    assert report.record == "damaged"
    assert report.record_problem == (
        "entry point 'poke': the record names it, the program does not have it"
    )
    assert [entry.name for entry in report.entry_points] == [
        "forward",
        "peek",
        "reset_state",
    ]


def test_inspecting_a_damaged_program_raises(portable: bytes, save: Save) -> None:
    with pytest.raises(ProgramFormatError, match="truncated"):
        inspect_program(save(portable[:-1]))


def test_sound_programs_have_no_findings(
    portable: bytes, delegated: bytes, save: Save
) -> None:
    for data in (portable, delegated):
        assert verify_program(save(with_record(data, record_of(data)))) == ()


@pytest.mark.parametrize("partitioner", [None, [XnnpackPartitioner()]])
def test_what_this_package_lowers_has_no_findings(
    partitioner: list[XnnpackPartitioner] | None, tmp_path: Path
) -> None:
    model = Accumulator()
    x = torch.ones(1, SIZE)
    exported = etshared.export(
        model,
        {
            "forward": etshared.EntryPoint(model.forward, (x,)),
            "peek": etshared.EntryPoint(model.peek, (x,)),
            "clear": etshared.EntryPoint(model.reset_state),
        },
    )
    edge = etshared.to_edge_transform_and_lower(exported, partitioner=partitioner)
    path = tmp_path / "accumulator.pte"
    edge.to_executorch().save(str(path))
    assert verify_program(path) == ()
    report = inspect_program(path)
    assert report.record == "present"
    assert {item.fqn: item.readers for item in report.state} == {
        "count": ("forward",),
        "sum": ("forward", "peek"),
    }
    assert SIZE * SIZE * 4 in [weight.nbytes for weight in report.weights]


def test_a_program_without_a_record_gets_a_note(portable: bytes, save: Save) -> None:
    assert verify_program(save(portable)) == (
        Finding(
            Severity.NOTE, "record-missing", "no record of what entry points share"
        ),
    )


def test_a_damaged_program_is_a_finding(portable: bytes, save: Save) -> None:
    (finding,) = verify_program(save(portable[: len(portable) // 2]))
    assert (finding.severity, finding.code) == (Severity.ERROR, "program-damaged")


def test_a_truncated_record_is_a_finding(portable: bytes, save: Save) -> None:
    data = with_record(portable, encode(record_of(portable))[:-200])
    ((code, _, message),) = findings(save(data))
    assert code == "record-invalid"
    assert "the record is damaged" in message


def test_a_wrong_version_is_a_finding(portable: bytes, save: Save) -> None:
    record = bytearray(encode(record_of(portable)))
    root = int.from_bytes(record[:4], "little")
    vtable = root - int.from_bytes(record[root : root + 4], "little", signed=True)
    record[root + int.from_bytes(record[vtable + 4 : vtable + 6], "little")] = 2
    ((code, _, message),) = findings(save(with_record(portable, bytes(record))))
    assert code == "record-invalid"
    assert "version 2, expected 1" in message


def test_overlapping_buffers_are_a_finding(portable: bytes, save: Save) -> None:
    record = bytearray(encode(record_of(portable)))
    offset = (SIZE * 4).to_bytes(8, "little")
    # The offset of "count" and the size of "sum"; an offset of 64 is inside "sum".
    for position in range(0, len(record) - 8, 4):
        if record[position : position + 8] != offset:
            continue
        changed = bytearray(record)
        changed[position : position + 8] = (64).to_bytes(8, "little")
        ((code, _, message),) = findings(save(with_record(portable, bytes(changed))))
        if "buffer 'count': overlaps buffer 'sum'" in message:
            assert code == "record-invalid"
            return
    pytest.fail("no byte of the record made buffers overlap")


def renamed(record: SharedContext, old: str, new: str) -> SharedContext:
    return replace(
        record,
        entry_points=tuple(
            replace(entry, name=new) if entry.name == old else entry
            for entry in record.entry_points
        ),
    )


def changed(
    record: SharedContext, field: str, position: int, /, **new: object
) -> SharedContext:
    records = list(getattr(record, field))
    records[position] = replace(records[position], **new)
    return replace(record, **{field: tuple(records)})


def _offset(record: SharedContext) -> SharedContext:
    record = replace(
        record, arenas=(record.arenas[0], replace(record.arenas[1], nbytes=SIZE * 8))
    )
    return changed(record, "buffers", 1, offset=SIZE * 4 + 16)


def _mem_id(record: SharedContext) -> SharedContext:
    moved = tuple(replace(buffer, mem_id=3) for buffer in record.buffers)
    arenas = (record.arenas[0], replace(record.arenas[1], mem_id=3))
    return replace(record, buffers=moved, arenas=arenas)


def _method(record: SharedContext) -> SharedContext:
    return renamed(record, "peek", "poke")


def _extra_method(record: SharedContext) -> SharedContext:
    entries = (*record.entry_points, EntryPointRecord("zzz"))
    return replace(record, entry_points=entries)


def _small_arena(record: SharedContext) -> SharedContext:
    return changed(record, "arenas", 1, nbytes=SIZE * 4 + 8)


def _activations(record: SharedContext) -> SharedContext:
    return changed(record, "entry_points", 0, activation_nbytes=0)


def _arguments(record: SharedContext) -> SharedContext:
    return changed(record, "entry_points", 0, arguments=(), inputs=())


def _larger_input(record: SharedContext) -> SharedContext:
    sizes = InputSizes((1, SIZE), (1, SIZE + 1), (0, 0))
    return changed(record, "entry_points", 0, inputs=(sizes,))


def _smaller_input(record: SharedContext) -> SharedContext:
    sizes = InputSizes((0, SIZE), (1, SIZE), (0, 0))
    return changed(record, "entry_points", 0, inputs=(sizes,))


def _scalar_input(record: SharedContext) -> SharedContext:
    return changed(record, "entry_points", 0, inputs=(InputSizes(),))


def _result(record: SharedContext) -> SharedContext:
    return changed(record, "entry_points", 0, result=Structure(StructureKind.TUPLE))


def _uses(
    record: SharedContext, index: int, *uses: tuple[int, Access]
) -> SharedContext:
    return changed(
        record, "entry_points", index, buffers=tuple(BufferUse(*use) for use in uses)
    )


def _denied_use(record: SharedContext) -> SharedContext:
    return _uses(record, 1)


def _denied_write(record: SharedContext) -> SharedContext:
    return _uses(record, 0, (0, Access.READ_WRITE), (1, Access.READ))


def _denied_read(record: SharedContext) -> SharedContext:
    return _uses(record, 0, (0, Access.READ_WRITE), (1, Access.WRITE))


def _claimed_write(record: SharedContext) -> SharedContext:
    return _uses(record, 1, (0, Access.READ_WRITE))


def _claimed_other_write(record: SharedContext) -> SharedContext:
    return _uses(record, 1, (0, Access.READ), (1, Access.WRITE))


def _claimed_read(record: SharedContext) -> SharedContext:
    return _uses(record, 1, (0, Access.READ), (1, Access.READ))


def _weight_digest(record: SharedContext) -> SharedContext:
    return changed(record, "weights", 0, digest=bytes(32))


CONTRADICTIONS = [
    (_offset, "state", "entry point 'forward'", "offset 128 of arena 2 .* no recorded"),
    (_mem_id, "arena-size", "arena 2", "tells of 0 bytes, the program plans 144"),
    (_mem_id, "state", "buffer 'sum'", "entry point 'forward' does not use it"),
    (_method, "method-unknown", "entry point 'poke'", "the program does not have it"),
    (_method, "method-unknown", "entry point 'peek'", "the record does not name it"),
    (_extra_method, "method-unknown", "entry point 'zzz'", "the program does not have"),
    (_small_arena, "arena-size", "arena 2", "136 bytes, the program plans 144"),
    (_activations, "arena-size", "entry point 'forward'", "tells of 0 bytes of activ"),
    (_arguments, "signature", "entry point 'forward'", "0 inputs, the program has 1"),
    (
        _larger_input,
        "signature",
        "entry point 'forward'",
        "input 0: the record allows sizes from 32 to 33 in dimension 1, .* plans 32",
    ),
    (
        _smaller_input,
        "signature",
        "entry point 'forward'",
        "input 0: the record allows sizes from 0 to 1 in dimension 0, .* plans 1",
    ),
    (
        _scalar_input,
        "signature",
        "entry point 'forward'",
        "input 0: the record tells of 0 dimensions, the program has 2",
    ),
    (_result, "signature", "entry point 'forward'", "0 outputs, the program has 1"),
    (_denied_use, "state", "buffer 'sum'", "'peek' uses it, the record does not"),
    (_denied_write, "state", "buffer 'count'", "'forward' writes it, .* says READ"),
    (_denied_read, "state", "buffer 'count'", "'forward' reads it, .* says WRITE"),
    (_claimed_write, "state", "buffer 'sum'", "'peek' never writes it, .* READ_WRITE"),
    (_claimed_other_write, "state", "buffer 'count'", "'peek' does not use it"),
    (_claimed_read, "state-unused", "buffer 'count'", "'peek' does not use it"),
    (_weight_digest, "weight", "weight 'layer.weight'", "no constant with the recor"),
]


@pytest.mark.parametrize(("edit", "code", "place", "message"), CONTRADICTIONS)
def test_a_record_that_contradicts_the_plans_is_found(
    edit: Callable[[SharedContext], SharedContext],
    code: str,
    place: str,
    message: str,
    portable: bytes,
    save: Save,
) -> None:
    path = save(with_record(portable, edit(record_of(portable))))
    matching = [
        finding
        for finding in verify_program(path)
        if (finding.code, finding.place) == (code, place)
    ]
    assert matching
    with pytest.raises(ValueError, match=message):
        raise ValueError(matching[0].message)


def test_errors_come_first(portable: bytes, save: Save) -> None:
    record = _claimed_read(_activations(record_of(portable)))
    found = verify_program(save(with_record(portable, record)))
    assert [finding.severity for finding in found] == [
        Severity.ERROR,
        Severity.WARNING,
    ]


def test_a_damaged_payload_is_found(delegated: bytes, save: Save) -> None:
    data = bytearray(with_record(delegated, record_of(delegated)))
    program = PteFile(bytes(data))
    (delegate,) = program.plans["peek"].delegates
    data[program.segments[delegate.index].offset + 100] ^= 1
    assert findings(save(bytes(data))) == [
        (
            "delegate",
            "entry point 'peek', delegate 0",
            "payload is damaged: its digest is not the recorded one",
        )
    ]


def test_a_replaced_payload_is_found(delegated: bytes, save: Save) -> None:
    record = record_of(delegated)
    shorter = changed(record, "delegates", 0, payload_nbytes=1)
    ((code, _, message),) = findings(save(with_record(delegated, shorter)))
    assert code == "delegate"
    assert "the record says 1" in message
    other = changed(record, "delegates", 0, backend_id="OtherBackend")
    ((_, _, message),) = findings(save(with_record(delegated, other)))
    assert message == "backend is 'XnnpackBackend', the record says 'OtherBackend'"


def test_unrecorded_and_unknown_delegates_are_found(
    delegated: bytes, save: Save
) -> None:
    record = changed(record_of(delegated), "delegates", 0, index=7)
    assert [item[:2] for item in findings(save(with_record(delegated, record)))] == [
        ("delegate", "entry point 'forward', delegate 0"),
        ("delegate", "entry point 'forward', delegate 7"),
    ]


def test_damaged_named_data_is_found(delegated: bytes, save: Save) -> None:
    record = record_of(delegated)
    (key,) = record.weights[0].keys
    data = bytearray(with_record(delegated, record))
    program = PteFile(bytes(data))
    data[program.segments[program.named_data_segments[key]].offset] ^= 1
    ((code, place, message),) = findings(save(bytes(data)))
    assert (code, place) == ("weight", "weight 'layer.weight'")
    assert message == f"named data '{key}' is damaged: its digest differs"


def test_missing_named_data_is_found(delegated: bytes, save: Save) -> None:
    record = changed(record_of(delegated), "weights", 0, keys=("gone",))
    ((code, _, message),) = findings(save(with_record(delegated, record)))
    assert (code, message) == ("weight", "the program has no named data 'gone'")


def test_a_damaged_constant_is_found(portable: bytes, save: Save) -> None:
    data = bytearray(with_record(portable, record_of(portable)))
    program = PteFile(bytes(data))
    weight = next(
        stored
        for _, tensor in program.plans["forward"].tensors()
        if (stored := program.stored_data(tensor)) is not None
        and len(stored) == SIZE * SIZE * 4
    )
    data[bytes(data).index(bytes(weight))] ^= 1
    assert [item[:2] for item in findings(save(bytes(data)))] == [
        ("weight", "weight 'layer.weight'")
    ] * 2


def test_a_program_that_plans_outside_its_arena_is_found(
    portable: bytes, save: Save
) -> None:
    def shrink(file: PTEFile) -> None:
        file.program.execution_plan[0].non_const_buffer_sizes[1] = 16

    found = verify_program(save(edited(portable, shrink)))
    assert found[0].code == "arena-overflow"
    assert found[0].place == "entry point 'forward'"
    assert "of arena 1, which has 16 bytes" in found[0].message


def test_data_that_is_stored_twice_gets_a_note(portable: bytes, save: Save) -> None:
    program = PteFile(portable)
    weight = next(
        bytes(stored)
        for _, tensor in program.plans["forward"].tensors()
        if (stored := program.stored_data(tensor)) is not None
        and len(stored) == SIZE * SIZE * 4
    )
    data = with_record(portable, record_of(portable))
    found = verify_program(save(with_named_data(data, "again", weight)))
    assert [(finding.severity, finding.code) for finding in found] == [
        (Severity.NOTE, "stored-twice")
    ]
    assert found[0].message == (
        f"its {SIZE * SIZE * 4} bytes are stored again as named data 'again'"
    )


def test_further_checks_see_program_and_record(portable: bytes, save: Save) -> None:
    def check(program: PteFile, context: SharedContext | None) -> list[Finding]:
        assert "forward" in program.plans
        assert context == record_of(portable)
        return [Finding(Severity.WARNING, "example", "seen", "here")]

    path = save(with_record(portable, record_of(portable)))
    (finding,) = verify_program(path, checks=[check])
    assert finding.to_json() == {
        "severity": "warning",
        "code": "example",
        "message": "seen",
        "place": "here",
    }


def test_damaged_files_end_in_findings_or_our_errors(
    delegated: bytes, save: Save
) -> None:
    original = with_record(delegated, record_of(delegated))
    generator = random.Random(1)
    clean = 0
    for _ in range(500):
        data = bytearray(original)
        for _ in range(generator.randint(1, 4)):
            offset = generator.randrange(len(data))
            data[offset] = generator.randrange(256)
        path = save(bytes(data))
        clean += not verify_program(path)
        try:
            inspect_program(path).to_json()
        except ProgramFormatError:
            continue
    assert clean < 250
