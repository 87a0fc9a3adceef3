"""Runs programs whose entry points share weights and state; free of torch."""

from . import _libraries

_libraries.check_executorch_version()
_libraries.load_executorch_libraries()
_libraries.find_native_module(__path__)

from .packed_cache import PackedCache, PackedFile  # noqa: E402
from .packed_start import PackedFileUse  # noqa: E402
from .program import SharedProgram, load  # noqa: E402
from .session import BoundEntryPoint, Session  # noqa: E402
from .state import SessionState, Snapshot  # noqa: E402
from .stats import EntryPointStats, ProgramStats  # noqa: E402

__all__ = [
    "BoundEntryPoint",
    "EntryPointStats",
    "PackedCache",
    "PackedFile",
    "PackedFileUse",
    "ProgramStats",
    "Session",
    "SessionState",
    "SharedProgram",
    "Snapshot",
    "load",
]
