"""Stamps: that a packed file was verified, and is unchanged since.

No failure matters here, nor that two processes write at once: without a stamp that
fits, all of the file is read the next time.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def stamp_of(status: os.stat_result) -> bytes:
    """Return what changes when a file does; the line end shows that all is there."""
    return (
        f"{status.st_dev} {status.st_ino} {status.st_size} "
        f"{status.st_mtime_ns} {status.st_ctime_ns}\n"
    ).encode()


def read(directory: int, name: str) -> bytes:
    """Return a stamp; empty where there is none."""
    with suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | _FLAGS, dir_fd=directory)
        try:
            return os.read(descriptor, 1024)
        finally:
            os.close(descriptor)
    return b""


def write(directory: int, name: str, stamp: bytes) -> None:
    """Write a stamp, where that is possible."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS
    with suppress(OSError):
        descriptor = os.open(name, flags, mode=0o644, dir_fd=directory)
        try:
            os.write(descriptor, stamp)
        finally:
            os.close(descriptor)


def touch(directory: int, name: str) -> None:
    """Note that the file of a stamp is used now."""
    now = time.time_ns()
    with suppress(OSError):
        os.utime(name, ns=(now, now), dir_fd=directory, follow_symlinks=False)
