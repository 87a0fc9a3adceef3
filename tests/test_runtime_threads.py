"""Threads: one call at a time in a session, sessions beside each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runtime_programs as programs
from running import run_threads
from runtime_programs import Backend

import etshared_plugin as etshared
from etshared_plugin.errors import ExecutorchError
from etshared_plugin.runtime import Session

_CALLS = 2000


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_two_threads_in_one_session_wait_for_each_other(backend: Backend) -> None:
    session = etshared.load(programs.recurrent(backend), tensors="numpy").session()
    counts: list[int] = []

    def forward() -> None:
        x = np.ones((1, 4), np.float32)
        for _ in range(_CALLS):
            counts.append(int(session.forward(x)[1]))

    def nested() -> None:
        y = np.ones((1, 4), np.float32)
        for i in range(_CALLS):
            a = np.full((1, 4), i, np.float32)
            result = session.nested({"a": [a, a]}, y, k=np.ones(2, np.float32))
            assert (result["sum"] == 2 * i).all()
            assert (result["rest"][0] == 2).all()

    run_threads(forward, nested)
    assert counts == list(range(1, _CALLS + 1))


def test_a_failure_has_the_reason_of_its_own_thread() -> None:
    program = etshared.load(programs.recurrent("portable"), tensors="numpy")
    messages: dict[int, set[str]] = {7: set(), 13: set()}

    def fail(index: int) -> None:
        session = program.session(threads="caller")
        for _ in range(200):
            with pytest.raises(ExecutorchError) as error:
                session.lookup(np.array([index]))
            messages[index].add(str(error.value).rpartition(": ")[2])
            session.reset()

    run_threads(lambda: fail(7), lambda: fail(13))
    for index, found in messages.items():
        assert found == {
            f"Index {index} out of range for tensor with size 2 at dimension 0"
        }


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_two_sessions_in_two_threads_do_not_meet(backend: Backend) -> None:
    program = etshared.load(programs.recurrent(backend), tensors="numpy")

    def run(session: Session, scale: float, results: list[np.ndarray]) -> None:
        x = np.full((1, 4), scale, np.float32)
        for step in range(_CALLS):
            hidden, steps = session.forward(x)
            assert steps == step + 1
            results.append(hidden)

    expected: list[list[np.ndarray]] = [[], []]
    found: list[list[np.ndarray]] = [[], []]
    for scale, results in zip((1.0, -1.0), expected, strict=True):
        run(program.session(), scale, results)
    run_threads(
        lambda: run(program.session(), 1.0, found[0]),
        lambda: run(program.session(), -1.0, found[1]),
    )
    np.testing.assert_array_equal(found, expected)


def test_sessions_start_and_end_in_many_threads() -> None:
    # Stock bindings hang here: they log under XNNPACK's lock.
    program = etshared.load(programs.recurrent("xnnpack"), tensors="numpy")

    def live() -> None:
        for _ in range(20):
            session = program.session()
            session.load()
            session.forward(np.ones((1, 4), np.float32))
            del session

    run_threads(live, live, live)


_DAEMONS = """
import atexit, sys, threading

@atexit.register
def stop():
    is_stopped.set()
    worker.join()

import numpy as np
import etshared_plugin as etshared

program = etshared.load(sys.argv[1], tensors="numpy")

def run():
    session, x = program.session(threads="caller"), np.ones((1, 4), np.float32)
    while True:
        session.forward(x)
        started.release()

started = threading.Semaphore(0)
for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
is_stopped = threading.Event()

def run_until_stopped():
    session, x = program.session(threads="caller"), np.ones((1, 4), np.float32)
    while not is_stopped.is_set():
        session.forward(x)

worker = threading.Thread(target=run_until_stopped, daemon=True)
worker.start()
for _ in range(200):
    started.acquire()
"""


def test_the_interpreter_ends_while_daemon_threads_call(tmp_path: Path) -> None:
    path = tmp_path / "recurrent.pte"
    path.write_bytes(programs.recurrent("xnnpack"))
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _DAEMONS, path],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
