"""Programs made by stock ExecuTorch, with the record written by hand."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import (
    PTEFile,
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.passes import MemoryPlanningPass
from torch import nn

from etshared_plugin.context import (
    CONTEXT_KEY,
    Access,
    Arena,
    ArenaKind,
    Argument,
    Buffer,
    BufferUse,
    Delegate,
    EntryPointRecord,
    InitialValue,
    InputSizes,
    Producer,
    ScalarType,
    SharedContext,
    Weight,
    encode,
)
from etshared_plugin.pte import PteFile

SIZE = 32


class Accumulator(nn.Module):
    """Sums what its layer gives and counts the calls; starts at ``-minus_start``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.register_buffer("sum", torch.full((1, SIZE), 2.0))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("minus_start", torch.full((1, SIZE), -2.0))
        self.register_buffer("one", torch.ones(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sum.add_(self.layer(x))
        self.count.add_(self.one)
        return torch.tanh(self.sum)

    def peek(self, x: torch.Tensor) -> torch.Tensor:
        return self.sum + self.layer(x)

    def reset_state(self) -> None:
        # 1.5.1 emits nothing for a copy from buffer to buffer.
        self.sum.copy_(-self.minus_start)
        self.count.copy_(self.one - self.one)


class _Method(nn.Module):
    def __init__(self, root: nn.Module, name: str) -> None:
        super().__init__()
        self.root = root
        self._call: Callable[..., object] = getattr(type(root), name)

    def forward(self, *args: torch.Tensor) -> object:
        return self._call(self.root, *args)


@functools.cache
def stock_program(*, delegated: bool) -> bytes:
    """Lower the accumulator's three methods with shared mutable buffers."""
    torch.manual_seed(0)
    root = Accumulator().requires_grad_(False)
    x = (torch.ones(1, SIZE),)
    arguments = {"forward": x, "peek": x, "reset_state": ()}
    edge = to_edge_transform_and_lower(
        {
            name: torch.export.export(_Method(root, name), args)
            for name, args in arguments.items()
        },
        partitioner=[XnnpackPartitioner()] if delegated else None,
    )
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
        emit_mutable_buffer_names=True,
    )
    return bytes(edge.to_executorch(config).buffer)


def record_of(data: bytes) -> SharedContext:
    """The record that the accumulator's program should carry."""
    program = PteFile(data)
    sum_bytes = SIZE * 4
    both = (BufferUse(0, Access.READ_WRITE), BufferUse(1, Access.READ_WRITE))
    reset = (BufferUse(0, Access.WRITE), BufferUse(1, Access.WRITE))
    delegates = [
        (entry_point, index, program.delegate_payload(delegate))
        for entry_point, name in enumerate(sorted(program.plans))
        for index, delegate in enumerate(program.plans[name].delegates)
    ]
    of_entry = [
        tuple(i for i, (entry, _, _) in enumerate(delegates) if entry == entry_point)
        for entry_point in range(3)
    ]
    # The layer is in the delegates of forward and peek.
    users = tuple(i for i, (entry, _, _) in enumerate(delegates) if entry < 2)
    activations = [
        program.plans[name].activation_nbytes for name in sorted(program.plans)
    ]
    return SharedContext(
        producer=Producer("0.1.0", "1.5.1", "2.13.0"),
        entry_points=(
            EntryPointRecord(
                name="forward",
                arguments=(Argument("x"),),
                buffers=both,
                delegates=of_entry[0],
                activation_nbytes=activations[0],
                inputs=(InputSizes((1, SIZE), (1, SIZE), (0, 0)),),
            ),
            EntryPointRecord(
                name="peek",
                arguments=(Argument("x"),),
                buffers=(BufferUse(0, Access.READ),),
                delegates=of_entry[1],
                activation_nbytes=activations[1],
                inputs=(InputSizes((1, SIZE), (1, SIZE), (0, 0)),),
            ),
            EntryPointRecord(
                name="reset_state",
                buffers=reset,
                delegates=of_entry[2],
                activation_nbytes=activations[2],
                generated=True,
            ),
        ),
        buffers=(
            Buffer(
                fqn="sum",
                scalar_type=ScalarType.FLOAT,
                sizes=(1, SIZE),
                dim_order=(0, 1),
                mem_id=2,
                offset=0,
                nbytes=sum_bytes,
                initial_value=InitialValue.GIVEN,
            ),
            Buffer("count", ScalarType.LONG, (1,), (0,), 2, sum_bytes, 8),
        ),
        arenas=(
            Arena(1, max(activations), 16, ArenaKind.ACTIVATIONS),
            Arena(2, sum_bytes + 16, 16, ArenaKind.SHARED_STATE),
        ),
        weights=(_layer_weight(program, users),),
        delegates=tuple(
            Delegate(
                backend_id="XnnpackBackend",
                entry_point=entry_point,
                index=index,
                payload_digest=hashlib.sha256(payload).digest(),
                payload_nbytes=len(payload),
                weights=(0,) if entry_point < 2 else (),
            )
            for entry_point, index, payload in delegates
        ),
    )


def _layer_weight(program: PteFile, delegates: tuple[int, ...]) -> Weight:
    torch.manual_seed(0)
    data = Accumulator().layer.weight.detach().numpy().tobytes()
    keys = [
        key for key in program.named_data_segments if program.named_data(key) == data
    ]
    return Weight(
        identity="layer.weight",
        digest=hashlib.sha256(data).digest(),
        nbytes=len(data),
        scalar_type=ScalarType.FLOAT,
        sizes=(SIZE, SIZE),
        keys=tuple(keys),
        fqns=("layer.weight",),
        delegates=delegates,
        entry_points=() if keys else (0, 1),
    )


def with_record(data: bytes, record: SharedContext | bytes) -> bytes:
    """Return the program with a record, or with any bytes in a record's place."""
    encoded = record if isinstance(record, bytes) else encode(record)
    return with_named_data(data, CONTEXT_KEY, encoded)


def with_named_data(data: bytes, key: str, value: bytes) -> bytes:
    def add(file: PTEFile) -> None:
        store = NamedDataStore()
        if file.named_data is not None:
            store.merge_named_data_store(file.named_data)
        store.add_named_data(key, value)
        file.named_data = store.get_named_data_store_output()

    return edited(data, add)


def edited(data: bytes, edit: Callable[[PTEFile], None]) -> bytes:
    """Return the program after ``edit`` changed ExecuTorch's own form of it."""
    file = deserialize_pte_binary(data)
    edit(file)
    return bytes(
        serialize_pte_binary(
            file, extract_delegate_segments=True, segment_alignment=128
        )
    )
