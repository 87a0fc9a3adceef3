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

from ._generated import program as schema
from .pte import PteFile, Segment

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
    data = _stored_once(bytes(manager._pte_data), alignments, step)
    manager._pte_data = Cord(data)


def _stored_once(data: bytes, alignments: Mapping[str, int], step: int) -> bytes:
    """Return the program with segments that moved by multiples of ``step``."""
    program = PteFile(data)
    constants: dict[int, list[Segment]] = {}
    for place in sorted(program.constant_places(), key=lambda place: place.offset):
        constants.setdefault(place.nbytes, []).append(place)
    places: dict[int, Segment] = {}
    for key, index in program.named_data_segments.items():
        named = program.segment_data(index)
        for place in constants.get(len(named), ()):
            if place.offset % alignments[key] == 0 and (
                data[place.offset : place.offset + place.nbytes] == named
            ):
                places[index] = place
    return _moved(data, program, places, step)


def _moved(
    data: bytes, program: PteFile, places: Mapping[int, Segment], step: int
) -> bytes:
    """Let segments lie at ``places``, in the first segment, and close the gaps."""
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
            field = table.Pos + table.Offset(4)
            _UINT64.pack_into(moved, field, offset - base)
    return bytes(moved)
