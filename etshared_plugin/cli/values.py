"""Short descriptions of what entry points return and of state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

#: Values that have at most this many elements are shown in full.
_SHOWN_IN_TABLES = 4
_SHOWN_IN_JSON = 16


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield what a result holds, each with the Python index that leads to it."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from leaves(child, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}[{index}]")
    elif value is not None or path:
        yield path, value


def tensor_text(dtype: str, sizes: Iterable[int | str]) -> str:
    return f"{dtype} [{','.join(map(str, sizes))}]"


def type_text(value: object) -> str:
    if isinstance(value, np.ndarray):
        return tensor_text(str(value.dtype), value.shape)
    return type(value).__name__


def values_text(value: object) -> str:
    """Return the values themselves if they are few, else their range and mean."""
    if not isinstance(value, np.ndarray):
        return str(value)
    if value.size <= _SHOWN_IN_TABLES:
        return " ".join(map(_number_text, _numbers(value))) or "empty"
    low, high, mean = _range_and_mean(value)
    if low == high:
        return f"all {_number_text(_numbers(value.ravel()[:1])[0])}"
    return f"{low:.4g} to {high:.4g}, mean {mean:.4g}"


def as_json(value: object) -> dict[str, object]:
    if not isinstance(value, np.ndarray):
        return {"type": type_text(value), "value": _json_number(value)}
    low, high, mean = _range_and_mean(value) if value.size else (None, None, None)
    report: dict[str, object] = {
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        "minimum": _json_number(low),
        "maximum": _json_number(high),
        "mean": _json_number(mean),
    }
    if value.size <= _SHOWN_IN_JSON:
        report["values"] = [_json_number(item) for item in _numbers(value)]
    return report


def _numbers(array: np.ndarray) -> list[float]:
    return [
        int(item) if array.dtype.kind in "iub" else float(item) for item in array.flat
    ]


def _number_text(item: float) -> str:
    return str(item) if isinstance(item, int) else f"{item:.6g}"


def _range_and_mean(array: np.ndarray) -> tuple[float, float, float]:
    wide = array.astype(np.float64)
    # A mean of infinities of both signs is NaN, which is the right thing to show.
    with np.errstate(invalid="ignore"):
        return float(wide.min()), float(wide.max()), float(wide.mean())


def _json_number(value: object) -> object:
    """Return what JSON can hold; it has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
