"""Read a ``.pte`` without torch, without executing it and without trusting it."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..context import CONTEXT_KEY, SharedContext, decode
from ..errors import ContextFormatError, FormatError, ProgramFormatError
from ..flatbuffer import check, items, numbers, text
from ._generated import program as schema
from .execution_plan import (
    DataLocation,
    ExecutionPlan,
    PlannedDelegate,
    Tensor,
)
from .plan_reader import read_plan

# Magic, length, size of the FlatBuffer, offset of the first segment; writers
# since 1.0 append the size of all segments.
_EXTENDED_HEADER = struct.Struct("<4sIQQ")
_EXTENDED_HEADER_OFFSET = 8
_EXTENDED_HEADER_MAGIC = b"eh00"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the file after the FlatBuffer; ``offset`` is the file's."""

    offset: int
    nbytes: int


class PteFile:
    """A program as its file describes it.

    Everything is checked when the file is opened: what this class returns lies
    inside the file. Data are views of the file and keep it mapped.

    Args:
        source: a path, which is memory-mapped, or the bytes of a program.

    Raises:
        ProgramFormatError: if the file cannot be read, and then its cause is an
            OSError, or if it is damaged or no program.
    """

    path: Path | None
    nbytes: int
    version: int
    plans: Mapping[str, ExecutionPlan]
    segments: tuple[Segment, ...]
    #: Segment's index of each key, in the file's order.
    named_data_segments: Mapping[str, int]

    def __init__(self, source: str | Path | bytes | memoryview) -> None:
        if isinstance(source, str | Path):
            self.path = Path(source)
            self._data = _map(self.path)
        else:
            self.path = None
            self._data = memoryview(source).cast("B")
        self.nbytes = len(self._data)
        try:
            self._parse()
        except FormatError as cause:
            raise ProgramFormatError(
                cause.message, path=self.path, offset=cause.offset
            ) from cause

    def named_data(self, key: str) -> memoryview:
        """Return the bytes stored under ``key``; KeyError if there are none."""
        return self.segment_data(self.named_data_segments[key])

    def segment_data(self, index: int) -> memoryview:
        segment = self.segments[index]
        return self._data[segment.offset : segment.offset + segment.nbytes]

    def delegate_payload(self, delegate: PlannedDelegate) -> memoryview:
        """Return the processed bytes of a delegate of one of the plans."""
        if delegate.location is DataLocation.SEGMENT:
            return self.segment_data(delegate.index)
        return self._inline_payloads[delegate.index]

    def stored_data(self, tensor: Tensor) -> memoryview | None:
        """Return a constant's data or a mutable buffer's initial value.

        None if nothing is stored for it in this file.
        """
        if tensor.external or not tensor.data_index:
            return None
        if tensor.placement is None and self._inline_constants:
            return self._inline_constants[tensor.data_index][: tensor.nbytes]
        place = self._stored_place(tensor)
        return self._data[place.offset : place.offset + place.nbytes]

    def constant_places(self) -> set[Segment]:
        """Return where in segments the data of constants lie."""
        if self._inline_constants:
            return set()
        return {
            self._stored_place(tensor)
            for plan in self.plans.values()
            for _, tensor in plan.tensors()
            if tensor.is_constant and not tensor.external
        }

    def shared_context(self) -> SharedContext | None:
        """Return the record of what entry points share, or None without one.

        Raises:
            ContextFormatError: if the record is damaged or of another version.
        """
        if CONTEXT_KEY not in self.named_data_segments:
            return None
        segment = self.segments[self.named_data_segments[CONTEXT_KEY]]
        try:
            return decode(self.named_data(CONTEXT_KEY))
        except ContextFormatError as cause:
            raise ContextFormatError(
                cause.message,
                path=self.path,
                offset=segment.offset + (cause.offset or 0),
            ) from cause

    def _stored_place(self, tensor: Tensor) -> Segment:
        if tensor.placement is None:
            segment, offsets = self._constants
        else:
            segment, offsets = self._mutable_data[tensor.mutable_segment]
        start = self.segments[segment].offset + offsets[tensor.data_index]
        return Segment(start, tensor.nbytes)

    def _parse(self) -> None:
        program_nbytes, segment_base = self._read_header()
        flatbuffer = self._data[:program_nbytes]
        check(flatbuffer, schema.TABLES, schema.ROOT, schema.IDENTIFIER)
        program = schema.Program.GetRootAs(flatbuffer)
        self.version = program.Version()
        self.segments = tuple(
            self._read_segment(index, table, segment_base)
            for index, table in enumerate(items(program, "Segments"))
        )
        self._inline_payloads = [
            _inline(table, "Data") for table in items(program, "BackendDelegateData")
        ]
        self._inline_constants = [
            _inline(table, "Storage") for table in items(program, "ConstantBuffer")
        ]
        self._constants = self._read_subsegment(program.ConstantSegment())
        self._mutable_data = [
            self._read_subsegment(table)
            for table in items(program, "MutableDataSegments")
        ]
        self.named_data_segments = MappingProxyType(self._read_named_data(program))
        plans: dict[str, ExecutionPlan] = {}
        for table in items(program, "ExecutionPlan"):
            plan = read_plan(table)
            if plan.name in plans:
                raise ProgramFormatError(f"entry point '{plan.name}' stands twice")
            self._check_data(plan)
            plans[plan.name] = plan
        self.plans = MappingProxyType(plans)

    def _read_header(self) -> tuple[int, int]:
        header_end = _EXTENDED_HEADER_OFFSET + _EXTENDED_HEADER.size
        if self.nbytes < header_end:
            raise ProgramFormatError(
                f"{self.nbytes} bytes are too few for a program", offset=0
            )
        magic, length, program_nbytes, segment_base = _EXTENDED_HEADER.unpack_from(
            self._data, _EXTENDED_HEADER_OFFSET
        )
        if magic != _EXTENDED_HEADER_MAGIC:
            return self.nbytes, 0
        if length < _EXTENDED_HEADER.size or not (
            header_end <= program_nbytes <= self.nbytes
        ):
            raise ProgramFormatError(
                f"the header tells of {program_nbytes} bytes of program, the file "
                f"has {self.nbytes}",
                offset=_EXTENDED_HEADER_OFFSET,
            )
        if segment_base and segment_base < program_nbytes:
            raise ProgramFormatError(
                f"segments start at {segment_base}, inside the program",
                offset=_EXTENDED_HEADER_OFFSET,
            )
        return program_nbytes, segment_base

    def _read_segment(self, index: int, table: Any, base: int) -> Segment:  # noqa: ANN401
        segment = Segment(base + table.Offset(), table.Size())
        if not base or segment.offset + segment.nbytes > self.nbytes:
            raise ProgramFormatError(
                f"segment {index} ends at {segment.offset + segment.nbytes}, the "
                f"file at {self.nbytes}; it may be truncated"
            )
        return segment

    def _read_subsegment(self, table: Any) -> tuple[int, tuple[int, ...]]:  # noqa: ANN401
        if table is None or not table.OffsetsLength():
            return 0, ()
        _check_index("subsegment: segment", table.SegmentIndex(), len(self.segments))
        return table.SegmentIndex(), numbers(table, "Offsets")

    def _read_named_data(self, program: Any) -> dict[str, int]:  # noqa: ANN401
        segments: dict[str, int] = {}
        for table in items(program, "NamedData"):
            key, index = text(table, "Key"), table.SegmentIndex()
            _check_index(f"named data '{key}': segment", index, len(self.segments))
            if key in segments:
                raise ProgramFormatError(f"named data '{key}' stands twice")
            segments[key] = index
        return segments

    def _check_data(self, plan: ExecutionPlan) -> None:
        for index, delegate in enumerate(plan.delegates):
            payloads = (
                self.segments
                if delegate.location is DataLocation.SEGMENT
                else self._inline_payloads
            )
            _check_index(
                f"entry point '{plan.name}': delegate {index}: payload",
                delegate.index,
                len(payloads),
            )
        for index, tensor in plan.tensors():
            if tensor.external or not tensor.data_index:
                continue
            self._check_stored(f"entry point '{plan.name}': value {index}", tensor)

    def _check_stored(self, place: str, tensor: Tensor) -> None:
        if tensor.placement is None:
            if not self._inline_constants:
                self._check_subsegment(place, tensor, self._constants)
                return
            _check_index(place, tensor.data_index, len(self._inline_constants))
            available = len(self._inline_constants[tensor.data_index])
            if tensor.nbytes > available:
                raise ProgramFormatError(
                    f"{place}: {tensor.nbytes} bytes, stored are {available}"
                )
            return
        _check_index(place, tensor.mutable_segment, len(self._mutable_data))
        self._check_subsegment(
            place, tensor, self._mutable_data[tensor.mutable_segment]
        )

    def _check_subsegment(
        self, place: str, tensor: Tensor, subsegment: tuple[int, tuple[int, ...]]
    ) -> None:
        segment, offsets = subsegment
        _check_index(f"{place}: data", tensor.data_index, len(offsets))
        end = offsets[tensor.data_index] + tensor.nbytes
        if end > self.segments[segment].nbytes:
            raise ProgramFormatError(
                f"{place}: data end at {end} of segment {segment}, which has "
                f"{self.segments[segment].nbytes} bytes"
            )


def _map(path: Path) -> memoryview:
    try:
        # Opening a pipe would wait for its writer.
        if path.is_fifo():
            raise OSError(errno.EINVAL, "Not a regular file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size:
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as cause:
        raise ProgramFormatError(
            f"cannot be read: {cause.strerror}", path=path
        ) from cause
    raise ProgramFormatError("the file is empty", path=path, offset=0)


def _inline(table: Any, field: str) -> memoryview:  # noqa: ANN401
    if not getattr(table, f"{field}Length")():
        return memoryview(b"")
    return memoryview(getattr(table, f"{field}AsNumpy")())


def _check_index(place: str, index: int, count: int) -> None:
    if index >= count:
        raise ProgramFormatError(f"{place} {index} is none of {count}")
