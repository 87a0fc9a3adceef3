"""Report what a program holds."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import chain, islice
from pathlib import Path

from ..context import Access, InputSizes, SharedContext
from ..errors import ContextFormatError
from ..pte import PteFile
from ..pte.execution_plan import Dynamism, ExecutionPlan, InstructionKind, Value
from .agreement import method_problems, signature_problems
from .derived_context import derive_context
from .report import (
    ArenaReport,
    ArgumentReport,
    DelegateReport,
    EntryPointReport,
    ProgramReport,
    StateReport,
    ValueReport,
    WeightReport,
)
from .stored_twice import weights_stored_twice

#: Sizes of inputs where there is no record.
_UNKNOWN = InputSizes()


def inspect_program(path: str | Path) -> ProgramReport:
    """Describe a program, with or without a record of what is shared.

    Raises:
        ProgramFormatError: if the file cannot be read, is damaged or no program.
    """
    program = PteFile(path)
    recorded, problem = None, ""
    try:
        recorded = program.shared_context()
    except ContextFormatError as cause:
        problem = cause.message
    if recorded is not None:
        problem = _contradiction(recorded, program)
    if recorded is None or problem:
        status = "damaged" if problem else "missing"
        return _report(path, program, derive_context(program), status, problem)
    report = _report(path, program, recorded, "present", "")
    repeated = weights_stored_twice(recorded, program)
    return dataclasses.replace(
        report, findings=tuple(weight.finding for weight in repeated)
    )


def _contradiction(context: SharedContext, program: PteFile) -> str:
    problems = chain(
        method_problems(context, program), signature_problems(context, program)
    )
    return next((f"{place}: {message}" for place, message in problems), "")


def _report(
    path: str | Path,
    program: PteFile,
    context: SharedContext,
    status: str,
    problem: str,
) -> ProgramReport:
    recorded = status == "present"
    producer = context.producer
    names = [entry.name for entry in context.entry_points]
    return ProgramReport(
        path=str(path),
        nbytes=program.nbytes,
        record=status,
        record_problem=problem,
        producer={
            "etshared_plugin": producer.package,
            "executorch": producer.executorch,
            "torch": producer.torch,
        }
        if recorded
        else {},
        entry_points=tuple(
            _entry_point(context, index, program.plans[name])
            for index, name in enumerate(names)
        ),
        state=tuple(
            _state(context, index, recorded) for index in range(len(context.buffers))
        ),
        weights=tuple(_weight(context, index) for index in range(len(context.weights))),
        delegates=tuple(
            DelegateReport(
                backend_id=delegate.backend_id,
                entry_point=names[delegate.entry_point],
                index=delegate.index,
                payload_nbytes=delegate.payload_nbytes,
                payload_digest=delegate.payload_digest.hex(),
                operators=dict(delegate.operators),
                weights=delegate.weights,
                options=dict(delegate.options),
            )
            for delegate in context.delegates
        ),
        arenas=tuple(
            ArenaReport(
                mem_id=arena.mem_id,
                kind=arena.kind.name.lower(),
                nbytes=arena.nbytes,
                alignment=arena.alignment or None,
                planned={
                    name: program.plans[name].planned_nbytes(arena.mem_id)
                    for name in names
                },
            )
            for arena in context.arenas
        ),
    )


def _entry_point(
    context: SharedContext, index: int, plan: ExecutionPlan
) -> EntryPointReport:
    entry = context.entry_points[index]
    recorded = entry.inputs or (_UNKNOWN,) * len(plan.inputs)
    inputs = zip(plan.inputs, recorded, strict=True)
    arguments = tuple(
        ArgumentReport(
            name=argument.name,
            keyword_only=argument.keyword_only,
            values=tuple(
                _value(plan.values[index], sizes)
                for index, sizes in islice(inputs, argument.structure.leaf_count)
            ),
        )
        for argument in entry.arguments
    )
    kernels = Counter(
        plan.operators[instruction.target]
        for instruction in plan.instructions
        if instruction.kind is InstructionKind.KERNEL
    )
    return EntryPointReport(
        name=entry.name,
        generated=entry.generated,
        arguments=arguments,
        results=tuple(_value(plan.values[index]) for index in plan.outputs),
        activation_nbytes=entry.activation_nbytes,
        reads=tuple(
            context.buffers[use.buffer].fqn
            for use in entry.buffers
            if use.access is not Access.WRITE
        ),
        writes=tuple(
            context.buffers[use.buffer].fqn
            for use in entry.buffers
            if use.access is not Access.READ
        ),
        kernels=dict(sorted(kernels.items())),
        delegates=entry.delegates,
    )


def _value(value: Value, sizes: InputSizes = _UNKNOWN) -> ValueReport:
    kind = value.kind.name.lower()
    if value.tensor is None:
        return ValueReport(kind)
    return ValueReport(
        kind=kind,
        dtype=value.tensor.scalar_type.dtype_name,
        sizes=value.tensor.sizes,
        dynamic=value.tensor.dynamism is not Dynamism.STATIC,
        min_sizes=sizes.min_sizes,
        max_sizes=sizes.max_sizes,
        symbols=sizes.symbols,
    )


def _state(context: SharedContext, index: int, recorded: bool) -> StateReport:
    buffer = context.buffers[index]
    users = {
        entry.name: use.access
        for entry in context.entry_points
        for use in entry.buffers
        if use.buffer == index
    }
    return StateReport(
        fqn=buffer.fqn,
        dtype=buffer.scalar_type.dtype_name,
        sizes=buffer.sizes,
        mem_id=buffer.mem_id,
        offset=buffer.offset,
        nbytes=buffer.nbytes,
        readers=tuple(n for n, access in users.items() if access != Access.WRITE),
        writers=tuple(n for n, access in users.items() if access != Access.READ),
        aliases=buffer.aliases,
        dim_order=buffer.dim_order,
        initial_value=buffer.initial_value.name.lower() if recorded else None,
        group=buffer.group,
    )


def _weight(context: SharedContext, index: int) -> WeightReport:
    weight = context.weights[index]
    users = {context.delegates[i].entry_point for i in weight.delegates}
    return WeightReport(
        identity=weight.identity,
        digest=weight.digest.hex(),
        nbytes=weight.nbytes,
        dtype=weight.scalar_type.dtype_name,
        sizes=weight.sizes,
        fqns=weight.fqns,
        keys=weight.keys,
        quantization=weight.quantization,
        delegates=weight.delegates,
        entry_points=tuple(
            context.entry_points[i].name
            for i in sorted(users.union(weight.entry_points))
        ),
    )
