"""Operators whose kernels in ExecuTorch 1.5.1 give other results than eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _remainder(dividend: Any, divisor: Any) -> Any:  # noqa: ANN401
    """Take the sign of the divisor, as Python does; the kernel's is that of C."""
    if _is_floating(dividend) or _is_floating(divisor):
        return NotImplemented
    return dividend - torch.div(dividend, divisor, rounding_mode="floor") * divisor


def _is_floating(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point()
    return isinstance(value, float | torch.SymFloat)


#: For ``ExportedProgram.run_decompositions``.
FAITHFUL_DECOMPOSITIONS: dict[torch._ops.OperatorBase, Callable[..., Any]] = {
    torch.ops.aten.remainder.Scalar: _remainder,
    torch.ops.aten.remainder.Tensor: _remainder,
}
