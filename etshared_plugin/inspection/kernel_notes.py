"""Kernels of ExecuTorch 1.5.1 that do not as eager, where nothing can be done."""

from __future__ import annotations

from collections.abc import Iterator

from ..context.scalar_type import ScalarType
from ..pte import PteFile
from ..pte.execution_plan import ExecutionPlan, Instruction, InstructionKind
from .findings import Finding, Severity

_INTEGERS = frozenset(
    {
        ScalarType.LONG,
        ScalarType.INT,
        ScalarType.SHORT,
        ScalarType.CHAR,
        ScalarType.BYTE,
    }
)
_POWERS = "computes in float64: powers beyond 2**53 or the dtype are others in eager"

#: By operator: the dtypes of results that differ, None for all, and how they do.
_UNLIKE_EAGER: dict[str, tuple[frozenset[ScalarType] | None, str]] = {
    "aten::_adaptive_avg_pool2d.out": (
        frozenset({ScalarType.DOUBLE}),
        "adds float64 up in float32",
    ),
    "aten::max_pool2d_with_indices.out": (None, "leaves NaN out, which eager keeps"),
    "aten::pow.Scalar_out": (_INTEGERS, _POWERS),
    "aten::pow.Tensor_Tensor_out": (_INTEGERS, _POWERS),
}


def kernel_notes(program: PteFile) -> Iterator[Finding]:
    """Yield a note for each operator of each entry point that differs from eager."""
    for plan in program.plans.values():
        operators = {
            plan.operators[step.target]
            for step in plan.instructions
            if step.kind is InstructionKind.KERNEL and _is_unlike_eager(plan, step)
        }
        for operator in sorted(operators):
            _, difference = _UNLIKE_EAGER[operator]
            message = f"kernel '{operator}' {difference}"
            place = f"entry point '{plan.name}'"
            yield Finding(Severity.NOTE, "unlike-eager", message, place)


def _is_unlike_eager(plan: ExecutionPlan, step: Instruction) -> bool:
    dtypes, _ = _UNLIKE_EAGER.get(plan.operators[step.target], (frozenset(), ""))
    result = plan.values[step.arguments[-1]].tensor if step.arguments else None
    return dtypes is None or (result is not None and result.scalar_type in dtypes)
