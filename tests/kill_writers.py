"""Kill processes that write a packed file, at random moments, and load after each.

    python tests/kill_writers.py PROGRAM INPUT DIRECTORY TRIALS SEED

INPUT is the one input of some of PROGRAM's entry points, as a .npy file, and
DIRECTORY is empty. Prints as JSON how many writers were killed, what how many of
them had left, and which loads were not as they must be: without warning, and
bit-equal.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import etshared_plugin as etshared

_Report = tuple[list[bytes], str | None, list[str]]


def _load(program: str, x: np.ndarray, cache: str | None) -> _Report:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = etshared.load(
            program, tensors="numpy", packed_cache=False if cache is None else cache
        )
    session = loaded.session(threads="caller")
    use = loaded.stats().packed_file
    assert loaded.context is not None
    names = [one.name for one in loaded.context.entry_points if len(one.inputs) == 1]
    return (
        [session[name](x).tobytes() for name in names],
        None if use is None else use.origin,
        [str(warning.message) for warning in caught],
    )


def _in_child(program: str, x: np.ndarray, cache: str | None) -> _Report:
    """Load in a process of its own: this one never computes, so it can fork."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(writable, "wb") as pipe:
                pickle.dump(_load(program, x, cache), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        data = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise RuntimeError(f"the process that loads ended with {code}")
    report: _Report = pickle.loads(data)
    return report


def _killed_writer(program: str, cache: str, seconds: float) -> bool:
    """Kill a process that loads after some time; false when it was faster."""
    child = os.fork()
    if child == 0:
        etshared.load(program, packed_cache=cache)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _remove_all(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def main(program: str, input_path: str, cache: str, trials: int, seed: int) -> None:
    x = np.load(input_path)
    directory = Path(cache)
    moments = random.Random(seed)
    etshared.load(program)  # what is loaded once is no part of the moments
    expected, _, _ = _in_child(program, x, None)

    _in_child(program, x, cache)
    _remove_all(directory)
    started = time.perf_counter()
    _in_child(program, x, cache)
    longest = 1.2 * (time.perf_counter() - started)
    counts: Counter[str] = Counter()
    wrong = []
    for trial in range(trials):
        if trial % 3 != 2:  # else the leftovers of one more stay
            _remove_all(directory)
        is_killed = _killed_writer(program, cache, longest * moments.random())
        suffixes = {path.suffix for path in directory.iterdir()}
        left = "nothing" if not suffixes else " ".join(sorted(suffixes))
        counts["killed" if is_killed else "finished"] += 1
        counts[f"left {left}"] += 1
        values, origin, messages = _in_child(program, x, cache)
        must_write = ".packed" not in suffixes
        if values != expected or messages or (origin == "written") != must_write:
            wrong.append([trial, origin, *messages])
        if any(path.suffix == ".tmp" for path in directory.iterdir()) and must_write:
            wrong.append([trial, "a leftover is there"])
    print(json.dumps({"counts": counts, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
