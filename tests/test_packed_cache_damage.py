"""Damaged packed files, and directories that cannot be used: right results anyway."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import packed_cache_use as use
import packed_programs as programs
import pytest
from executorch.exir._serialize._program import PTEFile
from packed_cache_use import assert_right, load, load_warned, origin
from program_builders import edited

import etshared_plugin as etshared
from etshared_plugin.errors import ProgramFormatError
from etshared_plugin.runtime import packed_lock

_FOOTER_NBYTES = 20


def _overwrite(path: Path, position: int, data: bytes) -> None:
    """Change bytes in place, as a failing disk or another program would."""
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)
    os.chmod(path, 0o444)


def _flip(path: Path, position: int) -> None:
    data = path.read_bytes()[position : position + 8]
    _overwrite(path, position, bytes(byte ^ 0xFF for byte in data))


def _index_start(path: Path) -> int:
    (start,) = struct.unpack_from("<Q", path.read_bytes()[-_FOOTER_NBYTES:])
    return int(start)


def _cut(path: Path, nbytes: int) -> None:
    os.chmod(path, 0o644)
    os.truncate(path, nbytes)


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def _become_link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def _become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _become_another_programs(path: Path) -> None:
    data, _ = programs.confusable()
    etshared.load(data, packed_cache=path.parent)
    (other,) = {*path.parent.glob("*.packed")} - {path}
    other.rename(path)


#: What XNNPACK's weight cache itself would take: an index of no entries.
_FOOTER = struct.pack("<QIII", 0, 0, 0x58505743, 2)

_DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "first weight": (lambda path: _flip(path, 0), "differ from their checksums"),
    "last weight": (
        lambda path: _flip(path, _index_start(path) - 4096),
        "differ from their checksums",
    ),
    "padding": (
        lambda path: _overwrite(path, _index_start(path) - 8, b"12345678"),
        "differ from their checksums",
    ),
    "index": (
        lambda path: _flip(path, _index_start(path) + 40),
        "differ from their checksums",
    ),
    "block": (
        lambda path: _flip(path, path.stat().st_size - 80),
        "its checksums are damaged",
    ),
    "size of block": (
        lambda path: _flip(path, path.stat().st_size - _FOOTER_NBYTES - 8),
        "it does not end as a packed file",
    ),
    "footer": (
        lambda path: _flip(path, path.stat().st_size - 20),
        "its checksums are damaged",
    ),
    "no footer": (lambda path: _cut(path, path.stat().st_size - 20), "it does not end"),
    "half": (lambda path: _cut(path, path.stat().st_size // 2), ""),
    "cut by one byte": (lambda path: _cut(path, path.stat().st_size - 1), ""),
    "nothing": (lambda path: _cut(path, 0), "it is too short"),
    "garbage": (lambda path: _replace(path, bytes(range(256)) * 80), ""),
    "garbage with a footer": (
        lambda path: _replace(path, bytes(range(256)) * 80 + _FOOTER),
        "",
    ),
    "link": (_become_link, "it cannot be opened: Too many levels of symbolic links"),
    "pipe": (_become_pipe, "it is not a regular file"),
    "another program's": (_become_another_programs, "another program or machine"),
}


@pytest.mark.parametrize("kind", _DAMAGE)
def test_damage_is_noticed_and_packed_again(kind: str, tmp_path: Path) -> None:
    load(tmp_path)
    path = use.packed_file(tmp_path)
    intact = path.read_bytes()
    damage, problem = _DAMAGE[kind]
    damage(path)
    program, warning = load_warned(tmp_path)
    assert warning.startswith(f"'{path}' was damaged: it")
    assert problem in warning
    assert warning.endswith("; its weights have been packed and written again")
    assert origin(program) == "written"
    assert_right(program)
    assert path.is_file() and not path.is_symlink()
    assert path.read_bytes() == intact
    assert origin(load(tmp_path)) == "unchanged"


def test_whatever_writes_to_a_file_changes_its_time(tmp_path: Path) -> None:
    """Also within one tick of the clock: a file is written with an old time."""
    load(tmp_path)
    path = use.packed_file(tmp_path)
    written_ns = path.stat().st_mtime_ns
    assert written_ns % 10**9 == 0
    assert path.stat().st_ctime_ns - written_ns > 10 * 10**9
    _overwrite(path, 0, path.read_bytes()[:1])  # with what is there
    assert path.stat().st_mtime_ns - written_ns > 10 * 10**9
    assert origin(load(tmp_path)) == "verified"


def test_random_damage_never_gives_wrong_results(tmp_path: Path) -> None:
    load(tmp_path)
    path = use.packed_file(tmp_path)
    intact = path.read_bytes()
    chance = random.Random(11)

    def damaged() -> bytes:
        data = bytearray(intact)
        kind = chance.randrange(6)
        start = chance.randrange(len(data))
        end = min(len(data), start + chance.choice((1, 4, 8, 100, 5000)))
        if kind == 0:
            data[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[start:end] = chance.randbytes(end - start)
        elif kind == 2:
            data[start:end] = bytes(end - start)
        elif kind == 3:
            del data[start:end]
        elif kind == 4:
            data[start:start] = chance.randbytes(end - start)
        else:
            # The parts that say where the others are.
            at = len(data) - 1 - chance.randrange(200)
            data[at] = chance.randrange(256)
        return bytes(data)

    num_damaged = 0
    while num_damaged < 150:
        data = damaged()
        if data == intact:
            continue
        num_damaged += 1
        os.chmod(path, 0o644)
        path.write_bytes(data)  # in place: the stamp is there and was right
        program, warning = load_warned(tmp_path)
        assert warning.startswith(f"'{path}' was damaged: it")
        assert path.read_bytes() == intact
        if num_damaged % 10 == 0:
            assert_right(program)


@pytest.mark.parametrize(
    "content", [b"", b"0 0 0 0 0\n", b"\xff" * 200, None], ids=repr
)
def test_a_bad_stamp_costs_a_verification_and_no_more(
    content: bytes | None, tmp_path: Path
) -> None:
    load(tmp_path)
    stamp = use.stamp_of(use.packed_file(tmp_path))
    if content is None:
        content = stamp.read_bytes()[:-1]
    stamp.write_bytes(content)
    assert origin(load(tmp_path)) == "verified"
    assert origin(load(tmp_path)) == "unchanged"
    stamp.unlink()
    stamp.mkdir()
    for _ in range(2):
        program = load(tmp_path)
        assert origin(program) == "verified"
    assert_right(program)


def test_a_new_time_of_modification_gets_no_stamp(tmp_path: Path) -> None:
    load(tmp_path)
    path = use.packed_file(tmp_path)
    os.utime(path)
    for _ in range(2):
        assert origin(load(tmp_path)) == "verified"
    os.utime(path, (1, 1))
    assert [origin(load(tmp_path)) for _ in range(2)] == ["verified", "unchanged"]


def test_a_copied_file_is_verified_first(tmp_path: Path) -> None:
    load(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    assert origin(load(tmp_path / "second")) == "verified"


def test_a_directory_in_the_files_place_is_left_there(tmp_path: Path) -> None:
    load(tmp_path)
    path = use.packed_file(tmp_path)
    path.unlink()
    path.mkdir()
    program, warning = load_warned(tmp_path)
    assert "Is a directory (what is there is damaged: it is not a reg" in warning
    assert use.why_not(program) == "Is a directory"
    assert_right(program)
    assert path.is_dir() and not list(tmp_path.glob("*.tmp"))


def test_a_directory_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for directory in (
        Path("/proc/self/nowhere"),
        tmp_path / "file" / "below",
        tmp_path / ("x" * 300),
    ):
        with pytest.raises(OSError) as refusal:
            directory.mkdir()
        problem = refusal.value.strerror
        program, warning = load_warned(directory)
        assert warning == (
            f"packed weights are not kept in '{directory}': {problem}; they are "
            "packed in memory"
        )
        assert use.why_not(program) == problem
        assert_right(program)
        assert program.stats().constants_packed == 2


def test_a_lock_that_is_not_given_back_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_lock, "LOCK_SECONDS", 0.05)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    program, warning = load_warned(tmp_path)
    assert "another process has had its lock for 0.05 seconds" in warning
    assert_right(program)
    os.close(descriptor)
    load(tmp_path)
    descriptor = os.open(use.packed_file(tmp_path), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as stock ExecuTorch locks its files
    program, warning = load_warned(tmp_path)
    assert "Resource temporarily unavailable" in warning
    assert_right(program)
    os.close(descriptor)
    assert origin(load(tmp_path)) == "unchanged"


def test_damaged_weights_of_a_program_are_not_kept(tmp_path: Path) -> None:
    data, _ = programs.mixed()
    load(tmp_path / "intact")

    def flip(file: PTEFile) -> None:
        assert file.named_data is not None
        buffers = file.named_data.buffers
        largest = max(range(len(buffers)), key=lambda index: len(buffers[index]))
        changed = bytearray(buffers[largest])
        changed[100] ^= 1
        buffers[largest] = bytes(changed)

    path = tmp_path / "damaged.pte"
    path.write_bytes(edited(data, flip))
    with pytest.raises(
        ProgramFormatError,
        match="the bytes of weight '(en|de)coder.weight' differ from their recorded",
    ) as error:
        etshared.load(path, packed_cache=tmp_path / "cache")
    assert error.value.path == path
    assert list((tmp_path / "cache").iterdir()) == []
    # What was packed before has the right weights.
    program = etshared.load(path, tensors="numpy", packed_cache=tmp_path / "intact")
    assert origin(program) == "unchanged"


_UNPRIVILEGED = """
import ctypes, os, sys, warnings
import etshared_plugin as etshared
# Root without its capabilities obeys permissions as everyone does.
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
assert ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()) == 0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    program = etshared.load(sys.argv[1], tensors="numpy", packed_cache=sys.argv[2])
for _ in range(2):
    program.session().load()
print(program.stats().packed_file.origin, *(one.message for one in caught), sep="|")
"""


def _unprivileged(program: Path, directory: Path) -> tuple[str, str]:
    """What a process says on stdout and stderr that may not do everything."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _UNPRIVILEGED, program, directory],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.rstrip("\n"), result.stderr


def test_permissions_are_obeyed_and_done_without(tmp_path: Path) -> None:
    program = tmp_path / "mixed.pte"
    program.write_bytes(programs.mixed()[0])
    directory = tmp_path / "cache"
    load(directory)
    path = use.packed_file(directory)
    # XNNPACK's weight cache may not open the file for writing, and is quiet.
    said, errors = _unprivileged(program, directory)
    assert said == "unchanged" and "XNNWeightsCache" not in errors
    # What may not be read may be intact.
    path.chmod(0)
    inode = path.stat().st_ino
    said, _ = _unprivileged(program, directory)
    assert said == (
        f"None|packed weights are not kept in '{directory}': Permission denied; they "
        "are packed in memory"
    )
    assert path.stat().st_ino == inode
    path.chmod(0o400)
    # A directory that may only be read serves, but is not written to.
    use.stamp_of(path).unlink()
    directory.chmod(0o555)
    assert _unprivileged(program, directory)[0] == "verified"
    assert _unprivileged(program, directory)[0] == "verified"
    path.unlink()
    said, _ = _unprivileged(program, directory)
    assert said == (
        f"None|packed weights are not kept in '{directory}': Permission denied; they "
        "are packed in memory"
    )
    directory.chmod(0)
    assert "Permission denied" in _unprivileged(program, directory)[0]
    directory.chmod(0o700)


_FULL = """
import resource, sys, warnings
import etshared_plugin as etshared
# What is packed in memory fits; the file, which has checksums too, does not.
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    program = etshared.load(sys.argv[1], tensors="numpy", packed_cache=sys.argv[2])
program.session().load()
print(*(one.message for one in caught))
assert program.stats().constants_packed == 2
assert all(one.is_shared for one in program.stats().entry_points if one.name != "peek")
"""


def test_a_file_that_cannot_grow_is_removed_again(tmp_path: Path) -> None:
    program = tmp_path / "mixed.pte"
    program.write_bytes(programs.mixed()[0])
    load(tmp_path / "intact")
    limit = use.packed_file(tmp_path / "intact").stat().st_size - 1
    directory = tmp_path / "cache"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FULL, program, directory, str(limit)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == (
        f"packed weights are not kept in '{directory}': File too large; they are "
        "packed in memory\n"
    )
    assert list(directory.iterdir()) == []


def test_a_kernel_that_is_missing_is_no_reason_to_keep_less(tmp_path: Path) -> None:
    """A file would be taken for complete when the kernel is there."""
    data, _ = programs.mixed()

    def rename(file: PTEFile) -> None:
        for plan in file.program.execution_plan:
            if plan.name == "step":
                plan.operators[0].name = "etshared_test::missing"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = etshared.load(
            edited(data, rename), tensors="numpy", packed_cache=tmp_path
        )
    (warning,) = caught
    assert "entry point 'step' needs the kernel 'etshared_test::missing" in str(
        warning.message
    )
    assert "which is not registered" in use.why_not(program)
    assert list(tmp_path.iterdir()) == []
    program.session().load("encode")
