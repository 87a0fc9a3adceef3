"""Processes and threads that use one packed file at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import packed_cache_use as use
import packed_programs as programs
import pytest
from packed_cache_use import assert_right, facts_of, load, origin
from running import run_threads

_KILL_WRITERS = Path(__file__).with_name("kill_writers.py")

# Loads when it is told to, and again reads a line before it ends.
_LOAD = """
import json, sys
import numpy as np
import etshared_plugin as etshared

def pss():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(l.split()[1]) * 1024 for l in file if l.startswith("Pss:"))

def say(value):
    print(json.dumps(value), flush=True)
    sys.stdin.readline()

path, small, input_path, cache = sys.argv[1:]
etshared.load(small, tensors="numpy").session().load()
say("ready")
before = pss()
say("measured")
program = etshared.load(path, tensors="numpy", packed_cache=cache)
session = program.session(threads="caller")
x = np.load(input_path)
values = {name: session[name](x).tolist() for name in ("encode", "decode", "step")}
stats = program.stats()
say([values, stats.packed_file.origin, stats.constants_packed, stats.pack_seconds])
say(pss() - before)
"""


#: The program, a small one to load first, the input, and the directory.
_Paths = tuple[Path, Path, Path, Path]


class _Loader:
    def __init__(self, *arguments: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _LOAD, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> object:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.communicate("\n", timeout=60)
        assert self._process.returncode == 0


def _step(loaders: list[_Loader]) -> list[object]:
    """Let all go on at once, and return what they say next."""
    for loader in loaders:
        loader.go()
    return [loader.hear() for loader in loaders]


@pytest.fixture
def paths(tmp_path: Path) -> _Paths:
    wide, small, x = (tmp_path / name for name in ("wide.pte", "small.pte", "x.npy"))
    data, inputs = programs.mixed(1408)  # two weights of 7.9 MB
    wide.write_bytes(data)
    small.write_bytes(programs.mixed()[0])
    np.save(x, inputs["encode"][0].numpy())
    return wide, small, x, tmp_path / "cache"


def _together(count: int, paths: _Paths) -> tuple[list[list], int]:
    """Start processes at once; return what they found, and their Pss in total."""
    loaders = [_Loader(*paths) for _ in range(count)]
    for loader in loaders:
        assert loader.hear() == "ready"
    assert _step(loaders) == ["measured"] * count
    found = [list(one) for one in _step(loaders) if isinstance(one, list)]
    pss = sum(one for one in _step(loaders) if isinstance(one, int))
    for loader in loaders:
        loader.end()
    return found, pss


def test_two_processes_pack_once_and_share_the_pages(
    paths: _Paths,
) -> None:
    data, inputs = programs.mixed(1408)
    expected = use.alone(data, inputs)
    found, cold_pss = _together(2, paths)
    assert Counter(start for _, start, _, _ in found) == {"written": 1, "unchanged": 1}
    assert sorted(packed for _, _, packed, _ in found) == [0, 2]
    file = use.packed_file(paths[3])
    facts = facts_of(file)
    packed_nbytes = file.stat().st_size
    assert packed_nbytes > 15_000_000

    one_found, one_pss = _together(1, paths)
    two_found, two_pss = _together(2, paths)
    for values, start, packed, pack_seconds in one_found + two_found:
        assert (start, packed, pack_seconds) == ("unchanged", 0, 0)
        for name, value in values.items():
            np.testing.assert_array_equal(np.float32(value), expected[name])
    assert facts_of(file) == facts
    assert one_pss > 0.9 * packed_nbytes
    assert two_pss < 1.1 * one_pss
    # Also where one of them has written the file, which has then read the program.
    assert cold_pss < 1.1 * one_pss + paths[0].stat().st_size


def test_threads_load_at_once_and_pack_once(tmp_path: Path) -> None:
    origins: list[str | None] = []

    def live() -> None:
        for _ in range(10):
            program = load(tmp_path)
            origins.append(origin(program))
            assert_right(program)

    run_threads(*[live] * 4)
    assert Counter(origins)["written"] == 1


def test_sessions_in_two_threads_use_one_file(tmp_path: Path) -> None:
    load(tmp_path)
    program = load(tmp_path)
    inputs = programs.mixed()[1]

    def live() -> None:
        for _ in range(30):
            session = program.session(threads="caller")
            found = {
                name: session[name](*programs.arrays(x)) for name, x in inputs.items()
            }
            use.assert_same(found, use.expected())

    run_threads(live, live)
    assert program.stats().constants_packed == 0


def test_a_child_process_uses_what_its_parent_has_mapped(tmp_path: Path) -> None:
    load(tmp_path)
    program = load(tmp_path)
    inputs = programs.mixed()[1]

    def check() -> None:
        session = program.session(threads="caller")
        found = {name: session[name](*programs.arrays(x)) for name, x in inputs.items()}
        use.assert_same(found, use.expected())

    check()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            assert origin(load(tmp_path)) == "unchanged"
            status = 0
        finally:
            os._exit(status)
    check()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_CLEAR = """
import sys, threading
import etshared_plugin as etshared
cache = etshared.PackedCache(sys.argv[1])
ending = threading.Thread(target=sys.stdin.read)
ending.start()
print("ready", flush=True)
num_removed = 0
while ending.is_alive():
    num_removed += len(cache.clear())
print(num_removed)
"""


def test_loads_beside_removals_are_right_and_quiet(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _CLEAR, tmp_path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as remover:
        try:
            assert remover.stdout is not None
            assert remover.stdout.readline() == "ready\n"
            # Warnings are errors here.
            origins = Counter(origin(load(tmp_path)) for _ in range(300))
            assert_right(load(tmp_path))
        finally:
            said, _ = remover.communicate(timeout=60)
    assert int(said) > 20 and origins["written"] > 20


def test_a_killed_writer_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    program, x, cache = tmp_path / "wide.pte", tmp_path / "x.npy", tmp_path / "cache"
    data, inputs = programs.mixed(1408)
    program.write_bytes(data)
    np.save(x, inputs["encode"][0].numpy())
    cache.mkdir()
    result = subprocess.run(
        [sys.executable, "-W", "ignore", _KILL_WRITERS, program, x, cache, "40", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["wrong"] == []
    assert report["counts"]["killed"] > 0
