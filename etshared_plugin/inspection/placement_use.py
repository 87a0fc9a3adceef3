"""How an entry point's instructions use planned memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..context.scalar_type import ScalarType
from ..pte.execution_plan import ExecutionPlan, Instruction, InstructionKind, Placement


@dataclass(frozen=True, slots=True)
class PlacementUse:
    """What the instructions do with the tensors of one placement and type.

    A delegate's instruction lists what it reads and writes without telling them
    apart, so ``delegated`` memory may be either.
    """

    placement: Placement
    scalar_type: ScalarType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    fqn: str = ""
    read: bool = False
    written: bool = False
    delegated: bool = False


def placement_uses(plan: ExecutionPlan, mem_id: int) -> list[PlacementUse]:
    """Return what is used in arena ``mem_id``, by offset."""
    reads, writes, delegated = set[int](), set[int](), set[int]()
    for instruction in plan.instructions:
        if instruction.kind is InstructionKind.DELEGATE:
            delegated.update(_tensors(plan, instruction.arguments))
            continue
        written = set(_tensors(plan, _outputs(instruction)))
        writes |= written
        reads |= set(_tensors(plan, instruction.arguments)) - written
    reads.update(_tensors(plan, plan.outputs))
    writes.update(_tensors(plan, plan.inputs))

    found: dict[tuple[int, int, ScalarType], list[int]] = {}
    for index, tensor in plan.tensors():
        placement = tensor.placement
        if placement is None or placement.mem_id != mem_id:
            continue
        if index in reads or index in writes or index in delegated:
            key = (placement.offset, placement.nbytes, tensor.scalar_type)
            found.setdefault(key, []).append(index)
    tensors = dict(plan.tensors())
    return [
        PlacementUse(
            placement=Placement(mem_id, offset, nbytes),
            scalar_type=scalar_type,
            sizes=tensors[indices[0]].sizes,
            dim_order=tensors[indices[0]].dim_order,
            fqn=next((tensors[i].fqn for i in indices if tensors[i].fqn), ""),
            read=not reads.isdisjoint(indices),
            written=not writes.isdisjoint(indices),
            delegated=not delegated.isdisjoint(indices),
        )
        for (offset, nbytes, scalar_type), indices in sorted(found.items())
    ]


def _outputs(instruction: Instruction) -> tuple[int, ...]:
    # Kernels end in their return value, which is the out argument, the list of
    # out arguments, or what an in-place kernel changes.
    if instruction.kind in (InstructionKind.KERNEL, InstructionKind.MOVE):
        return instruction.arguments[-1:]
    return ()


def _tensors(plan: ExecutionPlan, indices: tuple[int, ...]) -> Iterator[int]:
    for index in indices:
        yield index
        yield from (element for element in plan.values[index].elements if element >= 0)
