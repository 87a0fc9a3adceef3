"""The directory of packed files: finding, writing and removing them.

A file is named by its binding, ``<64 hexadecimal digits>.packed``, and never
changes: it is written under another name and renamed. Beside it may lie a stamp,
``….verified``, that says what the file's inode, size and times were when all of
it was last verified; its own time of modification is that of the last use.
Whoever writes or removes holds the lock of the directory, so that a ``….tmp`` that
is there when the lock is taken has no writer any more.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from . import packed_lock, packed_stamp
from .packed_file import (
    DamagedFileError,
    PackedFileBlock,
    open_packed_file,
    write_packed_file,
)

_PACKED, _VERIFIED, _TEMPORARY = ".packed", ".verified", ".tmp"
_NAME = re.compile(r"([0-9a-f]{64})(\.packed|\.verified|\.tmp)")

#: A file is as old as this when it is new, so that whatever writes to it changes
#: its time of modification, however coarse the clock of the file system is.
_AGE_SECONDS = 60
_OLD_ENOUGH_NS = 4 * 10**9

_Origin = Literal["verified", "unchanged"]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """An intact packed file; whoever has it closes the descriptor.

    Attributes:
        descriptor: open for reading, with a shared lock.
        origin: whether all of the file has been verified now, or it is unchanged
            since that was done.
    """

    descriptor: int
    origin: _Origin


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A packed file as it lies in the directory."""

    binding: bytes
    nbytes: int
    last_used_ns: int


class PackedDirectory:
    """An open directory. Use as a context manager."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open a directory; ``create`` makes it if need be, for the user alone.

        Raises:
            OSError: if that is not possible.
        """
        self.path = path
        if create:
            os.makedirs(path, mode=0o700, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)

    def __enter__(self) -> PackedDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def path_of(self, binding: bytes) -> Path:
        return self.path / f"{binding.hex()}{_PACKED}"

    def locked(self) -> AbstractContextManager[None]:
        """Keep other writers out; see ``packed_lock.locked``."""
        return packed_lock.locked(self._descriptor)

    def find(self, binding: bytes) -> FoundFile | None:
        """Open a packed file if there is one and it is intact.

        Raises:
            DamagedFileError: if it is not intact.
            OSError: if it cannot be opened or locked.
        """
        opened = self._open(binding)
        if opened is None:
            return None
        descriptor, block = opened
        try:
            return FoundFile(descriptor, self._check(descriptor, block))
        except BaseException:
            os.close(descriptor)
            raise

    def verify(self, binding: bytes) -> None:
        """Read all of a packed file.

        Raises:
            DamagedFileError: if it is not intact.
            OSError: if it cannot be opened or locked.
        """
        opened = self._open(binding)
        if opened is not None:
            descriptor, block = opened
            try:
                block.check_content(descriptor)
            finally:
                os.close(descriptor)

    def label(self, binding: bytes) -> str | None:
        """Return what a packed file was made from, or None if it is damaged."""
        try:
            opened = self._open(binding)
        except (DamagedFileError, OSError):
            return None
        if opened is None:
            return None
        descriptor, block = opened
        os.close(descriptor)
        return block.label

    def write(self, source: int, binding: bytes, label: str, mode: int) -> FoundFile:
        """Write a packed file, in place of one that may be there, and verify it.

        The caller holds the lock.

        Args:
            mode: permissions of the file.

        The other arguments are those of ``write_packed_file``.

        Raises:
            DamagedFileError: if it is not what was written.
            OSError: if it cannot be written; what was there still is.
        """
        self.remove_leftovers()
        temporary = f"{binding.hex()}{_TEMPORARY}"
        descriptor = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
            mode=0o600,
            dir_fd=self._descriptor,
        )
        opened = None
        try:
            write_packed_file(source, descriptor, binding, label)
            old = (int(time.time()) - _AGE_SECONDS) * 10**9
            os.utime(descriptor, ns=(old, old))
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            # Under its final name anybody may remove it.
            opened = open_packed_file(self._descriptor, temporary, binding)
            os.rename(
                temporary,
                f"{binding.hex()}{_PACKED}",
                src_dir_fd=self._descriptor,
                dst_dir_fd=self._descriptor,
            )
            with suppress(OSError):  # not every file system does that
                os.fsync(self._descriptor)
            return FoundFile(opened[0], self._check(*opened))
        except BaseException:
            if opened is not None:
                os.close(opened[0])
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._descriptor)
            raise
        finally:
            os.close(descriptor)

    def files(self) -> list[ListedFile]:
        """Return the packed files, the last used one first."""
        found = []
        for binding, suffix in self._names():
            if suffix == _PACKED:
                with suppress(FileNotFoundError):
                    status = self._stat(f"{binding}{_PACKED}")
                    found.append(
                        ListedFile(
                            bytes.fromhex(binding),
                            status.st_size,
                            self._last_used_ns(binding, status),
                        )
                    )
        return sorted(found, key=lambda file: file.last_used_ns, reverse=True)

    def trim(self, max_nbytes: int, keep: bytes) -> None:
        """Remove least recently used files beyond ``max_nbytes``, but not ``keep``.

        The caller holds the lock. A process that uses a file keeps its content.
        """
        files = self.files()
        total = sum(file.nbytes for file in files)
        for file in reversed(files):
            if total <= max_nbytes:
                break
            if file.binding != keep:
                with suppress(OSError):
                    self.remove(file.binding)
                    total -= file.nbytes

    def remove(self, binding: bytes) -> None:
        """Remove a packed file and its stamp.

        The caller holds the lock. A process that uses the file keeps its content.

        Raises:
            OSError: if the file cannot be removed.
        """
        with suppress(FileNotFoundError):
            os.unlink(f"{binding.hex()}{_PACKED}", dir_fd=self._descriptor)
        with suppress(OSError):
            os.unlink(f"{binding.hex()}{_VERIFIED}", dir_fd=self._descriptor)

    def remove_leftovers(self) -> None:
        """Remove what writers that were killed have left, and stamps of no file.

        The caller holds the lock.
        """
        names = set(self._names())
        for binding, suffix in names:
            is_stray = suffix == _VERIFIED and (binding, _PACKED) not in names
            if suffix == _TEMPORARY or is_stray:
                with suppress(OSError):
                    os.unlink(f"{binding}{suffix}", dir_fd=self._descriptor)

    def _names(self) -> Iterator[tuple[str, str]]:
        for name in os.listdir(self._descriptor):
            match = _NAME.fullmatch(name)
            if match is not None:
                yield match[1], match[2]

    def _open(self, binding: bytes) -> tuple[int, PackedFileBlock] | None:
        try:
            return open_packed_file(
                self._descriptor, f"{binding.hex()}{_PACKED}", binding
            )
        except FileNotFoundError:
            return None

    def _check(self, descriptor: int, block: PackedFileBlock) -> _Origin:
        status = os.fstat(descriptor)
        stamp = packed_stamp.stamp_of(status)
        stamp_name = f"{block.binding.hex()}{_VERIFIED}"
        if packed_stamp.read(self._descriptor, stamp_name) == stamp:
            packed_stamp.touch(self._descriptor, stamp_name)
            return "unchanged"
        block.check_content(descriptor)
        after = os.fstat(descriptor)
        # Who removes a file changes its ctime, and nothing of its content.
        is_removed = after.st_nlink == 0
        if (
            after.st_mtime_ns != status.st_mtime_ns
            or after.st_size != status.st_size
            or not (is_removed or after.st_ctime_ns == status.st_ctime_ns)
        ):
            raise DamagedFileError("it changed while it was read")
        # A change that comes soon might leave a time that is new as it is.
        is_old = time.time_ns() - status.st_mtime_ns > _OLD_ENOUGH_NS
        if is_old and not is_removed:
            packed_stamp.write(self._descriptor, stamp_name, stamp)
        return "verified"

    def _stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def _last_used_ns(self, binding: str, status: os.stat_result) -> int:
        try:
            return self._stat(f"{binding}{_VERIFIED}").st_mtime_ns
        except OSError:
            return status.st_ctime_ns
