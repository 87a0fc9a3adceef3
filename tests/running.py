"""Code beside other code: in threads, and in processes of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable


def run_threads(*actions: Callable[[], None]) -> None:
    """Run actions in a thread each; raise the first failure when all have ended."""
    failures: list[BaseException] = []

    def guarded(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def run_python(code: str, *arguments: object) -> str:
    """Return what a process, which must end well, prints."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
