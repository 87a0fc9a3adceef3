"""Tensors on their way in and out: numpy and torch, without importing torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np

from ..errors import InputError, RuntimeFailure, StateMismatchError

#: What tensors come back as; None decides by call.
Framework: TypeAlias = Literal["numpy", "torch"] | None

#: numpy's view of a bfloat16 tensor's bits, and the name of what they are.
_Bits: TypeAlias = tuple["np.ndarray[Any, Any]", str]

_BFLOAT16 = "bfloat16"


def check_framework(framework: Framework) -> None:
    if framework not in (None, "numpy", "torch"):
        raise InputError(f"tensors is {framework!r}, expected 'numpy', 'torch' or None")
    if framework == "torch":
        importlib.import_module("torch")


def imported_torch() -> Any:  # noqa: ANN401
    """Return torch if somebody has imported it, otherwise None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


def wants_torch(framework: Framework, values: Iterable[object]) -> bool:
    """Decide what the tensors of one call come back as.

    Args:
        values: The call's inputs for tensors.
    """
    if framework is not None:
        return framework == "torch"
    torch = imported_torch()
    if torch is None:
        return False
    has_values = False
    for value in values:
        if isinstance(value, torch.Tensor):
            return True
        has_values = True
    return not has_values


def exchangeable(value: object, label: str) -> object:
    """Return what the native module takes in place of ``value``."""
    if isinstance(value, np.ndarray):
        # ml_dtypes registers its types as void; asking for names is slow.
        if not value.dtype.isnative:
            raise InputError(f"{label} is not in this machine's byte order")
        if type(value) is not np.ndarray and _is_masked(value):
            raise InputError(
                f"{label} is a masked array, whose mask programs do not see; call its"
                " filled()"
            )
        if value.dtype.kind == "V" and value.dtype.name == _BFLOAT16:
            return value.view(np.uint16), _BFLOAT16
        return value
    if isinstance(value, tuple):  # the native module takes pairs for bits
        raise InputError(f"{label} is of type 'tuple', expected a tensor")
    torch = imported_torch()
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    tensor: Any = value
    if not tensor.is_cpu:
        remedy = "has no data" if tensor.is_meta else "call its cpu()"
        raise InputError(
            f"{label} is on device '{tensor.device}', expected a tensor on the CPU;"
            f" {remedy}"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or _is_fake(tensor):
        raise InputError(f"{label} is not a plain dense tensor with data")
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.requires_grad:
        tensor = tensor.detach()
    # DLPack would hand over the bits without the pending negation.
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _is_masked(value: object) -> bool:
    module = sys.modules.get("numpy.ma")  # numpy imports it when it is first used
    return module is not None and isinstance(value, module.MaskedArray)


def _is_fake(tensor: object) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def copied_array(value: object, label: str) -> tuple[np.ndarray[Any, Any], str]:
    """Copy a tensor into an array; return it, or bits, with the dtype's name.

    Raises:
        StateMismatchError: if ``value`` is no tensor that can be copied.
    """
    try:
        given: Any = exchangeable(value, label)
        if isinstance(given, tuple):
            return np.array(given[0]), given[1]
        torch = imported_torch()
        if torch is not None and isinstance(given, torch.Tensor):
            if given.dtype is torch.bfloat16:
                bits = given.contiguous().view(torch.uint16)
                return np.array(bits.numpy()), _BFLOAT16
            given = given.numpy()
        array = np.array(given)
        return array, array.dtype.name
    except (InputError, TypeError, ValueError, RuntimeError) as error:
        raise StateMismatchError(f"{label} cannot be taken: {error}") from error


def check_numpy_knows(dtypes: Iterable[str], label: str) -> None:
    if _BFLOAT16 in dtypes and _bfloat16() is None:
        raise RuntimeFailure(
            f"{label} is bfloat16, which numpy lacks; install ml_dtypes, or "
            "load(..., tensors='torch')"
        )


def from_native(value: object, dtype: str, as_torch: bool) -> object:
    """Give numpy's bfloat16 tensors, which arrive as bits, their dtype."""
    bfloat16 = None if as_torch or dtype != _BFLOAT16 else _bfloat16()
    if bfloat16 is not None and isinstance(value, np.ndarray):
        return value.view(bfloat16)
    return value


def as_bits(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any] | _Bits:
    return (array.view(np.uint16), dtype) if dtype == _BFLOAT16 else array


def _bfloat16() -> np.dtype[Any] | None:
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        return None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype
