"""Files that are no good programs end in our errors, never in a crash."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import runtime_programs as programs
from executorch.exir._serialize._program import PTEFile
from executorch.exir.schema import OptionalTensorList
from program_builders import edited, stock_program
from runtime_programs import Backend

import etshared_plugin as etshared
from etshared_plugin.context import (
    Delegate,
    InputSizes,
    SharedContext,
    decode,
    encode,
)
from etshared_plugin.errors import (
    ContextFormatError,
    ExecutorchError,
    InputError,
    ProgramFormatError,
    RuntimeFailure,
)
from etshared_plugin.inspection import inspect_program, verify_program
from etshared_plugin.pte import PteFile


def _context(data: bytes) -> SharedContext:
    context = etshared.load(data).context
    assert context is not None
    return context


def test_a_path_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        ("nowhere.pte", "No such file or directory"),
        ("", "Is a directory"),
        ("pipe", "Not a regular file"),
        ("x" * 300, "File name too long"),
    ):
        path = tmp_path / name
        for read in (etshared.load, PteFile, inspect_program, verify_program):
            with pytest.raises(ProgramFormatError) as error:
                read(path)
            assert str(error.value) == f"'{path}': cannot be read: {problem}"
            assert error.value.path == path


def test_a_path_is_bytes(tmp_path: Path) -> None:
    data = stock_program(delegated=False)

    class Encoded(os.PathLike[bytes]):
        def __fspath__(self) -> bytes:
            return os.fsencode(tmp_path / "encoded.pte")

    path = tmp_path / os.fsdecode(b"not \xff utf-8.pte")
    for one in (path, str(path), Encoded()):
        with pytest.raises(ProgramFormatError, match="^'.*': cannot be read: No") as e:
            etshared.load(one)
        expected = Path(os.fsdecode(os.fspath(one)))
        assert e.value.path == expected
        expected.write_bytes(data)
        assert etshared.load(one).path == expected
        expected.unlink()


def test_a_program_is_a_path_or_bytes(tmp_path: Path) -> None:
    data = stock_program(delegated=False)
    names = etshared.load(data).entry_points
    for one in (
        bytearray(data),
        memoryview(data),
        memoryview(data + data)[: len(data)],
    ):
        assert etshared.load(one).entry_points == names
    for wrong in (None, 5, [data], object, np.frombuffer(data, np.uint8)):
        with pytest.raises(InputError, match="a program is .*, expected a path or byt"):
            etshared.load(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is no path of a program: "):
        etshared.load("\ud800.pte")
    manager = types.SimpleNamespace(buffer=data)
    with pytest.raises(InputError, match="or bytes; give its 'buffer'$"):
        etshared.load(manager)  # type: ignore[arg-type]


def test_a_path_with_a_nul_is_not_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "recurrent.pte"
    path.write_bytes(programs.recurrent("portable"))
    with pytest.raises(ProgramFormatError, match="': cannot be read: "):
        etshared.load(f"{path}\0more")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK", "not an ExecuTorch program"),
        (bytes(4096), "not an ExecuTorch program: no identifier 'ET12' at byte 4"),
    ],
)
def test_a_file_that_is_no_program_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "no.pte"
    path.write_bytes(content)
    with pytest.raises(ProgramFormatError, match=message) as error:
        etshared.load(path)
    assert error.value.path == path
    assert str(error.value) == f"'{path}': {error.value.message}"
    with pytest.raises(ProgramFormatError, match=message) as error:
        etshared.load(content)
    assert str(error.value) == error.value.message


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_program_is_refused(keep: float) -> None:
    data = programs.recurrent("xnnpack")
    with pytest.raises(ProgramFormatError):
        etshared.load(data[: int(len(data) * keep)])


def test_a_damaged_payload_is_found_before_the_backend_sees_it() -> None:
    data = programs.recurrent("xnnpack")
    # XNNPACK's flatbuffer starts with a header of its own.
    start = data.index(b"XH00") - 4
    for offset in (start, start + 64, start + 300):
        damaged = bytearray(data)
        damaged[offset] ^= 0x10
        session = etshared.load(bytes(damaged)).session()
        with pytest.raises(
            ProgramFormatError,
            match=r"of delegate \d \(XnnpackBackend\) of entry point '\w+' differs",
        ):
            session.load()


def test_a_record_that_does_not_fit_the_program_is_refused() -> None:
    data = programs.recurrent("xnnpack")
    context = _context(data)
    first: Delegate = context.delegates[0]
    assert decode(encode(context)) == context
    with pytest.raises(ContextFormatError, match="does not fit the program: .*'nest"):
        etshared.load(data.replace(b"nested", b"nestle", 1))
    damaged = bytearray(data)
    damaged[data.index(encode(context)) + 4] ^= 0xFF  # the record's identifier
    with pytest.raises(ContextFormatError, match="damaged record"):
        etshared.load(bytes(damaged))
    digest = first.payload_digest
    assert data.count(digest) == 1
    with pytest.raises(ProgramFormatError, match="differs from its recorded digest"):
        etshared.load(data.replace(digest, digest[::-1])).session().load()


@pytest.mark.parametrize(
    ("least", "most"), [((2, 8), (17, 8)), ((2, 9), (16, 9)), ((2,), (16,))]
)
def test_recorded_sizes_that_the_plan_has_no_room_for_are_refused(
    least: tuple[int, ...], most: tuple[int, ...]
) -> None:
    data = programs.bounded("portable")
    context = _context(data)
    encode_entry, *others = context.entry_points
    _, y = encode_entry.inputs
    x = InputSizes(least, most, (0,) * len(least))
    entry_points = (replace(encode_entry, inputs=(x, y)), *others)
    recorded = encode(context)
    changed = encode(replace(context, entry_points=entry_points))
    assert data.count(recorded) == 1
    with pytest.raises(
        ContextFormatError,
        match="does not fit .*'encode' cannot take input 'x' in the recorded sizes",
    ):
        etshared.load(data.replace(recorded, changed.ljust(len(recorded), b"\0")))


def test_state_without_memory_is_refused_instead_of_crashing() -> None:
    session = etshared.load(programs.unplanned_state()).session()
    with pytest.raises(RuntimeFailure, match="for which no memory is planned; export"):
        session.forward(np.ones((1, 4), np.float32))


def test_indices_without_memory_are_refused_instead_of_crashing() -> None:
    def lose_memory(file: PTEFile) -> None:
        (plan,) = file.program.execution_plan
        values = [value.val for value in plan.values]
        (indices,) = (one for one in values if isinstance(one, OptionalTensorList))
        tensor = values[indices.items[0]]
        tensor.data_buffer_idx, tensor.allocation_info = 0, None

    data = programs.indexing()
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    (rows,) = etshared.load(data).session().forward(x)
    np.testing.assert_array_equal(rows, x[[2, 0]])
    session = etshared.load(edited(data, lose_memory)).session()
    with pytest.raises(RuntimeFailure, match="for which no memory is planned; export"):
        session.forward(x)


def test_a_missing_kernel_is_named() -> None:
    data = programs.stock_recurrent("portable")
    assert data.count(b"aten::tanh") == 1
    session = etshared.load(data.replace(b"aten::tanh", b"aten::tank")).session()
    with pytest.raises(ExecutorchError, match="the kernel 'aten::tank.out', which is"):
        session.load("forward")
    session.load("peek")


def test_a_missing_backend_is_named() -> None:
    data = programs.stock_recurrent("xnnpack").replace(b"XnnpackB", b"XnnsackB")
    session = etshared.load(data).session()
    with pytest.raises(ExecutorchError, match="the backend 'XnnsackBackend', which is"):
        session.load("forward")


def test_a_call_with_an_unfit_argument_is_found_at_load() -> None:
    # A kernel that gets a number for a tensor ends the process.
    data = programs.stock_recurrent("portable")
    with pytest.raises(ProgramFormatError, match="'aten::mul.out' with an unfit"):
        etshared.load(data.replace(b"aten::add", b"aten::mul"))


_MUTATE = """
import os, random, sys
import numpy as np
import etshared_plugin as etshared
from etshared_plugin.errors import EtsharedError

original = open(sys.argv[1], "rb").read()
seed, rounds = int(sys.argv[2]), int(sys.argv[3])
failed = 0
for index in range(rounds):
    generator = random.Random(seed + index)
    data = bytearray(original)
    for _ in range(generator.choice((1, 1, 2, 8))):
        data[generator.randrange(len(data))] = generator.randrange(256)
    print(index, flush=True)
    try:
        session = etshared.load(bytes(data), tensors="numpy").session()
    except EtsharedError:
        failed += 1
        continue
    x = np.ones((1, 4), np.float32)
    calls = {
        "peek": ((x,), {}),
        "forward": ((x,), {}),
        "fill": ((x[:, :3],), {}),
        "lookup": ((np.array([1]),), {}),
        "nested": (({"a": [x, x]}, x), {"k": x[0, :2]}),
    }
    for name, (args, kwargs) in calls.items():
        try:
            session[name](*args, **kwargs)
        except EtsharedError:
            pass
print(f"{failed} failed", flush=True)
"""


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_random_damage_never_ends_the_process(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "recurrent.pte"
    path.write_bytes(programs.recurrent(backend))
    seed = random.Random(2024).randrange(10**6)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", _MUTATE, path, str(seed), "400"],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
    )
    lines = result.stdout.splitlines()
    assert result.returncode == 0, f"round {lines[-1:]}: {result.stderr[-2000:]}"
    assert lines[-1].endswith("failed")
