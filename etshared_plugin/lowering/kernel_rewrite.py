"""How to put an operator whose kernel does not do as eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ProxyValue

_aten = exir_ops.edge.aten

HALF = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

#: Appends an operator to the graph, given its arguments, and returns its result.
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """How to put an operator otherwise.

    ``when`` tells, from the (first) result and the arguments as the graph has them,
    with tensors for nodes, whether to do so. ``make`` is given a ``Call`` and the
    arguments, and returns the result, or None where the operator is right after all.
    """

    when: Callable[..., bool]
    make: Callable[..., Any]


def of(*dtypes: torch.dtype) -> Callable[..., bool]:
    """Return a ``when`` for results of these dtypes."""
    return lambda result, *args: result.dtype in dtypes


def cast(call: Call, value: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401
    if not isinstance(value, ProxyValue) or not value.is_tensor():
        return value
    if value.data.dtype is dtype or not value.data.dtype.is_floating_point:
        return value
    return call(_aten._to_copy.default, value, dtype=dtype)


def in_float32(target: Any) -> Rewrite:  # noqa: ANN401
    """Compute in float32 what the kernel adds up in float16 or bfloat16."""

    def make(call: Call, x: ProxyValue, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        dtype = x.data.dtype
        wide = [cast(call, value, torch.float32) for value in (x, *args)]
        result = call(target, *wide, **kwargs)
        if not isinstance(result.data, list | tuple):
            return cast(call, result, dtype)
        results = [call(operator.getitem, result, i) for i in range(len(result.data))]
        return tuple(cast(call, one, dtype) for one in results)

    return Rewrite(of(*HALF), make)
