"""Python numbers among tensors, typed as eager types them."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.pass_base import ProxyValue, map_args
from executorch.exir.passes import ScalarToTensorPass
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten

_NUMBERS = (bool, int, float)
_SYMBOLS = (torch.SymBool, torch.SymInt, torch.SymFloat)
_HALF = (torch.float16, torch.bfloat16)

#: Eager computes these in float32 where tensors are half as wide.
_WIDENED = frozenset(
    {_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor}
)

#: Eager gives the number the half-wide type of the tensor here; 1.5.1's kernels do not.
_ROUNDED = {
    operator.Scalar: operator.Tensor
    for operator in (
        *(_aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge),
        *(_aten.fmod, _aten.remainder),
    )
}


class TypedScalarsPass(ScalarToTensorPass):  # type: ignore[misc]
    """Makes tensors of numbers without a change of what operators compute.

    A number in the place of a tensor has no dtype that counts: ``x * 0.1`` has the
    dtype of ``x``. 1.5.1 makes a float32 or int64 tensor of it, which turns another
    dtype of a 0-dim ``x`` into its own, and rounds where ``x`` is float64.
    """

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:  # noqa: ANN401
        numbers: list[Any] = []
        tensors: list[torch.Tensor] = []

        def collect(value: Any, argument: Any) -> Any:  # noqa: ANN401
            if isinstance(argument.type, torch.TensorType):
                data = value.data if isinstance(value, ProxyValue) else value
                if isinstance(data, _NUMBERS + _SYMBOLS):
                    numbers.append(data)
                elif isinstance(data, torch.Tensor):
                    tensors.append(data)
            return value

        map_args(op, collect, args, kwargs)
        if op in _ROUNDED and tensors[0].dtype in _HALF:
            dtype = tensors[0].dtype
            if isinstance(args[1], ProxyValue):
                number = self.call_operator(
                    _aten.scalar_tensor.default, (args[1],), {"dtype": dtype}, meta
                )
                return super().call_operator(
                    _ROUNDED[op], (args[0], number), kwargs, meta
                )
            args = (args[0], _rounded(args[1], dtype))
        if not numbers or not tensors:
            return super().call_operator(op, args, kwargs, meta)
        _, dtype = elementwise_dtypes(
            *tensors,
            *numbers,
            type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH,
        )
        is_scalar = all(tensor.dim() == 0 for tensor in tensors)
        wide = op in _WIDENED and any(
            _is_lost(number, dtype, exact=is_scalar) for number in numbers
        )

        def cast(value: Any, to: torch.dtype) -> Any:  # noqa: ANN401
            return self.call_operator(
                _aten._to_copy.default, (value,), {"dtype": to}, meta
            )

        def to_tensor(value: Any, argument: Any) -> Any:  # noqa: ANN401
            if not isinstance(argument.type, torch.TensorType):
                return value
            to = torch.float32 if wide else dtype
            data = value.data if isinstance(value, ProxyValue) else value
            if isinstance(data, _NUMBERS):
                self._modified = True
                with _disable_current_modes():
                    # Integers wrap around, which torch.tensor would refuse.
                    exact = torch.float64 if isinstance(data, float) else None
                    return torch.tensor(data, dtype=exact).to(to)
            if isinstance(data, _SYMBOLS):
                self._modified = True
                target = _aten.scalar_tensor.default
                return self.call_operator(target, (value,), {"dtype": to}, meta)
            return cast(value, to) if wide else value

        args, kwargs = map_args(op, to_tensor, args, kwargs)
        result = super().call_operator(op, args, kwargs, meta)
        return cast(result, dtype) if wide else result


def _is_lost(number: Any, dtype: torch.dtype, *, exact: bool) -> bool:  # noqa: ANN401
    """Tell whether a half-wide type has no number that is, or is close to, this one.

    Wider vectors cost time, so that the last digit has to do for them.
    """
    if dtype not in _HALF or not isinstance(number, float | int) or number == 0:
        return False
    if exact:
        return bool(_rounded(float(number), dtype) != number)
    limits = torch.finfo(dtype)
    return not limits.tiny <= abs(number) <= limits.max


def _rounded(number: float, dtype: torch.dtype) -> float:
    with _disable_current_modes():
        return float(torch.tensor(number, dtype=dtype).item())
