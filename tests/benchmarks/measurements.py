"""What is measured, each in fresh processes and in several rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_WORKER = Path(__file__).with_name("worker.py")

#: The median of each measured quantity, by system.
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Setting:
    """Programs over one set of weights, and where files may be written."""

    directory: Path
    paths: Mapping[str, Path]  #: ``all``, ``one`` and ``stock``
    warm_up: Path
    methods: Sequence[str]
    shape: tuple[int, int]  #: of the one input
    stock_cpp: Path

    @property
    def packed_cache(self) -> Path:
        return self.directory / "packed"

    @property
    def stock_cache(self) -> Path:
        return self.directory / "stock.cache"

    def task(self, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        return {
            "system": "etshared",
            "path": str(self.paths["all"]),
            "warm_up": str(self.warm_up),
            "methods": list(self.methods),
            "shape": self.shape,
            "options": {},
            **changes,
        }


class Worker:
    """A process that is told what to do."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(_WORKER), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def ask(self, command: str) -> Any:  # noqa: ANN401
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()


def _measured_load(task: Mapping[str, Any]) -> dict[str, float]:
    with Worker(task) as worker:
        before = worker.ask("memory")
        took: dict[str, float] = worker.ask("load")
        after = worker.ask("memory")
    return {**took, **{kind: after[kind] - before[kind] for kind in before}}


def _output_of(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@dataclass
class _Rounds:
    measured: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def add(self, system: str, figures: dict[str, float]) -> None:
        self.measured.setdefault(system, []).append(figures)

    def medians(self) -> Figures:
        return {
            system: {
                key: statistics.median(one[key] for one in rounds) for key in rounds[0]
            }
            for system, rounds in self.measured.items()
        }


def measure_loads(setting: Setting, rounds: int) -> Figures:
    """Measure how long loading takes, and the memory that it leaves taken.

    ``one`` loads a program with one entry point, the others all entry points.
    """
    found = _Rounds()
    packed = {"packed_cache": str(setting.packed_cache)}
    rest = [str(setting.warm_up), str(setting.paths["stock"]), *setting.methods]

    def stock_cpp(cache: str) -> dict[str, float]:
        return _output_of([str(setting.stock_cpp), "load", cache, *rest])

    for _ in range(rounds):
        one = setting.task(path=str(setting.paths["one"]), methods=setting.methods[:1])
        found.add("one entry point", _measured_load(one))
        found.add("all", _measured_load(setting.task()))
        found.add("all, two sessions", _measured_load(setting.task(sessions=2)))
        unshared = setting.task(options={"packed_weights": False})
        found.add("all, not shared", _measured_load(unshared))

        _clear(setting.packed_cache)
        on_disk = setting.task(options=packed)
        found.add("all, packed file: first start", _measured_load(on_disk))
        for stamp in setting.packed_cache.glob("*.verified"):
            stamp.unlink()
        found.add("all, packed file: verified in full", _measured_load(on_disk))
        found.add("all, packed file: unchanged", _measured_load(on_disk))

        stock = setting.task(system="stock", path=str(setting.paths["stock"]))
        found.add("stock Python", _measured_load(stock))
        found.add("stock C++", stock_cpp("none"))
        found.add("stock C++, cache", stock_cpp("cache"))
        setting.stock_cache.unlink(missing_ok=True)
        found.add(
            "stock C++, cache file: first start", stock_cpp(str(setting.stock_cache))
        )
        found.add(
            "stock C++, cache file: second start", stock_cpp(str(setting.stock_cache))
        )
    return found.medians()


def measure_two_processes(setting: Setting) -> dict[str, float]:
    """Measure the proportional memory that loading takes: of one process, and of two.

    All calls have been made before, so that every page in use is there.
    """
    task = setting.task(options={"packed_cache": str(setting.packed_cache)})
    _measured_load(task)  # the file is there
    found = {}
    for count, name in ((1, "one"), (2, "two")):
        workers = [Worker(task) for _ in range(count)]
        before = [worker.ask("memory")["Pss"] for worker in workers]
        seconds = [worker.ask("load")["seconds"] for worker in workers]
        for worker in workers:
            worker.ask("call")
        after = [worker.ask("memory")["Pss"] for worker in workers]
        for worker in workers:
            worker.__exit__(None, None, None)
        found[name] = float(sum(after) - sum(before))
        found["last_load"] = seconds[-1]
    return found


def measure_threads(setting: Setting, rounds: int, seconds: float) -> Figures:
    """Measure how many times the calls of one thread two threads make."""
    task = setting.task(system="threads", rounds=rounds, seconds=seconds)
    worker = [sys.executable, "-W", "ignore", str(_WORKER), json.dumps(task)]
    found = {"sessions in their calling threads": _output_of(worker)}
    numbers = [*map(str, setting.shape), str(seconds), str(rounds)]
    for cache, name in (("cache", "with"), ("none", "without")):
        rest = [*numbers, str(setting.paths["all"]), setting.methods[0]]
        found[f"stock C++ modules {name} cache"] = _output_of(
            [str(setting.stock_cpp), "threads", cache, *rest]
        )
    return {
        name: {
            "ratio": statistics.median(
                two / one for one, two in zip(counts["one"], counts["two"], strict=True)
            )
        }
        for name, counts in found.items()
    }


def _clear(directory: Path) -> None:
    if directory.is_dir():
        for path in directory.iterdir():
            path.unlink()
