"""Store what kernels and delegates have in common once.

ExecuTorch keeps what kernels read in one segment of the file, and gives each named
datum, which delegates read, a segment of its own. Where the bytes are the same, that
segment can as well lie inside of the other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from executorch.exir import ExecutorchProgramManager
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStore

from ..errors import ProgramFormatError
from ..pte import PteFile, Segment
from ..pte._generated import program as schema

#: The extended header: offset of the first segment, and the size of all.
_SEGMENTS = struct.Struct("<QQ")
_SEGMENTS_OFFSET = 24

_UINT64 = struct.Struct("<Q")


def store_once(
    manager: ExecutorchProgramManager,
    named_data: NamedDataStore,
    segment_alignment: int,
) -> None:
    """Let what kernels and delegates have in common be stored once.

    Args:
        manager: has the program as ExecuTorch writes it, and gets the other.
        named_data: what the program's delegates read.
        segment_alignment: of the program's segments, in bytes.
    """
    stored = named_data.get_named_data_store_output()
    constants = manager._emitter_output.program.constant_buffer
    if {constant.storage for constant in constants}.isdisjoint(stored.buffers):
        return
    alignments = {key: entry.alignment for key, entry in stored.pte_data.items()}
    step = math.lcm(segment_alignment, *alignments.values())
    data = stored_once(bytes(manager._pte_data), alignments, step)
    manager._pte_data = Cord(data)


def stored_once(data: bytes, alignments: Mapping[str, int], step: int) -> bytes:
    """Return the program without named data that constants of kernels are equal to.

    It is returned as it is where that cannot be done.

    Args:
        data: the program.
        alignments: of the named data, in bytes, by key.
        step: segments move by multiples of it, in bytes.
    """
    try:
        program = PteFile(data)
        places = _places(data, program, alignments)
        moved = _moved(data, program, places, step) if places else None
        if moved is not None and _has_data_of(PteFile(moved), program):
            return moved
    except ProgramFormatError:
        pass  # ExecuTorch may still read what it has written
    return data


def _places(
    data: bytes, program: PteFile, alignments: Mapping[str, int]
) -> dict[int, Segment]:
    """Return where in the constants' segment the bytes of other segments are."""
    constants: dict[int, list[Segment]] = {}
    for place in sorted(program.constant_places(), key=lambda place: place.offset):
        constants.setdefault(place.nbytes, []).append(place)
    places: dict[int, Segment] = {}
    for key, index in program.named_data_segments.items():
        named = program.segments[index]
        for place in constants.get(named.nbytes, ()):
            if (
                place.offset % alignments[key] == 0
                # Constants stay where they are if all that goes is behind them.
                and place.offset + place.nbytes <= named.offset
                and data[place.offset : place.offset + place.nbytes]
                == program.segment_data(index)
            ):
                places[index] = place
    return places


def _has_data_of(program: PteFile, other: PteFile) -> bool:
    return (
        program.named_data_segments == other.named_data_segments
        and len(program.segments) == len(other.segments)
        and all(
            program.segment_data(index) == other.segment_data(index)
            for index in range(len(other.segments))
        )
    )


def _moved(
    data: bytes, program: PteFile, places: Mapping[int, Segment], step: int
) -> bytes | None:
    """Let segments lie at ``places``, before all of them, and close the gaps.

    None if the file has no field for the offset of a segment that moves.
    """
    order = sorted(
        range(len(program.segments)), key=lambda i: program.segments[i].offset
    )
    starts = [program.segments[index].offset for index in order]
    pieces = [data[: starts[0]]]
    offsets: dict[int, int] = {}
    removed = 0
    for index, start, end in zip(order, starts, [*starts[1:], len(data)], strict=True):
        if index not in places:
            offsets[index] = start - removed
            pieces.append(data[start:end])
            continue
        offsets[index] = places[index].offset
        gap = (end - start) % step if end < len(data) else 0
        pieces.append(bytes(gap))
        removed += end - start - gap
    moved = bytearray().join(pieces)
    base, nbytes = _SEGMENTS.unpack_from(moved, _SEGMENTS_OFFSET)
    _SEGMENTS.pack_into(moved, _SEGMENTS_OFFSET, base, nbytes - removed)
    tables = schema.Program.GetRootAs(data)
    for index, offset in offsets.items():
        table = tables.Segments(index)._tab
        if offset != program.segments[index].offset:
            field = table.Offset(4)
            if not field:  # where it is zero, the default
                return None
            _UINT64.pack_into(moved, table.Pos + field, offset - base)
    return bytes(moved)
