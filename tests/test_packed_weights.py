"""Weights are packed once for all entry points and sessions, with the same results."""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import packed_programs as programs
import pytest
from executorch.exir._serialize._program import PTEFile
from packed_cache_use import alone, assert_same
from packed_programs import Inputs, arrays
from program_builders import edited, stock_program
from running import run_python, run_threads

import etshared_plugin as etshared
from etshared_plugin.cli import main
from etshared_plugin.context import CONTEXT_KEY, encode
from etshared_plugin.errors import ContextFormatError, InputError
from etshared_plugin.pte import PteFile
from etshared_plugin.runtime import Session

_F_GET_SEALS = 1034  # fcntl.F_GET_SEALS is new in Python 3.11's Linux builds


def _results(session: Session, inputs: Inputs) -> dict[str, np.ndarray]:
    return {name: session[name](*arrays(x)) for name, x in inputs.items()}


def _descriptors() -> list[int]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            if "etshared-packed-weights" in os.readlink(f"/proc/self/fd/{entry}"):
                found.append(int(entry))
        except FileNotFoundError:
            pass  # the descriptor that listed them
    return found


@pytest.fixture
def own_descriptors() -> Callable[[], list[int]]:
    """Return those of packed weights that the test itself has open.

    Other tests' programs may still be there: their fixtures are, or a cycle is.
    """
    gc.collect()
    others = _descriptors()
    return lambda: [one for one in _descriptors() if one not in others]


@pytest.mark.parametrize("source", ["bytes", "file"])
@pytest.mark.parametrize("layer", programs.LAYERS)
def test_results_are_those_without_sharing(
    layer: str, source: str, tmp_path: Path
) -> None:
    data, inputs = programs.one_layer(layer)
    expected = alone(data, inputs)
    path = tmp_path / "layer.pte"
    path.write_bytes(data)
    program = etshared.load(data if source == "bytes" else path, tensors="numpy")
    first, second = program.session(), program.session()
    second.load(*reversed(program.entry_points))
    for session in (first, second):
        assert_same(_results(session, inputs), expected)
    del first, session
    third = program.session(threads="caller")
    for session in (second, third, second):
        assert_same(_results(session, inputs), expected)


@pytest.mark.parametrize("source", ["bytes", "file"])
def test_equal_bytes_with_other_meanings_stay_apart(
    source: str, tmp_path: Path
) -> None:
    data, inputs = programs.confusable()
    path = tmp_path / "confusable.pte"
    path.write_bytes(data)
    program = etshared.load(data if source == "bytes" else path, tensors="numpy")
    for order in (program.entry_points, tuple(reversed(program.entry_points))):
        session = program.session()
        session.load(*order)
        results = _results(session, inputs)
        assert results["in_wide"].tolist() == [[0.875, 2.875, 4.875, 6.875]]
        assert results["in_tall"].tolist() == [[i / 2 + 3 / 16 for i in range(8)]]
        assert results["both"].sum() == sum(
            wide * column
            for wide, column in zip(
                (0.875, 2.875, 4.875, 6.875), (3.5, 3.75, 4.0, 4.25), strict=True
            )
        )
        np.testing.assert_array_equal(results["adapted"], results["in_wide"])
    assert_same(results, alone(data, inputs))
    assert all(one.is_shared for one in program.stats().entry_points)


def test_two_programs_with_equal_bytes_stay_apart() -> None:
    data, inputs = programs.confusable()
    expected = alone(data, inputs)
    sessions = [etshared.load(data, tensors="numpy").session() for _ in range(3)]
    for session in sessions:
        session.load()
    del sessions[0], session
    for session in sessions:
        assert_same(_results(session, inputs), expected)


def test_sessions_end_in_any_order_without_a_descriptor_left(
    own_descriptors: Callable[[], list[int]],
) -> None:
    data, inputs = programs.mixed()
    expected = alone(data, inputs)
    program = etshared.load(data, tensors="numpy")
    sessions = [program.session() for _ in range(6)]
    for session in sessions:
        session.load("encode", "decode")
    assert len(own_descriptors()) == 1
    for index in (3, 0, 3, 1, 1):
        del sessions[index], session
        session = program.session()
        session.load("decode")
        for one in (*sessions, session):
            one.reset()
            assert_same(_results(one, inputs), expected)
    del session, sessions, one
    sessions = [program.session()]
    assert_same(_results(sessions[0], inputs), expected)
    del sessions, program
    assert own_descriptors() == []


def test_packed_weights_cannot_change(
    own_descriptors: Callable[[], list[int]],
) -> None:
    data, inputs = programs.mixed()
    program = etshared.load(data, tensors="numpy")
    session = program.session()
    expected = _results(session, inputs)
    (descriptor,) = own_descriptors()
    seal, shrink, grow, write = 1, 2, 4, 8
    seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
    assert seals & (seal | shrink | grow | write) == seal | shrink | grow | write
    path = f"/proc/self/fd/{descriptor}"
    with open(path, "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.write(b"0")
    with pytest.raises(PermissionError):
        os.truncate(path, 0)
    session.reset()
    assert_same(_results(session, inputs), expected)


def test_stats_count_what_entry_points_pack_and_reuse() -> None:
    data, _ = programs.mixed()
    program = etshared.load(data, tensors="numpy")
    session = program.session()
    before = {one.name: one for one in program.stats().entry_points}
    assert before.keys() == {"decode", "encode", "peek", "step"}
    assert all(one.loads == one.constants_packed == 0 for one in before.values())
    session.load("step")
    program.session().load("step", "peek")
    stats = program.stats()
    found = {one.name: one for one in stats.entry_points}
    counts = {
        name: (one.loads, one.constants_packed, one.constants_reused)
        for name, one in found.items()
    }
    # "decode" and "encode" are packed for first, in the program's order.
    assert counts == {
        "decode": (0, 1, 0),
        "encode": (0, 1, 0),
        "peek": (1, 0, 0),
        "step": (2, 0, 2),
    }
    assert found["peek"].not_shared == "XNNPACK packs no constant of it"
    assert found["step"].is_shared and found["step"].pack_seconds > 0
    assert found["step"].load_seconds > 0 and found["encode"].load_seconds == 0
    weight = 32 * 32 * 4
    assert found["encode"].packed_nbytes >= weight + 32 * 4
    assert found["step"].reused_nbytes == stats.packed_nbytes >= 2 * weight
    assert (stats.constants_packed, stats.constants_reused) == (2, 2)
    assert stats.load_seconds == sum(one.load_seconds for one in found.values())


def test_run_shows_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mixed.pte"
    path.write_bytes(programs.mixed()[0])
    command = ["run", str(path), "--entry", "peek", "--stats"]
    assert main(command) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (total,) = (line for line in lines if line[:1] == ["total"])
    assert total[-7:] == ["2,", "8.2", "KiB", "none", "2,", "8.2", "KiB"]
    assert (
        "'peek' shares no packed weights: XNNPACK packs no constant of it".split()
        in (lines)
    )
    assert main([*command, "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    assert (stats["constants_packed"], stats["constants_reused"]) == (2, 2)
    found = {one["name"]: one for one in stats["entry_points"]}
    assert found["step"]["loads"] == 1 and found["step"]["not_shared"] is None


_Options = dict[str, str]
_SHARING = {"weight_cache_enabled": "true"}


def _with_options(
    first: _Options, others: _Options, last: _Options | None = None
) -> bytes:
    """A program with other options for its delegates, as if export had said so."""
    data, _ = programs.mixed()
    record = PteFile(data).shared_context()
    assert record is not None
    # The first belongs to "decode", the last two to "step".
    assert [one.entry_point for one in record.delegates][-2:] == [4, 4]
    options = [first, *[others] * (len(record.delegates) - 1)]
    if last is not None:
        options[-1] = last
    delegates = tuple(
        dataclasses.replace(delegate, options=tuple(one.items()))
        for delegate, one in zip(record.delegates, options, strict=True)
    )
    encoded = encode(dataclasses.replace(record, delegates=delegates))

    def replace(file: PTEFile) -> None:
        assert file.named_data is not None
        entry = file.named_data.pte_data[CONTEXT_KEY]
        file.named_data.buffers[entry.buffer_index] = encoded

    return edited(data, replace)


@pytest.mark.parametrize(
    "option", [{}, {"weight_cache_enabled": "false"}, {"weight_cache_enabled": "1"}]
)
def test_nothing_is_shared_unless_the_record_says_so(option: _Options) -> None:
    program = etshared.load(_with_options(option, _SHARING), tensors="numpy")
    session = program.session()
    session.load()
    found = {one.name: one for one in program.stats().entry_points}
    assert found["decode"].not_shared == "the record does not allow it for delegate 0"
    assert (found["decode"].constants_packed, found["decode"].pack_seconds) == (0, 0)
    assert found["encode"].is_shared and found["step"].is_shared
    assert program.stats().constants_packed == 2
    assert_same(_results(session, programs.mixed()[1]), alone(*programs.mixed()))


def test_nothing_is_shared_when_it_is_switched_off_or_without_record(
    own_descriptors: Callable[[], list[int]],
) -> None:
    data, _ = programs.mixed()
    program = etshared.load(data, tensors="numpy", packed_weights=False)
    program.session().load()
    reasons = {one.name: one.not_shared for one in program.stats().entry_points}
    assert reasons["encode"] == "packed weights are switched off"
    program = etshared.load(stock_program(delegated=True), tensors="numpy")
    program.session().load()
    assert {one.not_shared for one in program.stats().entry_points} == {
        "the program has no record"
    }
    assert own_descriptors() == []


def test_a_record_must_not_say_where_the_backend_writes(tmp_path: Path) -> None:
    path = tmp_path / "victim"
    hostile = {"packed_cache_path": str(path), "weight_cache_enabled": "true"}
    data = _with_options(hostile, _SHARING)
    with pytest.raises(
        ContextFormatError, match="'packed_cache_path', which only the runtime may set"
    ):
        etshared.load(data)
    assert not path.exists()


@pytest.mark.parametrize("option", [{"k" * 64: "1"}, {"key": "v" * 256}])
def test_options_that_executorch_cannot_hold_are_refused(option: _Options) -> None:
    data = _with_options(option, {})
    with pytest.raises(ContextFormatError, match="which is empty or too long"):
        etshared.load(data)


def test_delegates_of_one_method_must_agree_on_options() -> None:
    data = _with_options(_SHARING, _SHARING, {**_SHARING, "number": "1"})
    etshared.load(data)
    data = _with_options({}, {"number": "1"}, {"number": "2"})
    with pytest.raises(ContextFormatError, match="different values of option 'number'"):
        etshared.load(data)


def test_one_delegate_keeps_its_whole_method_from_sharing() -> None:
    data = _with_options(_SHARING, _SHARING, {"weight_cache_enabled": "false"})
    program = etshared.load(data, tensors="numpy")
    session = program.session()
    assert_same(_results(session, programs.mixed()[1]), alone(*programs.mixed()))
    found = {one.name: one for one in program.stats().entry_points}
    assert found["step"].not_shared == "the record does not allow it for delegate 1"
    assert found["encode"].is_shared


def test_options_of_other_kinds_reach_the_backend_harmlessly() -> None:
    option = {"number": "-3", "text": "v" * 255, "flag": "true"}
    data = _with_options(option, option)
    etshared.load(data, tensors="numpy").session().load()


def test_threads_are_the_pool_or_the_caller() -> None:
    program = etshared.load(programs.mixed()[0], tensors="numpy")
    with pytest.raises(InputError, match="threads is 'all', expected 'pool' or"):
        program.session(threads="all")  # type: ignore[arg-type]


def test_sessions_load_run_and_end_in_several_threads() -> None:
    data, inputs = programs.mixed()
    expected = alone(data, inputs)
    program = etshared.load(data, tensors="numpy")

    def live() -> None:
        for step in range(30):
            session = program.session(threads="pool" if step % 2 else "caller")
            assert_same(_results(session, inputs), expected)
            del session

    run_threads(live, live, live)
    assert program.stats().constants_packed == 2


def test_a_child_process_uses_what_its_parent_packed() -> None:
    data, inputs = programs.mixed()
    program = etshared.load(data, tensors="numpy")
    session = program.session(threads="caller")
    expected = _results(session, inputs)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert_same(_results(program.session(threads="caller"), inputs), expected)
            session.reset()
            assert_same(_results(session, inputs), expected)
            status = 0
        finally:
            os._exit(status)
    assert_same(_results(program.session(threads="caller"), inputs), expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_MEMORY = """
import sys
import numpy as np
import etshared_plugin as etshared

def nbytes(kind):
    with open("/proc/self/smaps_rollup") as file:
        return next(int(l.split()[1]) * 1024 for l in file if l.startswith(kind + ":"))

shares = sys.argv[2] == "shares"
source = sys.argv[1]
if sys.argv[3] == "bytes":
    with open(source, "rb") as file:
        source = file.read()
program = etshared.load(source, tensors="numpy", packed_weights=shares)
warm_up = etshared.load(sys.argv[4], tensors="numpy").session()
warm_up.load()
before = {kind: nbytes(kind) for kind in ("Anonymous", "Pss")}
sessions = [program.session(threads="caller") for _ in range(4)]
for session in sessions:
    session.load()
    for name in sys.argv[5:]:
        session[name](np.ones((1, 512), np.float32))
print(*(nbytes(kind) - before[kind] for kind in before), program.stats().packed_nbytes)
"""


@pytest.mark.parametrize("source", ["bytes", "file"])
def test_memory_holds_one_packed_copy(source: str, tmp_path: Path) -> None:
    width = 512
    weight = width * width * 4
    path, small = tmp_path / "wide.pte", tmp_path / "small.pte"
    path.write_bytes(programs.mixed(width)[0])
    small.write_bytes(programs.mixed()[0])
    found = {
        kind: [
            int(word) for word in run_python(_MEMORY, path, kind, source, small).split()
        ]
        for kind in ("shares", "alone")
    }
    anonymous, proportional, packed = found["shares"]
    assert 2 * weight <= packed < 2.1 * weight
    # Sessions and entry points pack nothing, and copy nothing.
    assert anonymous < weight
    # Unpacked weights of the file are touched once; the packed ones are there once
    # where sessions have touched them.
    assert proportional < 5.2 * weight
    # Four sessions, with four uses of the two weights each; some memory is used again.
    assert found["alone"][0] > 13 * weight


def test_three_entry_points_grow_memory_by_one_packed_copy(tmp_path: Path) -> None:
    weight = 512 * 512 * 4
    names = ("plain", "positive", "doubled")
    path, small = tmp_path / "three.pte", tmp_path / "small.pte"
    path.write_bytes(programs.three_users(512))
    small.write_bytes(programs.mixed()[0])
    found = {
        kind: list(
            map(int, run_python(_MEMORY, path, kind, "bytes", small, *names).split())
        )
        for kind in ("shares", "alone")
    }
    anonymous, proportional, packed = found["shares"]
    assert weight <= packed < 1.02 * weight
    assert anonymous < 0.2 * weight
    assert packed <= proportional < 1.2 * packed
    # Four sessions with three entry points each.
    assert found["alone"][0] > 11.5 * weight
    assert found["alone"][2] == 0


def test_loading_writes_nothing_to_stderr(tmp_path: Path) -> None:
    path = tmp_path / "mixed.pte"
    path.write_bytes(programs.mixed()[0])
    code = """
import sys
import etshared_plugin as etshared
if sys.argv[2] == "beside":
    import executorch.runtime
program = etshared.load(sys.argv[1], tensors="numpy")
for _ in range(2):
    program.session().load()
"""
    for company in ("alone", "beside"):
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, path, company],
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        assert "XNNWeightsCache" not in result.stderr


def test_threads_do_not_hang_beside_executorchs_own_bindings(tmp_path: Path) -> None:
    path = tmp_path / "mixed.pte"
    path.write_bytes(programs.mixed()[0])
    code = """
import sys, threading
import executorch.runtime
import etshared_plugin as etshared
program = etshared.load(sys.argv[1], tensors="numpy")
def live():
    for _ in range(30):
        program.session().load()
        etshared.load(sys.argv[1], tensors="numpy").session().load("step")
threads = [threading.Thread(target=live) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
"""
    assert run_python(code, path) == "done\n"


def test_without_memory_to_share_each_session_packs(tmp_path: Path) -> None:
    data, _ = programs.mixed()
    path = tmp_path / "mixed.pte"
    path.write_bytes(data)
    code = """
import os, resource, sys
import etshared_plugin as etshared
program = etshared.load(sys.argv[1], tensors="numpy")
session = program.session()
free = os.open("/dev/null", os.O_RDONLY)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
session.load()
print({one.not_shared for one in program.stats().entry_points})
"""
    assert run_python(code, path) == (
        "{'no memory can be shared: Too many open files'}\n"
    )
