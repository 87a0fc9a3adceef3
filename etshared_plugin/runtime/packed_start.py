"""How a program gets its packed weights from disk, or puts them there."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..context import SharedContext
from ..errors import InputError, ProgramFormatError
from ..wording import quoted
from . import _native
from .packed_binding import UnknownFactError, packing_facts
from .packed_cache import PackedCache
from .packed_directory import FoundFile, PackedDirectory
from .packed_file import DamagedFileError, packed_file_nbytes
from .packed_lock import UnusableDirectoryError

_IN_MEMORY = "they are packed in memory"

Origin = Literal["written", "verified", "unchanged"]


@dataclass(frozen=True, slots=True)
class PackedFileUse:
    """What a load has made of the cache on disk.

    Attributes:
        path: the file with the packed weights; None when none is used.
        origin: ``"written"`` by this load; ``"verified"``, all of it, by this
            load; or ``"unchanged"`` since that was done.
        not_used: why no file is used.
    """

    path: Path | None = None
    origin: Origin | None = None
    not_used: str | None = None


def start_from_disk(
    native: _native.Program,
    context: SharedContext | None,
    cache: PackedCache,
    program_path: Path | None,
) -> tuple[PackedFileUse, str | None]:
    """Make a program use a packed file, which is written if need be.

    Returns:
        What has come of it, and what to warn of.

    Raises:
        ProgramFormatError: if the program's weights are not those that it records.
    """
    record = native.context
    if record is None or context is None or not native.has_shareable:
        return PackedFileUse(not_used="nothing in the program may share"), None
    try:
        directory = cache.path
    except InputError as error:  # True was given, and there is no home
        return PackedFileUse(not_used=str(error)), f"{error}; {_IN_MEMORY}"
    start = _Start(native, context, cache.max_nbytes, program_path)
    try:
        use = start.run(directory, packing_facts(record).binding())
    except (UnknownFactError, UnusableDirectoryError, DamagedFileError) as error:
        use = PackedFileUse(not_used=str(error))
    except OSError as error:
        use = PackedFileUse(not_used=error.strerror or str(error))
    else:
        if use.path is None or start.damage is None:
            return use, None
        return use, (
            f"'{use.path}' was damaged: {start.damage}; its weights have been packed "
            "and written again"
        )
    damage = start.damage
    return use, (
        f"packed weights are not kept in '{directory}': {use.not_used}"
        + ("" if damage is None else f" (what is there is damaged: {damage})")
        + f"; {_IN_MEMORY}"
    )


class _Start:
    def __init__(
        self,
        native: _native.Program,
        context: SharedContext,
        max_nbytes: int,
        program_path: Path | None,
    ) -> None:
        self._native = native
        self._context = context
        self._max_nbytes = max_nbytes
        self._program_path = program_path
        #: What is wrong with the file that was found.
        self.damage: str | None = None

    def run(self, path: Path, binding: bytes) -> PackedFileUse:
        with PackedDirectory(path, create=True) as directory:
            file = directory.path_of(binding)
            origin: Origin | None = self._take(directory, binding)
            if origin is not None:
                return PackedFileUse(file, origin)
            with directory.locked():
                # Another process may have been faster.
                origin = self._take(directory, binding)
                if origin is not None:
                    return PackedFileUse(file, origin)
                return self._write(directory, binding)

    def _take(
        self, directory: PackedDirectory, binding: bytes
    ) -> Literal["verified", "unchanged"] | None:
        self.damage = None
        try:
            found = directory.find(binding)
            if found is None:
                return None
            self._use(found)
        except DamagedFileError as error:
            self.damage = str(error)
            return None
        return found.origin

    def _use(self, found: FoundFile) -> None:
        try:
            is_intact, problem = self._native.use_packed_file(found.descriptor)
        finally:
            os.close(found.descriptor)
        if not is_intact:
            raise DamagedFileError(problem)
        if problem:
            raise UnusableDirectoryError(problem)

    def _write(self, directory: PackedDirectory, binding: bytes) -> PackedFileUse:
        is_shared, failure = self._native.pack()
        if failure:
            raise UnusableDirectoryError(failure)
        if not is_shared:
            return PackedFileUse(not_used="XNNPACK packs no constant of the program")
        self._check_constants()
        source = self._native.packed_descriptor
        label = "" if self._program_path is None else self._program_path.name
        nbytes = packed_file_nbytes(source, label)
        if nbytes > self._max_nbytes:
            raise UnusableDirectoryError(
                f"{nbytes} bytes are more than max_nbytes, {self._max_nbytes}"
            )
        try:
            found = directory.write(source, binding, label, self._mode())
            # If there is no descriptor for it, what is in memory serves this program.
            with suppress(UnusableDirectoryError):
                self._use(found)
        except DamagedFileError as error:
            raise UnusableDirectoryError(
                f"what was written cannot be read: {error}"
            ) from error
        directory.trim(self._max_nbytes, keep=binding)
        return PackedFileUse(directory.path_of(binding), "written")

    def _mode(self) -> int:
        """The file's permissions: nobody may read more than of the program."""
        mode = 0
        if self._program_path is not None:
            with suppress(OSError):
                mode = os.stat(self._program_path).st_mode
        return mode & 0o444 | 0o400

    def _check_constants(self) -> None:
        """Refuse weights that are not what export recorded.

        Packed, they would serve whatever has the same record.
        """
        for weight in self._context.weights:
            for key in weight.keys if weight.delegates else ():
                data = self._native.named_data(key)
                if data is None or hashlib.sha256(data).digest() != weight.digest:
                    names = quoted(weight.fqns)
                    raise ProgramFormatError(
                        "damaged program: the bytes of weight "
                        f"{names or repr(key)} differ from their recorded digest",
                        path=self._program_path,
                    )
