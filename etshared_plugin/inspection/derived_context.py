"""What a program's plans tell by themselves about what is shared."""

from __future__ import annotations

from collections.abc import Mapping

from ..context import (
    CONTEXT_KEY,
    Access,
    Arena,
    ArenaKind,
    Argument,
    Buffer,
    BufferUse,
    Delegate,
    EntryPointRecord,
    Producer,
    ScalarType,
    SharedContext,
    Structure,
    StructureKind,
    Weight,
)
from ..pte import PteFile
from ..pte.execution_plan import ExecutionPlan, Placement, Tensor
from .placement_use import PlacementUse, placement_uses

# Where stock ExecuTorch places the mutable buffers that methods share.
_STATE_MEM_ID = 2


def derive_context(program: PteFile) -> SharedContext:
    """Return what can be known without a record; it need not be valid.

    Names of arguments, digests, initial values and the weights of delegates are
    not known. Shared state is what any method uses in mem_id 2.
    """
    plans = [program.plans[name] for name in sorted(program.plans)]
    uses = [placement_uses(plan, _STATE_MEM_ID) for plan in plans]
    buffers = _buffers([use for of_plan in uses for use in of_plan])
    indices = {
        (buffer.offset, buffer.nbytes, buffer.scalar_type): index
        for index, buffer in enumerate(buffers)
    }
    delegates = [
        Delegate(
            backend_id=delegate.backend_id,
            entry_point=entry_point,
            index=index,
            payload_digest=b"",
            payload_nbytes=len(program.delegate_payload(delegate)),
        )
        for entry_point, plan in enumerate(plans)
        for index, delegate in enumerate(plan.delegates)
    ]
    entry_points = tuple(
        EntryPointRecord(
            name=plan.name,
            arguments=tuple(
                Argument(f"input {index}") for index in range(len(plan.inputs))
            ),
            result=Structure(
                StructureKind.LIST, tuple(Structure() for _ in plan.outputs)
            ),
            buffers=_buffer_uses(of_plan, indices),
            delegates=tuple(
                index
                for index, delegate in enumerate(delegates)
                if delegate.entry_point == entry_point
            ),
            activation_nbytes=plan.activation_nbytes,
        )
        for entry_point, (plan, of_plan) in enumerate(zip(plans, uses, strict=True))
    )
    return SharedContext(
        producer=Producer("", "", ""),
        entry_points=entry_points,
        buffers=buffers,
        arenas=_arenas(plans),
        weights=(*_constants(plans), *_named_weights(program)),
        delegates=tuple(delegates),
    )


def _buffers(uses: list[PlacementUse]) -> tuple[Buffer, ...]:
    names: dict[tuple[Placement, ScalarType], str] = {}
    for use in uses:
        key = (use.placement, use.scalar_type)
        names[key] = names.get(key) or use.fqn
    return tuple(
        Buffer(
            fqn=names[placement, scalar_type],
            scalar_type=scalar_type,
            sizes=sizes,
            dim_order=dim_order,
            mem_id=placement.mem_id,
            offset=placement.offset,
            nbytes=placement.nbytes,
        )
        for (placement, scalar_type), (sizes, dim_order) in sorted(
            {
                (use.placement, use.scalar_type): (use.sizes, use.dim_order)
                for use in reversed(uses)
            }.items(),
            key=lambda item: (item[0][0].offset, item[0][0].nbytes, item[0][1]),
        )
    )


def _buffer_uses(
    uses: list[PlacementUse], indices: Mapping[tuple[int, int, ScalarType], int]
) -> tuple[BufferUse, ...]:
    return tuple(
        BufferUse(
            indices[use.placement.offset, use.placement.nbytes, use.scalar_type],
            _access(use),
        )
        for use in uses
    )


def _access(use: PlacementUse) -> Access:
    if use.written:
        return Access.READ_WRITE if use.read or use.delegated else Access.WRITE
    return Access.READ


def _arenas(plans: list[ExecutionPlan]) -> tuple[Arena, ...]:
    highest = max((len(plan.arena_nbytes) for plan in plans), default=0)
    kinds = {1: ArenaKind.ACTIVATIONS, _STATE_MEM_ID: ArenaKind.SHARED_STATE}
    return tuple(
        Arena(
            mem_id=mem_id,
            nbytes=max(plan.planned_nbytes(mem_id) for plan in plans),
            alignment=0,
            kind=kinds.get(mem_id, ArenaKind.CUSTOM),
        )
        for mem_id in range(1, highest)
    )


def _constants(plans: list[ExecutionPlan]) -> list[Weight]:
    users: dict[int, list[int]] = {}
    tensors: dict[int, Tensor] = {}
    for entry_point, plan in enumerate(plans):
        for _, tensor in plan.tensors():
            if not tensor.is_constant or tensor.external:
                continue
            tensors.setdefault(tensor.data_index, tensor)
            of_constant = users.setdefault(tensor.data_index, [])
            if entry_point not in of_constant:
                of_constant.append(entry_point)
    return [
        Weight(
            identity="",
            digest=b"",
            nbytes=tensor.nbytes,
            scalar_type=tensor.scalar_type,
            sizes=tensor.sizes,
            fqns=(tensor.fqn,) if tensor.fqn else (),
            entry_points=tuple(users[index]),
        )
        for index, tensor in sorted(tensors.items())
    ]


def _named_weights(program: PteFile) -> list[Weight]:
    keys: dict[int, list[str]] = {}
    for key, segment in program.named_data_segments.items():
        if key != CONTEXT_KEY:
            keys.setdefault(segment, []).append(key)
    return [
        Weight(
            identity="",
            digest=b"",
            nbytes=program.segments[segment].nbytes,
            scalar_type=ScalarType.BYTE,
            sizes=(program.segments[segment].nbytes,),
            keys=tuple(sorted(of_segment)),
        )
        for segment, of_segment in sorted(keys.items())
    ]
