"""Turn a program's checked tables into :class:`ExecutionPlan` records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..context.scalar_type import ScalarType
from ..errors import ProgramFormatError
from ..flatbuffer import items, numbers, text
from ._generated import program as schema
from .execution_plan import (
    DataLocation,
    Dynamism,
    ExecutionPlan,
    Instruction,
    InstructionKind,
    Placement,
    PlannedDelegate,
    Tensor,
    Value,
    ValueKind,
)

#: ExecuTorch's kTensorDimensionLimit.
MAX_DIMENSIONS = 16

_VALUE_KINDS = {getattr(schema.KernelTypes, kind.value): kind for kind in ValueKind}
_INSTRUCTION_KINDS = {
    getattr(schema.InstructionArguments, kind.value): kind for kind in InstructionKind
}


def read_plan(table: Any) -> ExecutionPlan:  # noqa: ANN401
    """Read a checked ``ExecutionPlan`` table.

    Raises:
        ProgramFormatError: if it is inconsistent.
    """
    name = text(table, "Name")
    place = f"entry point '{name}'"
    values = tuple(
        _read_value(f"{place}: value {index}", item)
        for index, item in enumerate(items(table, "Values"))
    )
    for index, value in enumerate(values):
        optional = value.kind is ValueKind.OPTIONAL_TENSOR_LIST
        _check_indices(
            f"{place}: value {index}",
            [element for element in value.elements if not (optional and element == -1)],
            values,
        )
    operators = tuple(_operator_name(item) for item in items(table, "Operators"))
    delegates = tuple(_read_delegate(place, item) for item in items(table, "Delegates"))
    plan = ExecutionPlan(
        name=name,
        values=values,
        inputs=numbers(table, "Inputs"),
        outputs=numbers(table, "Outputs"),
        operators=operators,
        delegates=delegates,
        instructions=tuple(
            _read_instruction(f"{place}: instruction {index}", item)
            for index, item in enumerate(
                instruction
                for chain in items(table, "Chains")
                for instruction in items(chain, "Instructions")
            )
        ),
        arena_nbytes=numbers(table, "NonConstBufferSizes"),
    )
    _check_plan(place, plan)
    return plan


def _check_plan(place: str, plan: ExecutionPlan) -> None:
    if not plan.name:
        raise ProgramFormatError("an entry point has no name")
    _check_indices(f"{place}: inputs", plan.inputs, plan.values)
    _check_indices(f"{place}: outputs", plan.outputs, plan.values)
    targets: dict[InstructionKind, Sequence[object]] = {
        InstructionKind.KERNEL: plan.operators,
        InstructionKind.DELEGATE: plan.delegates,
        # A jump may go to the end.
        InstructionKind.JUMP_FALSE: (*plan.instructions, None),
    }
    for index, instruction in enumerate(plan.instructions):
        step = f"{place}: instruction {index}"
        _check_indices(step, instruction.arguments, plan.values)
        if instruction.kind in targets:
            _check_indices(step, [instruction.target], targets[instruction.kind])
    for nbytes in plan.arena_nbytes:
        if nbytes < 0:
            raise ProgramFormatError(f"{place}: an arena has {nbytes} bytes")


def _check_indices(
    place: str, indices: Sequence[int], referred: Sequence[object]
) -> None:
    for index in indices:
        if not 0 <= index < len(referred):
            raise ProgramFormatError(
                f"{place}: index {index} is none of {len(referred)}"
            )


def _read_value(place: str, table: Any) -> Value:  # noqa: ANN401
    kind = _VALUE_KINDS.get(table.ValType())
    union = table.Val() if kind is not None else None
    if kind is None or union is None:
        raise ProgramFormatError(f"{place}: unknown kind {table.ValType()}")
    if kind is ValueKind.TENSOR:
        return Value(kind, tensor=_read_tensor(place, _as(schema.Tensor, union)))
    if kind in (ValueKind.TENSOR_LIST, ValueKind.OPTIONAL_TENSOR_LIST):
        elements = _as(getattr(schema, kind.value), union)
        return Value(kind, elements=numbers(elements, "Items"))
    return Value(kind)


def _read_tensor(place: str, table: Any) -> Tensor:  # noqa: ANN401
    sizes = numbers(table, "Sizes")
    dim_order = numbers(table, "DimOrder")
    if len(sizes) > MAX_DIMENSIONS:
        raise ProgramFormatError(
            f"{place}: {len(sizes)} dimensions, expected at most {MAX_DIMENSIONS}"
        )
    if any(size < 0 for size in sizes):
        raise ProgramFormatError(f"{place}: negative size in {list(sizes)}")
    if sorted(dim_order) != list(range(len(sizes))):
        raise ProgramFormatError(
            f"{place}: dim order {list(dim_order)} is not a permutation of "
            f"{len(sizes)} dimensions"
        )
    scalar_type = _member(ScalarType, table.ScalarType(), place)
    allocation = table.AllocationInfo()
    placement = None
    if allocation is not None:
        offset = allocation.MemoryOffsetLow() | allocation.MemoryOffsetHigh() << 32
        nbytes = math.prod(sizes) * scalar_type.itemsize
        placement = Placement(allocation.MemoryId(), offset, nbytes)
    extra = table.ExtraTensorInfo()
    return Tensor(
        scalar_type=scalar_type,
        sizes=sizes,
        dim_order=dim_order,
        dynamism=_member(Dynamism, table.ShapeDynamism(), place),
        placement=placement,
        data_index=table.DataBufferIdx(),
        mutable_segment=0 if extra is None else extra.MutableDataSegmentsIdx(),
        fqn="" if extra is None else text(extra, "FullyQualifiedName"),
        external=extra is not None
        and extra.Location() == schema.TensorDataLocation.EXTERNAL,
    )


def _read_delegate(place: str, table: Any) -> PlannedDelegate:  # noqa: ANN401
    processed = table.Processed()
    backend_id = text(table, "Id")
    if processed is None or not backend_id:
        raise ProgramFormatError(f"{place}: a delegate lacks its payload or backend")
    return PlannedDelegate(
        backend_id=backend_id,
        location=_member(DataLocation, processed.Location(), place),
        index=processed.Index(),
        compile_specs=tuple(text(spec, "Key") for spec in items(table, "CompileSpecs")),
    )


def _read_instruction(place: str, table: Any) -> Instruction:  # noqa: ANN401
    kind = _INSTRUCTION_KINDS.get(table.InstrArgsType())
    union = table.InstrArgs() if kind is not None else None
    if kind is None or union is None:
        raise ProgramFormatError(f"{place}: unknown kind {table.InstrArgsType()}")
    step = _as(getattr(schema, kind.value), union)
    if kind is InstructionKind.KERNEL:
        return Instruction(kind, numbers(step, "Args"), step.OpIndex())
    if kind is InstructionKind.DELEGATE:
        return Instruction(kind, numbers(step, "Args"), step.DelegateIndex())
    if kind is InstructionKind.MOVE:
        return Instruction(kind, (step.MoveFrom(), step.MoveTo()))
    if kind is InstructionKind.JUMP_FALSE:
        return Instruction(
            kind, (step.CondValueIndex(),), step.DestinationInstruction()
        )
    return Instruction(kind, (step.ValueIndex(),))


def _operator_name(table: Any) -> str:  # noqa: ANN401
    name, overload = text(table, "Name"), text(table, "Overload")
    return f"{name}.{overload}" if overload else name


def _as(reader: Any, union: Any) -> Any:  # noqa: ANN401
    table = reader()
    table.Init(union.Bytes, union.Pos)
    return table


def _member(enum: Any, value: int, place: str) -> Any:  # noqa: ANN401
    try:
        return enum(value)
    except ValueError as cause:
        raise ProgramFormatError(
            f"{place}: {enum.__name__} {value} is unknown"
        ) from cause
