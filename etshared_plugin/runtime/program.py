"""Programs in memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..context import SharedContext, decode
from ..errors import InputError, PackedCacheWarning
from ..wording import counted, quoted
from . import _native
from ._libraries import load_plugin_libraries
from .data_files import FileSource, encoded_path, read_data_files
from .packed_cache import PackedCache, packed_cache_of
from .packed_start import PackedFileUse, start_from_disk
from .session import Session, Threads
from .stats import ProgramStats, program_stats
from .structure import named_classes
from .tensors import Framework, check_framework


def load(
    source: FileSource,
    *,
    data_files: Sequence[FileSource] = (),
    tensors: Framework = None,
    types: Sequence[type] = (),
    packed_weights: bool = True,
    packed_cache: bool | str | os.PathLike[str] | PackedCache = False,
) -> SharedProgram:
    """Load a program, from a path or from the bytes of one.

    A file is mapped, not read, and must not change while the program or one
    of its sessions lives. A program without this package's record works too:
    inputs are then positional, results are lists, and state has no names.

    Args:
        data_files: Paths or bytes of the files (``.ptd``) that hold what the program
            keeps outside of itself. As in ExecuTorch, names, types and sizes are
            checked, values are not.
        tensors: What tensors come back as, ``"numpy"`` or ``"torch"``. By
            default torch when an input is torch (or, where an entry point takes
            no tensor, when torch has been imported), otherwise numpy.
        types: Classes that results may be instances of. An instance of any
            other class comes back as a dict of its fields.
        packed_weights: Whether XNNPACK packs weights once for all entry points
            and sessions, where the program's record says that this is safe.
            Otherwise every entry point of every session packs its own.
        packed_cache: Where packed weights are kept on disk: a directory, or True
            for the user's. The first load packs them and writes a file; later
            ones, and those of other processes, map it.

    Raises:
        InputError: if an argument means nothing.
        ProgramFormatError: if this cannot be read, is no program, or a damaged one.
        ContextFormatError: if its record is damaged or of another version.

    Warns:
        PackedCacheWarning: if packed weights cannot be kept on disk, or the file
            with them was damaged and has been written again.
    """
    cache = packed_cache_of(packed_cache)
    if cache is not None and not packed_weights:
        raise InputError("a packed cache needs packed weights, which are switched off")
    check_framework(tensors)
    classes = named_classes(types)
    load_plugin_libraries()
    data = read_data_files(data_files)
    path = None
    if isinstance(source, (bytes, bytearray, memoryview)):
        native = _native.Program.from_bytes(bytes(source), data, packed_weights)
    else:
        encoded = encoded_path(source, "program")
        native = _native.Program.open(encoded, data, packed_weights)
        path = Path(os.fsdecode(encoded))
    record = native.context
    context = None if record is None else decode(record)
    packed_file = None
    if cache is not None:
        packed_file, problem = start_from_disk(native, context, cache, path)
        if problem is not None:
            warnings.warn(problem, PackedCacheWarning, stacklevel=2)
    return SharedProgram(native, path, context, tensors, classes, packed_file)


class SharedProgram:
    """A program whose sessions share its weights and nothing else.

    :func:`load` makes it.
    """

    def __init__(
        self,
        native: _native.Program,
        path: Path | None,
        context: SharedContext | None,
        tensors: Framework,
        classes: Mapping[str, type],
        packed_file: PackedFileUse | None,
    ) -> None:
        self._native = native
        self._path = path
        self._context = context
        self._tensors: Framework = tensors
        self._classes = classes
        self._packed_file = packed_file
        self._methods = {
            name: index
            for index, name in enumerate(native.method_names)
            if index != native.generated_method
        }
        entry_points = () if context is None else context.entry_points
        self._records = {entry.name: entry for entry in entry_points}

    @property
    def path(self) -> Path | None:
        """The file, or None for a program from bytes."""
        return self._path

    @property
    def context(self) -> SharedContext | None:
        """The record of what entry points share, or None without one."""
        return self._context

    @property
    def entry_points(self) -> tuple[str, ...]:
        """The names that a session can call."""
        return tuple(self._methods)

    def session(self, *, threads: Threads = "pool") -> Session:
        """Start a life of the state, with its initial values.

        Args:
            threads: ``"pool"`` computes with ExecuTorch's thread pool, of which a
                process has one, so that calls of several sessions take turns
                there. ``"caller"`` computes in the thread that calls only, and
                sessions in several threads do not wait for each other.
        """
        return Session(self, threads)

    def stats(self) -> ProgramStats:
        """Return what loading has taken so far, and what is shared."""
        stats = self._native.stats()
        return program_stats(
            ((name, stats[index]) for name, index in self._methods.items()),
            self._packed_file,
        )

    def _index(self, name: str) -> int:
        try:
            return self._methods[name]
        except KeyError:
            names = quoted(self._methods) or "none"
            raise InputError(
                f"there is no entry point '{name}', only {names}{self._hint_for(name)}",
                method_name=name,
            ) from None

    def _hint_for(self, name: str) -> str:
        """Say what to do instead of calling the generated entry point."""
        generated = self._native.generated_method
        is_generated = (
            generated is not None and self._native.method_names[generated] == name
        )
        return "; call the session's reset()" if is_generated else ""

    def __repr__(self) -> str:
        source = "from bytes" if self._path is None else repr(str(self._path))
        names = ", ".join(self._methods)
        if self._context is None:
            return f"<SharedProgram {source}: {names}; no record>"
        nbytes = sum(buffer.nbytes for buffer in self._context.buffers)
        return (
            f"<SharedProgram {source}: {names}; "
            f"{counted(len(self._context.buffers), 'buffer')} of state, "
            f"{counted(nbytes, 'byte')}>"
        )
