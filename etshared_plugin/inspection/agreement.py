"""Where a record and the plans of its program contradict each other.

Each function yields the object's name and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..context import (
    Access,
    ArenaKind,
    Buffer,
    EntryPointRecord,
    InputSizes,
    SharedContext,
)
from ..pte import PteFile
from ..pte.execution_plan import Dynamism, ExecutionPlan, Value
from .placement_use import PlacementUse, placement_uses

Problem = tuple[str, str]


def recorded_plans(
    context: SharedContext, program: PteFile
) -> Iterator[tuple[EntryPointRecord, ExecutionPlan]]:
    """Yield the entry points that both know."""
    for entry in context.entry_points:
        if entry.name in program.plans:
            yield entry, program.plans[entry.name]


def method_problems(context: SharedContext, program: PteFile) -> Iterator[Problem]:
    recorded = {entry.name for entry in context.entry_points}
    for name in sorted(recorded - program.plans.keys()):
        yield _method(name), "the record names it, the program does not have it"
    for name in sorted(program.plans.keys() - recorded):
        yield _method(name), "the program has it, the record does not name it"


def signature_problems(context: SharedContext, program: PteFile) -> Iterator[Problem]:
    """Yield entry points with other inputs or outputs, or inputs of other sizes."""
    for entry, plan in recorded_plans(context, program):
        inputs = sum(argument.structure.leaf_count for argument in entry.arguments)
        for what, recorded, planned in (
            ("inputs", inputs, len(plan.inputs)),
            ("outputs", entry.result.leaf_count, len(plan.outputs)),
        ):
            if recorded != planned:
                yield (
                    _method(entry.name),
                    f"the record tells of {recorded} {what}, the program has {planned}",
                )
        for index, (sizes, value) in enumerate(
            zip(entry.inputs, plan.inputs, strict=False)
        ):
            problem = _impossible_sizes(sizes, plan.values[value])
            if problem:
                yield _method(entry.name), f"input {index}: {problem}"


def _impossible_sizes(sizes: InputSizes, value: Value) -> str:
    planned = () if value.tensor is None else value.tensor.sizes
    fixed = value.tensor is None or value.tensor.dynamism is Dynamism.STATIC
    if len(sizes.max_sizes) != len(planned):
        return (
            f"the record tells of {len(sizes.max_sizes)} dimensions, the program has "
            f"{len(planned)}"
        )
    for dimension, (least, most, size) in enumerate(
        zip(sizes.min_sizes, sizes.max_sizes, planned, strict=True)
    ):
        if most > size or (fixed and least != size):
            return (
                f"the record allows sizes from {least} to {most} in dimension "
                f"{dimension}, the program plans {'' if fixed else 'at most '}{size}"
            )
    return ""


def arena_problems(context: SharedContext, program: PteFile) -> Iterator[Problem]:
    """Yield arenas whose size is not what the program plans."""
    recorded = {arena.mem_id: arena.nbytes for arena in context.arenas}
    planned: dict[int, int] = {}
    for plan in program.plans.values():
        for mem_id, nbytes in enumerate(plan.arena_nbytes[1:], start=1):
            planned[mem_id] = max(planned.get(mem_id, 0), nbytes)
    for mem_id in sorted(recorded.keys() | planned.keys()):
        if recorded.get(mem_id, 0) != planned.get(mem_id, 0):
            yield (
                f"arena {mem_id}",
                f"the record tells of {recorded.get(mem_id, 0)} bytes, the program "
                f"plans {planned.get(mem_id, 0)}",
            )
    for entry, plan in recorded_plans(context, program):
        if entry.activation_nbytes != plan.activation_nbytes:
            yield (
                _method(entry.name),
                f"the record tells of {entry.activation_nbytes} bytes of activations, "
                f"the program plans {plan.activation_nbytes}",
            )


def overflow_problems(program: PteFile) -> Iterator[Problem]:
    """Yield tensors that a program plans outside of its own arenas."""
    for plan in program.plans.values():
        for index, tensor in plan.tensors():
            placement = tensor.placement
            if placement is None:
                continue
            nbytes = plan.planned_nbytes(placement.mem_id)
            if not placement.mem_id or placement.end > nbytes:
                yield (
                    _method(plan.name),
                    f"value {index} ends at {placement.end} of arena "
                    f"{placement.mem_id}, which has {nbytes} bytes",
                )


def state_problems(context: SharedContext, program: PteFile) -> Iterator[Problem]:
    """Yield what an entry point does with shared memory and the record denies."""
    mem_ids = [
        arena.mem_id for arena in context.arenas if arena.kind is ArenaKind.SHARED_STATE
    ]
    buffers = {_placed(buffer): index for index, buffer in enumerate(context.buffers)}
    for entry, plan in recorded_plans(context, program):
        accesses = {use.buffer: use.access for use in entry.buffers}
        seen = set[int]()
        for use in (use for mem_id in mem_ids for use in placement_uses(plan, mem_id)):
            index = buffers.get(_used(use))
            if index is None:
                where = use.placement
                yield (
                    _method(entry.name),
                    f"{use.scalar_type.dtype_name} at offset {where.offset} of arena "
                    f"{where.mem_id} with {where.nbytes} bytes is no recorded buffer",
                )
                continue
            seen.add(index)
            problem = _contradiction(accesses.get(index), use)
            if problem:
                yield (
                    _buffer(context.buffers[index]),
                    f"{_method(entry.name)} {problem}",
                )
        for index in sorted(accesses.keys() - seen):
            if accesses[index] is not Access.READ:
                yield (
                    _buffer(context.buffers[index]),
                    f"{_method(entry.name)} does not use it, the record says "
                    f"{accesses[index].name}",
                )


def unread_problems(context: SharedContext, program: PteFile) -> Iterator[Problem]:
    """Yield buffers that are said to be read and are not even used."""
    for entry, plan in recorded_plans(context, program):
        mem_ids = {context.buffers[use.buffer].mem_id for use in entry.buffers}
        used = {_used(use) for m in mem_ids for use in placement_uses(plan, m)}
        for use in entry.buffers:
            buffer = context.buffers[use.buffer]
            if use.access is Access.READ and _placed(buffer) not in used:
                yield (
                    _buffer(buffer),
                    f"{_method(entry.name)} does not use it, the record says READ",
                )


def _contradiction(access: Access | None, use: PlacementUse) -> str:
    if access is None:
        return "uses it, the record does not say so"
    if access is Access.READ and use.written:
        return "writes it, the record says READ"
    if access is Access.WRITE and use.read:
        return "reads it, the record says WRITE"
    if access is not Access.READ and not (use.written or use.delegated):
        return f"never writes it, the record says {access.name}"
    return ""


def _placed(buffer: Buffer) -> tuple[int, int, int, int]:
    return buffer.mem_id, buffer.offset, buffer.nbytes, buffer.scalar_type


def _used(use: PlacementUse) -> tuple[int, int, int, int]:
    where = use.placement
    return where.mem_id, where.offset, where.nbytes, use.scalar_type


def _method(name: str) -> str:
    return f"entry point '{name}'"


def _buffer(buffer: Buffer) -> str:
    return f"buffer '{buffer.fqn}'"
