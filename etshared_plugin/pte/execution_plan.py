"""What one entry point of a program plans, as plain data; free of torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, IntEnum

from ..context.scalar_type import ScalarType


class ValueKind(Enum):
    """Kinds of EValue; the names are those of ``program.fbs``."""

    NONE = "Null"
    INT = "Int"
    BOOL = "Bool"
    DOUBLE = "Double"
    TENSOR = "Tensor"
    STRING = "String"
    INT_LIST = "IntList"
    DOUBLE_LIST = "DoubleList"
    BOOL_LIST = "BoolList"
    TENSOR_LIST = "TensorList"
    OPTIONAL_TENSOR_LIST = "OptionalTensorList"


class Dynamism(IntEnum):
    """How a tensor's shape may vary; sizes are the upper bound of a bounded one."""

    STATIC = 0
    DYNAMIC_BOUND = 1
    DYNAMIC_UNBOUND = 2


class DataLocation(IntEnum):
    """Where a delegate's payload stands."""

    INLINE = 0
    SEGMENT = 1


class InstructionKind(Enum):
    KERNEL = "KernelCall"
    DELEGATE = "DelegateCall"
    MOVE = "MoveCall"
    JUMP_FALSE = "JumpFalseCall"
    FREE = "FreeCall"


@dataclass(frozen=True, slots=True)
class Placement:
    """``nbytes`` of arena ``mem_id`` from ``offset`` on."""

    mem_id: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a plan.

    ``placement`` is None where memory is not planned; ``data_index`` is 0 without
    stored data. A tensor with both is a mutable buffer with an initial value.
    """

    scalar_type: ScalarType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    dynamism: Dynamism
    placement: Placement | None
    data_index: int
    mutable_segment: int
    fqn: str
    external: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.scalar_type.itemsize

    @property
    def is_constant(self) -> bool:
        return self.placement is None and (self.data_index > 0 or self.external)


@dataclass(frozen=True, slots=True)
class Value:
    """An EValue; ``elements`` are indices of values, for lists of tensors only."""

    kind: ValueKind
    tensor: Tensor | None = None
    elements: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    """A step; ``target`` is an operator's, a delegate's or an instruction's index."""

    kind: InstructionKind
    arguments: tuple[int, ...]
    target: int = 0


@dataclass(frozen=True, slots=True)
class PlannedDelegate:
    """One lowered piece; ``index`` counts inline payloads or segments."""

    backend_id: str
    location: DataLocation
    index: int
    compile_specs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """One entry point as the program holds it; ``arena_nbytes`` is by mem_id."""

    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[str, ...]
    delegates: tuple[PlannedDelegate, ...]
    instructions: tuple[Instruction, ...]
    arena_nbytes: tuple[int, ...]

    @property
    def activation_nbytes(self) -> int:
        return self.planned_nbytes(1)

    def planned_nbytes(self, mem_id: int) -> int:
        """Return the bytes that this plan wants of an arena; 0 if it wants none."""
        return self.arena_nbytes[mem_id] if mem_id < len(self.arena_nbytes) else 0

    def tensors(self) -> list[tuple[int, Tensor]]:
        """Return the tensors with the indices of their values."""
        return [
            (index, value.tensor)
            for index, value in enumerate(self.values)
            if value.tensor is not None
        ]
