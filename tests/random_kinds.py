"""Dtypes and shapes of the values of random models, and conversions in code."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

FLOATS = (torch.float32, torch.float64, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

#: What n may be.
MAX_SIZE = 4

#: A size, or "n" for the one that is open.
Size = int | str


@dataclass(frozen=True)
class Kind:
    """Dtype and shape of a value."""

    dtype: torch.dtype
    shape: tuple[Size, ...]

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point

    @property
    def is_bool(self) -> bool:
        return self.dtype == torch.bool

    @property
    def is_integer(self) -> bool:
        return not self.is_float and not self.is_bool

    @property
    def is_dynamic(self) -> bool:
        return "n" in self.shape

    @property
    def numel(self) -> int:
        return math.prod(self.sizes(1))

    def sizes(self, n: int) -> tuple[int, ...]:
        return tuple(n if isinstance(s, str) else s for s in self.shape)

    def of(self, dtype: torch.dtype) -> Kind:
        return Kind(dtype, self.shape)

    def shaped(self, *shape: Size) -> Kind:
        return Kind(self.dtype, shape)

    def with_size(self, n: int) -> Kind:
        return Kind(self.dtype, self.sizes(n))

    def random(self, generator: torch.Generator, n: int) -> torch.Tensor:
        """Make a value: floats in [-1, 1], integers from -4 to 6 or 0 to 6."""
        sizes = self.sizes(n)
        if self.is_float:
            unit = torch.rand(sizes, generator=generator, dtype=torch.float64)
            return (2 * unit - 1).to(self.dtype)
        if self.is_bool:
            return torch.randint(0, 2, sizes, generator=generator).bool()
        least = 0 if self.dtype == torch.uint8 else -4
        return torch.randint(least, 7, sizes, generator=generator, dtype=self.dtype)


def shape_code(shape: tuple[Size, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


@dataclass(frozen=True)
class Value:
    """An expression. ``is_fresh`` if nothing else has its memory."""

    code: str
    kind: Kind
    is_fresh: bool = True


def fitted(value: Value, kind: Kind) -> Value:
    """Convert a value to another dtype and shape."""
    return _shaped(_converted(value, kind.dtype), kind.shape)


def _converted(value: Value, dtype: torch.dtype) -> Value:
    code, old = value.code, value.kind
    if old.dtype == dtype:
        return value
    new = old.of(dtype)
    if new.is_bool:
        # Odd thresholds: rounding must not decide.
        code = f"({code} > {0.317 if old.is_float else 1})"
    elif new.is_float and old.is_integer:
        code = f"({code}.to({dtype}) * 0.25)"
    elif old.is_float and not new.is_float:
        code = f"({code} > 0.317).to({dtype})"
    elif dtype == torch.uint8 and not old.is_bool:
        code = f"{code}.clamp(0, 9).to({dtype})"
    else:
        code = f"{code}.to({dtype})"
    return Value(code, new)


def _shaped(value: Value, shape: tuple[Size, ...]) -> Value:
    code, kind = value.code, value.kind
    if kind.shape == shape:
        return value
    new = Kind(kind.dtype, shape)
    if not kind.is_dynamic and not new.is_dynamic and kind.numel == new.numel:
        return Value(f"{code}.reshape({shape_code(shape)})", new, False)
    if kind.shape[:1] == (MAX_SIZE,) and shape == ("n", *kind.shape[1:]):
        return Value(f"{code}[:n]", new, False)
    if not _broadcasts(kind.shape, shape):
        if not kind.is_dynamic and not new.is_dynamic and shape:
            repeats = math.ceil(new.numel / kind.numel)
            more = f".repeat({repeats})" if repeats > 1 else ""
            flat = f"{code}.reshape(-1){more}[: {new.numel}]"
            end = "" if len(shape) == 1 else f".reshape({shape_code(shape)})"
            return Value(flat + end, new, False)
        if kind.shape[1:] == shape and not kind.is_bool:
            reduction = "[-1]" if kind.is_integer else ".mean(0)"
            return Value(f"{code}{reduction}", new, kind.is_float)
        reduced = "any" if kind.is_bool else "mean" if kind.is_float else "amax"
        code = f"{code}.{reduced}()"
        if not shape:
            return Value(code, new)
    return Value(f"{code}.expand({shape_code(shape)})", new, False)


def _broadcasts(shape: tuple[Size, ...], to: tuple[Size, ...]) -> bool:
    return len(shape) <= len(to) and all(
        one in (1, other)
        for one, other in zip(reversed(shape), reversed(to), strict=False)
    )
