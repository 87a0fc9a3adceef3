"""The lock of a directory of packed files."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: How long a process waits for another one that packs, and how often it looks.
LOCK_SECONDS: Final = 60.0
_POLL_SECONDS = 0.01


class UnusableDirectoryError(Exception):
    """Packed files cannot be kept there, for a reason that is not an OSError."""


@contextmanager
def locked(directory: int) -> Iterator[None]:
    """Keep other writers out of a directory, which is open as a descriptor.

    Raises:
        UnusableDirectoryError: if another one stays too long.
        OSError: if the file system has no locks.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while not _try_lock(directory):
        if time.monotonic() > deadline:
            raise UnusableDirectoryError(
                f"another process has had its lock for {LOCK_SECONDS:g} seconds"
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        # Closing would not do: a process that was forked meanwhile has the lock too.
        fcntl.flock(directory, fcntl.LOCK_UN)


def _try_lock(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
