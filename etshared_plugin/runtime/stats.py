"""What loading a program has taken, and which packed weights are shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from . import _native
    from .packed_start import PackedFileUse


@dataclass(frozen=True, slots=True)
class EntryPointStats:
    """One entry point; a packed constant is a weight with its bias, if it has one.

    ``constants_packed`` counts those that were packed for it first,
    ``constants_from_disk`` those that a packed file had and no earlier entry point
    uses, and ``constants_reused`` those that an earlier one had packed or uses from
    the file. All are known from the first load of any entry point on.
    """

    name: str
    loads: int  #: how many times a session has loaded it
    load_seconds: float  #: of the latest load by a session, without packing
    pack_seconds: float  #: of packing what it is the first to use
    constants_packed: int
    constants_from_disk: int
    constants_reused: int
    packed_nbytes: int
    from_disk_nbytes: int
    reused_nbytes: int
    not_shared: str | None  #: why each session packs for itself

    @property
    def is_shared(self) -> bool:
        """Whether sessions use packed weights in common, as far as is known."""
        return self.not_shared is None


@dataclass(frozen=True, slots=True)
class ProgramStats:
    """All entry points of a program, and their totals."""

    entry_points: tuple[EntryPointStats, ...]
    packed_file: PackedFileUse | None  #: None: no packed cache was asked for

    @property
    def load_seconds(self) -> float:
        return sum(one.load_seconds for one in self.entry_points)

    @property
    def pack_seconds(self) -> float:
        return sum(one.pack_seconds for one in self.entry_points)

    @property
    def constants_packed(self) -> int:
        return sum(one.constants_packed for one in self.entry_points)

    @property
    def constants_from_disk(self) -> int:
        return sum(one.constants_from_disk for one in self.entry_points)

    @property
    def constants_reused(self) -> int:
        return sum(one.constants_reused for one in self.entry_points)

    @property
    def packed_nbytes(self) -> int:
        """Bytes of weights that were packed once for all sessions."""
        return sum(one.packed_nbytes for one in self.entry_points)

    @property
    def from_disk_nbytes(self) -> int:
        """Bytes of packed weights that a packed file had."""
        return sum(one.from_disk_nbytes for one in self.entry_points)

    @property
    def reused_nbytes(self) -> int:
        """Bytes that would be packed again if entry points did not share."""
        return sum(one.reused_nbytes for one in self.entry_points)


def program_stats(
    methods: Iterable[tuple[str, _native.MethodStats]],
    packed_file: PackedFileUse | None,
) -> ProgramStats:
    return ProgramStats(
        tuple(
            EntryPointStats(
                name=name,
                loads=stats.num_loads,
                load_seconds=stats.load_seconds,
                pack_seconds=stats.pack_seconds,
                constants_packed=stats.num_packed,
                constants_from_disk=stats.num_from_disk,
                constants_reused=stats.num_reused,
                packed_nbytes=stats.packed_nbytes,
                from_disk_nbytes=stats.from_disk_nbytes,
                reused_nbytes=stats.reused_nbytes,
                not_shared=stats.obstacle or None,
            )
            for name, stats in methods
        ),
        packed_file,
    )
