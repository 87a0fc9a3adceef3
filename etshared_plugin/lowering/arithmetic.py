"""Arithmetic of single elements."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ProxyValue

from .kernel_rewrite import INTEGERS, Call, Rewrite, of

_aten = exir_ops.edge.aten

_ROOTS = {0.5: _aten.sqrt.default, -0.5: _aten.rsqrt.default}


def _sign(call: Call, x: ProxyValue) -> Any:  # noqa: ANN401
    """Make the sign of NaN 0."""
    zero = call(_aten.full.default, [], 0, dtype=x.data.dtype)
    nan = call(_aten.isnan.default, x)
    return call(_aten.where.self, nan, zero, call(_aten.sign.default, x))


def _power(call: Call, x: ProxyValue, exponent: float) -> Any:  # noqa: ANN401
    """Take roots, and multiply integers, which wrap around.

    C's ``pow`` has a root of negative infinity, and the kernel computes integers in
    float64.
    """
    if x.data.is_floating_point():
        return call(_ROOTS[exponent], x)
    if exponent == 1:
        return _whole(call, x)
    result = None
    while exponent:
        if exponent % 2:
            result = x if result is None else call(_aten.mul.Tensor, result, x)
        exponent //= 2
        if exponent:
            x = call(_aten.mul.Tensor, x, x)
    return result


def _whole(call: Call, x: ProxyValue) -> Any:  # noqa: ANN401
    """Leave integers, which the kernel turns into float64 and back."""
    return call(_aten.clone.default, x)


def _remainder(call: Call, x: ProxyValue, divisor: Any) -> Any:  # noqa: ANN401
    """Correct C's remainder, in float64; the kernel uses float32."""
    is_tensor = isinstance(divisor, ProxyValue)
    fmod = _aten.fmod.Tensor if is_tensor else _aten.fmod.Scalar
    rest = call(fmod, x, divisor)
    add = _aten.add.Tensor if is_tensor else _aten.add.Scalar
    differs = _differs_in_sign(call, rest, divisor)
    return call(_aten.where.self, differs, call(add, rest, divisor), rest)


def _differs_in_sign(call: Call, rest: ProxyValue, divisor: Any) -> Any:  # noqa: ANN401
    """Tell where a remainder is not 0 and has not the sign of the divisor."""
    if not isinstance(divisor, ProxyValue):
        return call((_aten.gt if divisor < 0 else _aten.lt).Scalar, rest, 0)
    lower, upper = (call(_aten.lt.Scalar, one, 0) for one in (rest, divisor))
    differs = call(_aten.logical_xor.default, lower, upper)
    return call(_aten.logical_and.default, differs, call(_aten.ne.Scalar, rest, 0))


def _as_int64(call: Call, value: Any) -> Any:  # noqa: ANN401
    if not isinstance(value, ProxyValue) or value.data.dtype is torch.int64:
        return value
    return call(_aten._to_copy.default, value, dtype=torch.int64)


def _quotient(
    call: Call,
    x: ProxyValue,
    divisor: Any,  # noqa: ANN401
    *,
    rounding_mode: str | None = None,
) -> Any:  # noqa: ANN401
    """Divide int64 towards zero; the kernel computes in float64."""
    if rounding_mode != "trunc":
        return None
    x = _as_int64(call, x)
    divisor = _as_int64(call, divisor)
    is_tensor = isinstance(divisor, ProxyValue)
    divide = _aten.div.Tensor_mode if is_tensor else _aten.div.Scalar_mode
    low = call(divide, x, divisor, rounding_mode="floor")
    multiply = _aten.mul.Tensor if is_tensor else _aten.mul.Scalar
    rest = call(_aten.sub.Tensor, x, call(multiply, low, divisor))
    # The rest has the divisor's sign: it is one too low where the dividend's differs.
    lower = call(_aten.lt.Scalar, x, 0)
    has_rest = call(_aten.ne.Scalar, rest, 0)
    if is_tensor:
        differs = call(
            _aten.logical_xor.default, lower, call(_aten.lt.Scalar, divisor, 0)
        )
    elif divisor < 0:
        differs = call(_aten.logical_not.default, lower)
    else:
        differs = lower
    one_more = call(_aten.logical_and.default, has_rest, differs)
    return call(_aten.add.Tensor, low, one_more)


def _fmod(call: Call, x: ProxyValue, divisor: Any) -> Any:  # noqa: ANN401
    """Take what division towards zero leaves; the kernel computes in float64."""
    x, divisor = _as_int64(call, x), _as_int64(call, divisor)
    quotient = _quotient(call, x, divisor, rounding_mode="trunc")
    multiply = _aten.mul.Tensor
    if not isinstance(divisor, ProxyValue):
        multiply = _aten.mul.Scalar
    return call(_aten.sub.Tensor, x, call(multiply, quotient, divisor))


def _is_unlike_c(result: torch.Tensor, x: torch.Tensor, exponent: float) -> bool:
    if x.is_floating_point():
        # Eager computes float16 with C's pow too.
        return exponent in _ROOTS and x.dtype is not torch.float16
    return x.dtype in INTEGERS and isinstance(exponent, int) and exponent > 0


#: By operator.
ARITHMETIC: dict[object, Rewrite] = {
    _aten.ceil.default: Rewrite(of(*INTEGERS), _whole),
    _aten.div.Scalar_mode: Rewrite(of(torch.int64), _quotient),
    _aten.div.Tensor_mode: Rewrite(of(torch.int64), _quotient),
    _aten.floor.default: Rewrite(of(*INTEGERS), _whole),
    _aten.fmod.Scalar: Rewrite(of(torch.int64), _fmod),
    _aten.fmod.Tensor: Rewrite(of(torch.int64), _fmod),
    _aten.pow.Tensor_Scalar: Rewrite(_is_unlike_c, _power),
    _aten.remainder.Scalar: Rewrite(of(torch.float64), _remainder),
    _aten.remainder.Tensor: Rewrite(of(torch.float64), _remainder),
    _aten.sign.default: Rewrite(lambda result, x: result.is_floating_point(), _sign),
    _aten.trunc.default: Rewrite(of(*INTEGERS), _whole),
}
