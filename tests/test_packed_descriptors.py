"""Descriptors, memory and processes run short or change hands: right results anyway."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import packed_cache_use as use
import packed_programs as programs
import pytest
from packed_cache_use import load, origin
from running import run_python

import etshared_plugin as etshared


def _run(code: str, *arguments: object) -> list:
    """What a process prints as JSON."""
    return json.loads(run_python(code, *arguments))


def _write_program(path: Path, width: int = 32) -> Path:
    """With the input of its entry points beside it."""
    data, inputs = programs.mixed(width)
    path.write_bytes(data)
    np.save(path.with_name("x.npy"), inputs["encode"][0].numpy())
    return path


_DAEMON = """
import json, os, sys
import numpy as np
import etshared_plugin as etshared

path, log_path, cache = sys.argv[1:]
program = etshared.load(path, tensors="numpy", packed_cache=cache or False)
if not cache:
    program.session().load()
numbers = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
os.closerange(3, max(numbers) + 1)
log = os.open(log_path, os.O_RDWR)
for number in numbers:
    os.dup2(log, number)
session = program.session()
values = {
    "in_wide": session.in_wide(np.ones((1, 8), np.float32)).tolist(),
    "in_tall": session.in_tall(np.ones((1, 4), np.float32)).tolist(),
    "both": session.both(np.ones((1, 8), np.float32)).tolist(),
    "adapted": session.adapted(np.ones((1, 8), np.float32)).tolist(),
}
obstacles = {one.not_shared for one in program.stats().entry_points}
del session, program
assert all(os.path.sameopenfile(log, number) for number in numbers)
print(json.dumps([values, list(obstacles)]))
"""


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_descriptors_that_were_closed_are_left_to_their_new_owner(
    place: str, tmp_path: Path
) -> None:
    data, inputs = programs.confusable()
    path, log, cache = (tmp_path / name for name in ("a.pte", "log", "cache"))
    path.write_bytes(data)
    log.write_bytes(b"somebody's" * 5000)
    etshared.load(path, packed_cache=cache)
    values, obstacles = _run(_DAEMON, path, log, cache if place == "disk" else "")
    expected = use.alone(data, inputs)
    assert values == {name: value.tolist() for name, value in expected.items()}
    assert obstacles == ["the process has closed the descriptor of its packed weights"]
    assert log.read_bytes() == b"somebody's" * 5000


_SHORT = """
import json, os, resource, sys, warnings
import numpy as np
import etshared_plugin as etshared
from etshared_plugin.errors import ProgramFormatError

path, cache, kind, *limits = sys.argv[1:]
x = np.load(f"{cache}/x.npy")
etshared.load(path, tensors="numpy").session().load()
resources = {"files": resource.RLIMIT_NOFILE, "size": resource.RLIMIT_FSIZE}
kind = resources[kind]
before = resource.getrlimit(kind)
first = os.open("/", os.O_RDONLY)  # the lowest number that is free
os.close(first)
found = []
for index, limit in enumerate(map(int, limits)):
    if kind == resource.RLIMIT_NOFILE:
        limit += first
    resource.setrlimit(kind, (limit, before[1]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            program = etshared.load(
                path, tensors="numpy", packed_cache=f"{cache}/{index}"
            )
        except ProgramFormatError as error:
            resource.setrlimit(kind, before)
            found.append([str(error), None, None, None])
            continue
    session = program.session()
    values = [session[name](x).tolist() for name in ("encode", "decode")]
    resource.setrlimit(kind, before)
    use = program.stats().packed_file
    warned = [str(one.message) for one in caught]
    found.append([warned, use.origin, use.not_used, values])
print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", ["files", "size"])
def test_what_a_shortage_leaves_out_is_not_kept(kind: str, tmp_path: Path) -> None:
    path = _write_program(tmp_path / "mixed.pte")
    # One of two packed weights has 8192 bytes, with padding.
    limits = [*range(9)] if kind == "files" else [1, 100, 8192, 12000, 2**20]
    found = _run(_SHORT, path, tmp_path, kind, *limits)
    expected = [use.expected()[name].tolist() for name in ("encode", "decode")]
    kept = []
    for index, (warnings, start, not_used, values) in enumerate(found):
        directory = tmp_path / str(index)
        if values is None:
            assert "Too many open files" in warnings
            continue
        assert values == expected
        kept.append(start)
        if start is None:
            (warning,) = warnings
            assert f"kept in '{directory}': {not_used}; they are packed in" in warning
            problem = "errno=27" if kind == "size" else "Too many open files"
            assert problem in not_used or "errno=24" in not_used
            assert not directory.exists() or not list(directory.iterdir())
            assert origin(load(directory)) == "written"
        else:
            assert start == "written" and not warnings
        # What is there is complete.
        program = load(directory)
        assert origin(program) in ("unchanged", "verified")
        assert program.stats().constants_from_disk == 2
    assert kept[0] is None and kept[-1] == "written"


@pytest.mark.parametrize("kind", ["missing", "forged"])
def test_without_procfs_every_session_packs(kind: str, tmp_path: Path) -> None:
    """XNNPACK would create files of its own under such a path."""
    code = """
import json, os, sys, warnings
import etshared_plugin as etshared
data = open(sys.argv[1], "rb").read()
etshared.load(data, tensors="numpy").session().load()
cached = etshared.load(data, tensors="numpy", packed_cache=sys.argv[2])
try:
    os.chroot(sys.argv[2])
except PermissionError:
    print("[]")
    sys.exit()
if sys.argv[3] == "forged":
    os.makedirs("/proc/self/fd")
found = []
for program in (cached, etshared.load(data, tensors="numpy")):
    program.session().load()
    found += [one.not_shared for one in program.stats().entry_points]
print(json.dumps(found))
"""
    path = tmp_path / "a.pte"
    path.write_bytes(programs.one_layer("linear")[0])
    root = tmp_path / "root"
    found = _run(code, path, root, kind)
    if not found:
        pytest.skip("only root may change the root directory")
    problem = "its packed weights cannot be opened through '/proc': No such file"
    assert all(one.startswith(problem) for one in found)
    created = [*root.glob("proc/**/*")]
    assert all(one.is_dir() for one in created)


_FORK = """
import json, os, sys, threading
import etshared_plugin as etshared

def is_packing():
    with open("/proc/self/maps") as file:
        return any("rw-s" in line and "etshared-packed" in line for line in file)

def hold(program):
    thread = threading.Thread(target=program.session().load)
    thread.start()
    while thread.is_alive() and not is_packing():
        pass
    gate, opener = os.pipe()
    answer, answerer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(opener)
        os.write(answerer, bytes([is_packing()]))
        os.read(gate, 1)
        os._exit(0)
    os.close(answerer)
    is_mapped = os.read(answer, 1) == b"\\1"
    thread.join()
    os.close(opener)
    os.waitpid(child, 0)
    return is_mapped

for _ in range(30):
    program = etshared.load(sys.argv[1], tensors="numpy")
    if hold(program):
        break
else:
    sys.exit("no fork hit the packing")
print(json.dumps([one.not_shared for one in program.stats().entry_points]))
"""


def test_a_fork_while_weights_are_packed_keeps_nothing_from_sharing(
    tmp_path: Path,
) -> None:
    path = _write_program(tmp_path / "wide.pte", 1408)
    obstacles = _run(_FORK, path)
    assert set(obstacles) == {None, "XNNPACK packs no constant of it"}


def test_a_directory_on_a_full_table_of_descriptors_is_no_damage(
    tmp_path: Path,
) -> None:
    """What cannot be opened now may be intact."""
    path = _write_program(tmp_path / "mixed.pte")
    for index in range(9):
        load(tmp_path / str(index))
    inodes = [
        use.packed_file(tmp_path / str(index)).stat().st_ino for index in range(9)
    ]
    found = _run(_SHORT, path, tmp_path, "files", *range(9))
    starts = {start for _, start, _, _ in found}
    assert starts == {None, "unchanged"}
    for index, (warnings, start, _, values) in enumerate(found):
        assert use.packed_file(tmp_path / str(index)).stat().st_ino == inodes[index]
        assert not any("damaged" in warning for warning in warnings)
        assert (warnings == []) == (start == "unchanged")
        assert values is None or values == [
            use.expected()[name].tolist() for name in ("encode", "decode")
        ]
