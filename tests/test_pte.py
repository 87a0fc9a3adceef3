from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary
from executorch.exir.schema import Tensor
from program_builders import (
    SIZE,
    Accumulator,
    edited,
    record_of,
    stock_program,
    with_named_data,
    with_record,
)

from etshared_plugin.context import ScalarType, encode
from etshared_plugin.errors import ContextFormatError, ProgramFormatError
from etshared_plugin.pte import PteFile
from etshared_plugin.pte._generated.program import Program
from etshared_plugin.pte.execution_plan import DataLocation, InstructionKind, ValueKind


@pytest.fixture(scope="module")
def portable() -> bytes:
    data = stock_program(delegated=False)
    return with_record(data, record_of(data))


@pytest.fixture(scope="module")
def delegated() -> bytes:
    data = stock_program(delegated=True)
    return with_record(data, record_of(data))


def test_a_path_and_its_bytes_hold_the_same_program(
    portable: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "accumulator.pte"
    path.write_bytes(portable)
    mapped, held = PteFile(path), PteFile(portable)
    assert mapped.path == path
    assert held.path is None
    assert mapped.nbytes == held.nbytes == len(portable)
    assert mapped.plans == held.plans
    assert mapped.segments == held.segments
    assert mapped.shared_context() == held.shared_context() == record_of(portable)


def test_plans_tell_inputs_outputs_and_memory(portable: bytes) -> None:
    program = PteFile(portable)
    assert set(program.plans) == {"forward", "peek", "reset_state"}
    forward = program.plans["forward"]
    (x,) = (forward.values[index].tensor for index in forward.inputs)
    assert x is not None and x.placement is not None
    assert (x.sizes, x.dim_order) == ((1, SIZE), (0, 1))
    assert x.scalar_type is ScalarType.FLOAT
    assert x.placement.mem_id == 1
    assert forward.activation_nbytes == forward.arena_nbytes[1]
    assert forward.planned_nbytes(2) == SIZE * 4 + 16
    assert forward.planned_nbytes(7) == 0

    reset = program.plans["reset_state"]
    assert reset.inputs == ()
    assert [reset.values[index].kind for index in reset.outputs] == [ValueKind.NONE]
    assert "aten::copy_" in reset.operators


def test_plans_tell_where_mutable_buffers_lie(portable: bytes) -> None:
    for plan in PteFile(portable).plans.values():
        placed = {
            tensor.fqn: (tensor.placement.mem_id, tensor.placement.offset)
            for _, tensor in plan.tensors()
            if tensor.fqn and tensor.placement is not None
        }
        assert placed == {"root.sum": (2, 0), "root.count": (2, SIZE * 4)}


def test_constants_are_the_weights_of_the_module(portable: bytes) -> None:
    program = PteFile(portable)
    torch.manual_seed(0)
    weight = Accumulator().layer.weight.detach().numpy().tobytes()
    stored = [
        program.stored_data(tensor)
        for _, tensor in program.plans["forward"].tensors()
        if tensor.is_constant
    ]
    assert weight in [bytes(data) for data in stored if data is not None]


def test_delegates_have_their_payloads(delegated: bytes) -> None:
    program = PteFile(delegated)
    (delegate,) = program.plans["peek"].delegates
    assert delegate.backend_id == "XnnpackBackend"
    assert delegate.location is DataLocation.SEGMENT
    # XNNPACK's own header stands at 4.
    assert bytes(program.delegate_payload(delegate)[4:8]) == b"XH00"
    kinds = [step.kind for step in program.plans["peek"].instructions]
    assert kinds == [InstructionKind.DELEGATE]


def test_inline_payloads_and_constants_are_found(delegated: bytes) -> None:
    file = deserialize_pte_binary(delegated)
    inline = PteFile(bytes(_program_to_flatbuffer(file.program).data))
    outside = PteFile(delegated)
    assert inline.segments == ()
    for name, plan in inline.plans.items():
        for delegate, other in zip(
            plan.delegates, outside.plans[name].delegates, strict=True
        ):
            assert delegate.location is DataLocation.INLINE
            assert inline.delegate_payload(delegate) == outside.delegate_payload(other)
        for (_, tensor), (_, twin) in zip(
            plan.tensors(), outside.plans[name].tensors(), strict=True
        ):
            assert inline.stored_data(tensor) == outside.stored_data(twin)


def test_named_data_is_found_by_its_key(portable: bytes) -> None:
    program = PteFile(with_named_data(portable, "greeting", b"hello"))
    assert bytes(program.named_data("greeting")) == b"hello"
    with pytest.raises(KeyError):
        program.named_data("farewell")


def test_a_program_without_a_record_has_none() -> None:
    assert PteFile(stock_program(delegated=False)).shared_context() is None


def test_a_damaged_record_is_named_with_its_place(
    portable: bytes, tmp_path: Path
) -> None:
    record = encode(record_of(portable))
    path = tmp_path / "damaged.pte"
    path.write_bytes(portable.replace(record, b"\0" * len(record)))
    with pytest.raises(ContextFormatError, match="file identifier is") as raised:
        PteFile(path).shared_context()
    assert raised.value.path == path
    assert raised.value.offset == portable.index(record) + 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are too few for a program"),
        (b"PK\3\4" + bytes(100), "file identifier is"),
    ],
)
def test_other_files_are_no_programs(data: bytes, message: str) -> None:
    with pytest.raises(ProgramFormatError, match=message):
        PteFile(data)


def test_an_empty_file_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "empty.pte"
    path.touch()
    with pytest.raises(ProgramFormatError, match="the file is empty") as raised:
        PteFile(path)
    assert raised.value.path == path


def test_a_truncated_program_is_refused(portable: bytes) -> None:
    with pytest.raises(ProgramFormatError, match="it may be truncated"):
        PteFile(portable[:-1])
    for length in range(0, len(portable), 97):
        with pytest.raises(ProgramFormatError):
            PteFile(portable[:length])


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (12, 8, "the header tells of"),
        (16, 1 << 40, "the header tells of"),
        (16, 16, "the header tells of"),
        (24, 64, "segments start at 64, inside the program"),
        (24, 0, "it may be truncated"),
        (24, 1 << 63, "it may be truncated"),
    ],
)
def test_an_impossible_header_is_refused(
    portable: bytes, offset: int, value: int, message: str
) -> None:
    data = bytearray(portable)
    nbytes = 4 if offset == 12 else 8
    data[offset : offset + nbytes] = value.to_bytes(nbytes, "little")
    with pytest.raises(ProgramFormatError, match=message):
        PteFile(bytes(data))


def _no_name(file: PTEFile) -> None:
    file.program.execution_plan[0].name = ""


def _same_names(file: PTEFile) -> None:
    file.program.execution_plan[0].name = "peek"


def _bad_output(file: PTEFile) -> None:
    file.program.execution_plan[0].outputs = [999]


def _bad_argument(file: PTEFile) -> None:
    call = file.program.execution_plan[0].chains[0].instructions[0].instr_args
    call.args[0] = -1


def _bad_operator(file: PTEFile) -> None:
    call = file.program.execution_plan[0].chains[0].instructions[0].instr_args
    call.op_index = 999


def _first_tensor(file: PTEFile) -> Tensor:
    return file.program.execution_plan[0].values[0].val


def _bad_constant(file: PTEFile) -> None:
    _first_tensor(file).data_buffer_idx = 999


def _large_constant(file: PTEFile) -> None:
    _first_tensor(file).sizes = [SIZE, SIZE << 20]


def _negative_size(file: PTEFile) -> None:
    _first_tensor(file).sizes = [-1, 1]


def _bad_dim_order(file: PTEFile) -> None:
    _first_tensor(file).dim_order = [1, 1]


def _many_dimensions(file: PTEFile) -> None:
    _first_tensor(file).sizes = [1] * 17


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_no_name, "an entry point has no name"),
        (_same_names, "entry point 'peek' stands twice"),
        (_bad_output, "entry point 'forward': outputs: index 999 is none of"),
        (_bad_argument, "entry point 'forward': instruction 0: index -1 is none of"),
        (_bad_operator, "entry point 'forward': instruction 0: index 999 is none of"),
        (_bad_constant, "entry point 'forward': value 0: data 999 is none of"),
        (_large_constant, "entry point 'forward': value 0: data end at"),
        (_negative_size, "entry point 'forward': value 0: negative size in"),
        (_bad_dim_order, "entry point 'forward': value 0: dim order .* not a perm"),
        (_many_dimensions, "entry point 'forward': value 0: 17 dimensions"),
    ],
)
def test_an_inconsistent_program_is_refused(
    portable: bytes, edit: Callable[[PTEFile], None], message: str
) -> None:
    data = edited(portable, edit)
    with pytest.raises(ProgramFormatError, match=message):
        PteFile(data)


def test_values_of_an_unknown_kind_are_refused(portable: bytes) -> None:
    data = bytearray(portable)
    value = Program.GetRootAs(portable).ExecutionPlan(0).Values(0)._tab
    data[value.Pos + value.Offset(4)] = 99
    with pytest.raises(ProgramFormatError, match="value 0: unknown kind 99"):
        PteFile(bytes(data))


def test_damaged_programs_are_read_or_refused(
    portable: bytes, delegated: bytes
) -> None:
    generator = random.Random(0)
    refused = 0
    for original in (portable, delegated):
        # The tables stand at the start, so damage there tells most.
        tables = int.from_bytes(original[16:24], "little")
        for _ in range(250):
            data = bytearray(original)
            for _ in range(generator.randint(1, 8)):
                limit = tables if generator.random() < 0.9 else len(data)
                offset = generator.randrange(limit)
                patch = generator.choice(
                    (b"\xff", b"\0", b"\xff\xff\xff\x7f", generator.randbytes(4))
                )
                data[offset : offset + len(patch)] = patch
            try:
                read_everything(PteFile(bytes(data)))
            except (ProgramFormatError, ContextFormatError):
                refused += 1
    assert refused > 250


def read_everything(program: PteFile) -> None:
    for plan in program.plans.values():
        for delegate in plan.delegates:
            bytes(program.delegate_payload(delegate))
        for _, tensor in plan.tensors():
            data = program.stored_data(tensor)
            assert data is None or len(data) == tensor.nbytes
    for key in program.named_data_segments:
        bytes(program.named_data(key))
    program.shared_context()


def test_reading_needs_no_torch(portable: bytes, tmp_path: Path) -> None:
    path = tmp_path / "accumulator.pte"
    path.write_bytes(portable)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from etshared_plugin.inspection import inspect_program, verify_program\n"
        "assert inspect_program(sys.argv[1]).record == 'present'\n"
        "assert verify_program(sys.argv[1]) == ()\n"
        "assert not any(name.startswith('executorch') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True)
