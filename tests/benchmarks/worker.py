"""One process that is measured: does what its input says, line by line.

``load`` loads the program of the task and tells how long that took, ``call`` calls
all entry points, ``memory`` tells what the process has; each answers with a line
of JSON. The task is the argument, JSON too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def memory() -> dict[str, int]:
    """Return bytes of this process by kind, as the kernel counts them."""
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line.split()[0])
    return {kind: int(fields[kind].split()[0]) * 1024 for kind in ("Anonymous", "Pss")}


class Etshared:
    """Loads with this package."""

    def __init__(self, task: dict[str, Any]) -> None:
        import etshared_plugin

        self.load_program = etshared_plugin.load
        self.task = task
        # Starts what a process has once: libraries, thread pool.
        self.load_program(task["warm_up"], tensors="numpy").session().load()
        self.sessions: list[Any] = []

    def load(self) -> dict[str, float]:
        started = time.perf_counter()
        program = self.load_program(
            self.task["path"], tensors="numpy", **self.task["options"]
        )
        for _ in range(self.task.get("sessions", 1)):
            session_started = time.perf_counter()
            self.sessions.append(program.session())
            self.sessions[-1].load(*self.task["methods"])
        ended = time.perf_counter()
        return {"seconds": ended - started, "last_session": ended - session_started}

    def call(self) -> float:
        x = np.ones(self.task["shape"], np.float32)
        return sum(
            float(session[name](x).sum())
            for session in self.sessions
            for name in self.task["methods"]
        )


class Stock:
    """Loads with ``executorch.runtime``."""

    def __init__(self, task: dict[str, Any]) -> None:
        from executorch.runtime import Runtime

        self.load_program = Runtime.get().load_program
        self.task = task
        warm_up = self.load_program(task["warm_up"])
        for name in warm_up.method_names:
            warm_up.load_method(name)
        self.loaded: list[Any] = []

    def load(self) -> dict[str, float]:
        started = time.perf_counter()
        program = self.load_program(self.task["path"])
        methods = [program.load_method(name) for name in self.task["methods"]]
        seconds = time.perf_counter() - started
        self.loaded += [program, *methods]
        return {"seconds": seconds}


def serve(task: dict[str, Any]) -> None:
    system = (Stock if task["system"] == "stock" else Etshared)(task)
    commands: dict[str, Callable[[], Any]] = {"memory": memory, "load": system.load}
    if isinstance(system, Etshared):
        commands["call"] = system.call
    for line in sys.stdin:
        print(json.dumps(commands[line.strip()]()), flush=True)


def _calls(call: Callable[[], object], seconds: float) -> int:
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        call()
        count += 1
    return count


def measure_threads(task: dict[str, Any]) -> None:
    """Print how many calls one thread makes, and two with a session each."""
    import etshared_plugin

    program = etshared_plugin.load(task["path"], tensors="numpy")
    x = np.ones(task["shape"], np.float32)
    sessions = [program.session(threads="caller") for _ in range(2)]
    calls = [session[task["methods"][0]] for session in sessions]
    for call in calls:
        call(x)
    rates: dict[str, list[int]] = {"one": [], "two": []}
    for _ in range(task["rounds"]):
        rates["one"].append(_calls(lambda: calls[0](x), task["seconds"]))
        counts = [0, 0]

        def run(index: int, counts: list[int] = counts) -> None:
            counts[index] = _calls(lambda: calls[index](x), task["seconds"])

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates["two"].append(sum(counts))
    print(json.dumps(rates))


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    measure_threads(task) if task["system"] == "threads" else serve(task)
