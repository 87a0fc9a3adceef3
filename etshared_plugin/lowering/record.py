"""Describe a planned program as a SharedContext."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import ALIGNMENT, scalar_type_enum
from torch import fx
from torch.export.graph_signature import ExportGraphSignature
from torch.utils import _pytree as pytree

from .. import __version__
from ..context import (
    Access,
    Arena,
    ArenaKind,
    Buffer,
    BufferUse,
    Delegate,
    EntryPointRecord,
    InitialValue,
    Producer,
    ScalarType,
    SharedContext,
)
from ..errors import MemoryPlanningError
from ..hookspecs import DelegateDescription
from ..lifted.lifted_state import LiftedProgram
from ..plugins import plugin_manager
from ..state import SharedState
from .input_sizes import input_sizes
from .memory_planning import state_specs
from .sharing_identity import Options
from .structure import arguments_of, structure_of
from .weights import WeightTable

Planned = Mapping[str, tuple[fx.GraphModule, ExportGraphSignature]]


def build_context(
    lifted: Mapping[str, LiftedProgram],
    exported: Mapping[str, LiftedProgram],
    planned: Planned,
    state: SharedState,
    generated: str | None,
    named_data: NamedDataStore,
    constant_methods: Mapping[str, Any] | None = None,
    options: Options = MappingProxyType({}),
) -> SharedContext:
    """Describe what the planned methods share.

    Args:
        lifted: the edge programs, which tell who reads and who writes.
        exported: the same before lowering, which tell the sizes of inputs.
        planned: what memory planning left of each method.
        state: shared state with its initial values.
        generated: name of the entry point that writes the initial values.
        named_data: what the delegates of all methods stored.
        constant_methods: what methods without a graph return.
        options: backend options of delegates, by the identity of their modules.

    Raises:
        MemoryPlanningError: a planner put one buffer into two places.
    """
    constants = constant_methods or {}
    names = sorted([*planned, *constants])
    buffers = _buffers(planned, state)
    index_of = {buffer.fqn: i for i, buffer in enumerate(buffers)}
    weights = WeightTable(named_data)
    delegates: list[Delegate] = []
    entry_points: list[EntryPointRecord] = []
    for position, name in enumerate(names):
        if name in constants:
            result = structure_of(name, pytree.tree_structure(constants[name]))
            entry_points.append(EntryPointRecord(name, result=result))
            continue
        graph_module, _ = planned[name]
        first = len(delegates)
        for index, module in enumerate(lowered_modules(graph_module)):
            description = _describe(module, name)
            weights.add_delegate(module, description, len(delegates))
            delegates.append(
                dataclasses.replace(
                    _delegate(module, description, position, index),
                    options=tuple(sorted(options.get(id(module), {}).items())),
                )
            )
        weights.add_kernels(lifted[name].program, planned[name], position)
        call = lifted[name].call
        entry_points.append(
            EntryPointRecord(
                name,
                arguments_of(name, call),
                structure_of(name, call.out_spec),
                _uses(lifted[name], index_of),
                tuple(range(first, len(delegates))),
                graph_module.meta["non_const_buffer_sizes"][1],
                generated=name == generated,
                inputs=input_sizes(exported[name], planned[name]),
            )
        )
    found = weights.weights()
    return SharedContext(
        producer=Producer(__version__, version("executorch"), torch.__version__),
        entry_points=tuple(entry_points),
        buffers=tuple(buffers),
        arenas=_arenas(planned, buffers),
        weights=found,
        delegates=tuple(
            dataclasses.replace(
                delegate,
                weights=tuple(
                    i for i, w in enumerate(found) if position in w.delegates
                ),
            )
            for position, delegate in enumerate(delegates)
        ),
    )


def _buffers(planned: Planned, state: SharedState) -> list[Buffer]:
    places: dict[str, tuple[str, Any]] = {}
    for name, (graph_module, signature) in planned.items():
        for fqn, spec in state_specs(graph_module, signature, state):
            first_name, first = places.setdefault(fqn, (name, spec))
            place = spec.mem_id, spec.mem_offset
            if place != (first.mem_id, first.mem_offset) or place[0] is None:
                raise MemoryPlanningError(
                    f"buffer '{fqn}' lies at {place} for entry point '{name}' and at"
                    f" {(first.mem_id, first.mem_offset)} for '{first_name}', expected"
                    " one (mem_id, offset)",
                    mem_id=spec.mem_id,
                    method_name=name,
                    fqn=fqn,
                )
    buffers = [
        Buffer(
            fqn,
            ScalarType(int(scalar_type_enum(spec.scalar_type))),
            tuple(buffer.initial_value.shape),
            tuple(range(buffer.initial_value.dim())),
            spec.mem_id,
            spec.mem_offset,
            buffer.initial_value.nbytes,
            InitialValue.ZERO if buffer.is_zero else InitialValue.GIVEN,
            buffer.aliases,
            buffer.group,
        )
        for fqn, buffer in state.items()
        for _, spec in [places[fqn]]
    ]
    return sorted(buffers, key=lambda b: (b.mem_id, b.offset, b.fqn))


def _uses(lifted: LiftedProgram, index_of: Mapping[str, int]) -> tuple[BufferUse, ...]:
    reads, writes = lifted.reads(), set(lifted.outputs)
    uses = []
    for fqn in reads | writes:
        access = Access.READ_WRITE
        if fqn not in writes:
            access = Access.READ
        elif fqn not in reads:
            access = Access.WRITE
        uses.append(BufferUse(index_of[fqn], access))
    return tuple(sorted(uses, key=lambda use: use.buffer))


def _arenas(planned: Planned, buffers: list[Buffer]) -> tuple[Arena, ...]:
    nbytes: dict[int, int] = {}
    for graph_module, _ in planned.values():
        for mem_id, size in enumerate(graph_module.meta["non_const_buffer_sizes"]):
            if mem_id:
                nbytes[mem_id] = max(nbytes.get(mem_id, 0), size)
    shared = {buffer.mem_id for buffer in buffers}
    return tuple(
        Arena(
            mem_id,
            size,
            ALIGNMENT,
            ArenaKind.SHARED_STATE
            if mem_id in shared
            else ArenaKind.ACTIVATIONS
            if mem_id == 1
            else ArenaKind.CUSTOM,
        )
        for mem_id, size in sorted(nbytes.items())
    )


def lowered_modules(graph_module: fx.GraphModule) -> Iterator[LoweredBackendModule]:
    """Yield delegates in the order in which the emitter numbers them."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is executorch_call_delegate:
            yield getattr(graph_module, node.args[0].target)
            continue
        for argument in node.args:
            if isinstance(argument, fx.Node) and argument.op == "get_attr":
                submodule = getattr(graph_module, str(argument.target))
                if isinstance(submodule, fx.GraphModule):
                    yield from lowered_modules(submodule)


def _describe(module: LoweredBackendModule, name: str) -> DelegateDescription:
    described: DelegateDescription | None = plugin_manager().first_result(
        "etshared_describe_delegate",
        DelegateDescription,
        lowered_module=module,
        method_name=name,
    )
    if described is not None:
        return described
    operators = Counter(
        str(getattr(node.target, "__name__", node.target))
        for node in module.original_module.graph.nodes
        if node.op == "call_function"
    )
    return DelegateDescription(operators)


def _delegate(
    module: LoweredBackendModule,
    description: DelegateDescription,
    entry_point: int,
    index: int,
) -> Delegate:
    payload = module.processed_bytes
    return Delegate(
        module.backend_id,
        entry_point,
        index,
        hashlib.sha256(payload).digest(),
        len(payload),
        tuple(sorted(description.operators.items())),
    )
