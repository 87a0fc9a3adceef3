"""Operators that ExecuTorch 1.5.1 has no kernel for, or one unlike eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


def _remainder(dividend: Any, divisor: Any) -> Any:  # noqa: ANN401
    """Take the sign of the divisor, as Python does; the kernel's is that of C."""
    dtype = torch.result_type(dividend, divisor)
    if not isinstance(dividend, torch.Tensor):
        return torch.remainder(torch.full((), dividend, dtype=dtype), divisor)
    if dtype.is_floating_point:
        return NotImplemented
    dividend = dividend.to(dtype)
    return dividend - torch.div(dividend, divisor, rounding_mode="floor") * divisor


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:  # noqa: ANN401
    """Normalize with the statistics of a batch, and return the running ones anew."""
    if not training:
        return NotImplemented
    normalize = torch.ops.aten._native_batch_norm_legit.no_stats
    results = normalize(x, weight, bias, True, momentum, eps)
    dims = [0, *range(2, x.dim())]
    kept = 1 - momentum
    return (
        *results,
        mean * kept + x.mean(dims) * momentum,
        variance * kept + x.var(dims, correction=1) * momentum,
    )


def _gelu(x: torch.Tensor, *, approximate: str = "none") -> Any:  # noqa: ANN401
    """Approximate where eager does; XNNPACK computes the exact function always."""
    if approximate != "tanh":
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)


def _pad(
    x: torch.Tensor,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Any:  # noqa: ANN401
    """Cut what negative widths take away; the kernel only adds."""
    is_cut = any(isinstance(width, int) and width < 0 for width in pad)
    if mode != "constant" or not is_cut:
        return NotImplemented
    for i in range(len(pad) // 2):
        before, after = (max(0, -width) for width in pad[2 * i : 2 * i + 2])
        dim = x.dim() - 1 - i
        x = torch.ops.aten.slice.Tensor(x, dim, before, x.shape[dim] - after)
    widths = [max(0, width) for width in pad]
    return torch.ops.aten.constant_pad_nd.default(x, widths, value or 0)


def _constant_pad(
    x: torch.Tensor, pad: Sequence[int], value: float | None = None
) -> Any:  # noqa: ANN401
    return _pad(x, pad, value=value)


def _with_mean(spread: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Compute the mean apart; there is no kernel for both."""

    def compute(
        x: torch.Tensor,
        dim: Any = None,  # noqa: ANN401
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        correction = int(unbiased) if correction is None else correction
        return (
            spread(x, dim, correction=correction, keepdim=keepdim),
            torch.mean(x, dim, keepdim=keepdim),
        )

    return compute


def _diagonal_scatter(
    x: torch.Tensor,
    diagonal: torch.Tensor,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> torch.Tensor:
    """Write by indices; ExecuTorch has no operator for it."""
    matrices = x.movedim((dim1, dim2), (0, 1))
    steps = torch.arange(diagonal.shape[-1], device=x.device)
    places = (steps + max(-offset, 0), steps + max(offset, 0))
    values = diagonal.movedim(-1, 0)
    return matrices.index_put(places, values).movedim((0, 1), (dim1, dim2))


def _as_strided_scatter(
    x: torch.Tensor,
    values: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Any:  # noqa: ANN401
    """Write by indices into all elements in a row, if they lie so."""
    if not x.is_contiguous() or x.dim() == 0:
        return NotImplemented
    places = torch.full([], storage_offset or 0, dtype=torch.int64, device=x.device)
    for length, step in zip(size, stride, strict=True):
        places = places[..., None] + torch.arange(length, device=x.device) * step
    flat = x.reshape(-1).index_put((places.reshape(-1),), values.reshape(-1))
    return flat.reshape(x.shape)


def _lerp(start: torch.Tensor, end: torch.Tensor, weight: Any) -> Any:  # noqa: ANN401
    """Keep to the layouts that programs have; torch's own gives eager's strides."""
    dtype = start.dtype
    if dtype in (torch.float16, torch.bfloat16):
        start, end = start.float(), end.float()
        weight = weight.float() if isinstance(weight, torch.Tensor) else weight
    way = end - start
    from_start, from_end = start + way * weight, end - way * (1 - weight)
    if isinstance(weight, torch.Tensor):
        return torch.where(weight.abs() < 0.5, from_start, from_end).to(dtype)
    return (from_start if abs(weight) < 0.5 else from_end).to(dtype)


def _index_fill(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    value: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Keep to the layouts that programs have, as `_lerp` does."""
    if x.dim() == 0:
        return NotImplemented
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    places = [*[None] * (dim % x.dim()), index]
    return torch.ops.aten.index_put.default(x, places, value.to(x.dtype))


def _shifted_left(x: torch.Tensor, places: int) -> Any:  # noqa: ANN401
    """Multiply, which wraps around alike; there is no kernel that shifts."""
    limits = torch.iinfo(x.dtype)
    if places < 0 or places >= limits.bits:
        return torch.zeros_like(x)
    factor = 1 << places
    return x * (factor if factor <= limits.max else factor - (1 << limits.bits))


def _shifted_right(x: torch.Tensor, places: int) -> Any:  # noqa: ANN401
    """Divide, rounding down."""
    limits = torch.iinfo(x.dtype)
    divisor = 1 << places if 0 <= places < limits.bits else limits.max + 1
    if divisor > limits.max:
        return -(x < 0).to(x.dtype) if limits.min else torch.zeros_like(x)
    return torch.div(x, divisor, rounding_mode="floor")


#: For ``ExportedProgram.run_decompositions``.
FAITHFUL_DECOMPOSITIONS: dict[torch._ops.OperatorBase, Callable[..., Any]] = {
    torch.ops.aten.as_strided_scatter.default: _as_strided_scatter,
    torch.ops.aten.diagonal_scatter.default: _diagonal_scatter,
    torch.ops.aten.constant_pad_nd.default: _constant_pad,
    torch.ops.aten.gelu.default: _gelu,
    torch.ops.aten.index_fill.int_Scalar: _index_fill,
    torch.ops.aten.index_fill.int_Tensor: _index_fill,
    torch.ops.aten.lerp.Scalar: _lerp,
    torch.ops.aten.lerp.Tensor: _lerp,
    torch.ops.aten.pad.default: _pad,
    torch.ops.aten.remainder.Scalar: _remainder,
    torch.ops.aten.remainder.Scalar_Tensor: _remainder,
    torch.ops.aten.remainder.Tensor: _remainder,
    torch.ops.aten.__lshift__.Scalar: _shifted_left,
    torch.ops.aten.__rshift__.Scalar: _shifted_right,
    torch.ops.aten.bitwise_left_shift.Tensor_Scalar: _shifted_left,
    torch.ops.aten.bitwise_right_shift.Tensor_Scalar: _shifted_right,
    torch.ops.aten.std_mean.correction: _with_mean(torch.std),
    torch.ops.aten.std_mean.dim: _with_mean(torch.std),
    torch.ops.aten.var_mean.correction: _with_mean(torch.var),
    torch.ops.aten.var_mean.dim: _with_mean(torch.var),
    torch.ops.aten._native_batch_norm_legit_functional.default: _batch_norm,
}
