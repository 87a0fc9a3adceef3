"""Sums and what is made of them: products of matrices, norms, extremes."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ProxyValue

from .kernel_rewrite import HALF, Call, Rewrite, cast, in_float32, of

_aten = exir_ops.edge.aten


def _addmm(
    call: Call,
    bias: ProxyValue,
    x: ProxyValue,
    weight: ProxyValue,
    **factors: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Add the bias to a product, whose kernel adds up in float32."""
    if any(factor != 1 for factor in factors.values()):
        return in_float32(_aten.addmm.default).make(call, bias, x, weight, **factors)
    return call(_aten.add.Tensor, call(_aten.mm.default, x, weight), bias)


def _cumsum(
    call: Call, x: ProxyValue, dim: int, *, dtype: torch.dtype | None = None
) -> Any:  # noqa: ANN401
    to = dtype or (x.data.dtype if x.data.is_floating_point() else torch.int64)
    if not x.data.dim():
        return call(_aten._to_copy.default, x, dtype=to)
    if x.data.dtype is not to:
        x = call(_aten._to_copy.default, x, dtype=to)
    wide = call(_aten.cumsum.default, cast(call, x, torch.float32), dim)
    return cast(call, wide, to)


def _sum(
    call: Call,
    x: ProxyValue,
    dims: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:  # noqa: ANN401
    """Sum over two dimensions, one of size 1: over one the kernel uses float32.

    A dimension of a 0-dim tensor ends the process.
    """
    if not dims:
        return None
    if not x.data.dim():
        return call(_aten.sum.dim_IntList, x, [], keepdim, dtype=dtype)
    if len(dims) != 1:
        return None
    axis = dims[0] % x.data.dim()
    wide = call(_aten.unsqueeze_copy.default, x, axis)
    result = call(_aten.sum.dim_IntList, wide, [axis, axis + 1])
    return call(_aten.unsqueeze_copy.default, result, axis) if keepdim else result


def _log_softmax(call: Call, x: ProxyValue, dim: int, half_to_float: bool) -> Any:  # noqa: ANN401
    """Put a kernel that takes no float64 as its definition."""
    if not x.data.dim():
        return call(_aten.sub.Tensor, x, x)
    below = call(_aten.sub.Tensor, x, call(_aten.amax.default, x, [dim], True))
    total = _sum(call, call(_aten.exp.default, below), [dim], True)
    return call(_aten.sub.Tensor, below, call(_aten.log.default, total))


def _normalized(
    call: Call,
    x: ProxyValue,
    dims: list[int],
    eps: float,
) -> tuple[Any, Any, Any]:
    """Normalize float64 over ``dims``; the kernels use float32."""
    mean = call(_aten.mean.dim, x, dims, True)
    centred = call(_aten.sub.Tensor, x, mean)
    variance = call(
        _aten.mean.dim, call(_aten.mul.Tensor, centred, centred), dims, True
    )
    rstd = call(_aten.rsqrt.default, call(_aten.add.Scalar, variance, eps))
    return call(_aten.mul.Tensor, centred, rstd), mean, rstd


def _affine(call: Call, y: Any, weight: Any, bias: Any) -> Any:  # noqa: ANN401
    if weight is not None:
        y = call(_aten.mul.Tensor, y, weight)
    return y if bias is None else call(_aten.add.Tensor, y, bias)


def _layer_norm(
    call: Call,
    x: ProxyValue,
    shape: list[int],
    weight: ProxyValue | None,
    bias: ProxyValue | None,
    eps: float,
) -> Any:  # noqa: ANN401
    if x.data.dtype in HALF:
        kernel = _aten.native_layer_norm.default
        return in_float32(kernel).make(call, x, shape, weight, bias, eps)
    dims = [-1 - i for i in range(len(shape))]
    y, mean, rstd = _normalized(call, x, dims, eps)
    return _affine(call, y, weight, bias), mean, rstd


def _group_norm(
    call: Call,
    x: ProxyValue,
    weight: ProxyValue | None,
    bias: ProxyValue | None,
    n: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> Any:  # noqa: ANN401
    view = _aten.view_copy.default
    shape = list(x.data.shape)
    if not all(isinstance(size, int) for size in (*shape, n, area)):
        return None
    rows = call(view, x, [n, groups, channels // groups * area])
    y, mean, rstd = _normalized(call, rows, [2], eps)
    sizes = [1, channels, *[1] * (len(shape) - 2)]
    weight, bias = (
        None if one is None else call(view, one, sizes) for one in (weight, bias)
    )
    mean, rstd = (call(view, one, [n, groups]) for one in (mean, rstd))
    return _affine(call, call(view, y, shape), weight, bias), mean, rstd


def _extreme(
    call: Call, x: ProxyValue, dims: list[int] | None = None, keepdim: bool = False
) -> Any:  # noqa: ANN401
    """Leave alone what is empty, which ends the process."""
    return call(_aten.sum.dim_IntList, x, dims, keepdim, dtype=x.data.dtype)


def _product(call: Call, x: ProxyValue, y: ProxyValue) -> Any:  # noqa: ANN401
    """Write zeros where there is nothing to add up; the kernel writes nothing."""
    sizes = [*x.data.shape[:-1], y.data.shape[-1]]
    return call(_aten.full.default, sizes, 0, dtype=x.data.dtype)


def _is_empty(result: torch.Tensor, x: torch.Tensor, *_: Any) -> bool:  # noqa: ANN401
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def _is_single_sum(result: torch.Tensor, x: torch.Tensor, *_: Any) -> bool:  # noqa: ANN401
    is_exact = x.dtype is result.dtype and x.dtype in _EXACT
    return is_exact or not x.dim()


#: What float32 does not hold the sums of.
_EXACT = {
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
}

#: By operator.
SUMS: dict[object, Rewrite] = {
    _aten._log_softmax.default: Rewrite(of(torch.float64), _log_softmax),
    _aten.addmm.default: Rewrite(of(*HALF), _addmm),
    _aten.amax.default: Rewrite(_is_empty, _extreme),
    _aten.amin.default: Rewrite(_is_empty, _extreme),
    _aten.avg_pool2d.default: in_float32(_aten.avg_pool2d.default),
    _aten.bmm.default: Rewrite(_is_empty, _product),
    _aten.convolution.default: in_float32(_aten.convolution.default),
    _aten.cumsum.default: Rewrite(
        lambda result, x, *_: result.dtype in HALF or not x.dim(), _cumsum
    ),
    _aten.mm.default: Rewrite(_is_empty, _product),
    _aten.native_group_norm.default: Rewrite(of(torch.float64), _group_norm),
    _aten.native_layer_norm.default: Rewrite(of(*HALF, torch.float64), _layer_norm),
    _aten.scatter_add.default: in_float32(_aten.scatter_add.default),
    _aten.sum.dim_IntList: Rewrite(_is_single_sum, _sum),
    _aten.var.correction: in_float32(_aten.var.correction),
}
