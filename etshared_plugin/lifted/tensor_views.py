"""Where tensors lie in each other's memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Makes a view of a contiguous tensor with operators that ExecuTorch has.
View = Callable[[torch.Tensor], torch.Tensor]


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors have an element of memory in common."""
    if not (a.numel() and b.numel()):
        return False
    (a_start, a_end), (b_start, b_end) = _extent(a), _extent(b)
    if a_end <= b_start or b_end <= a_start:
        return False
    if a.element_size() != b.element_size() or (a_start - b_start) % a.element_size():
        return True
    start = min(a_start, b_start)
    touched = torch.zeros(
        (max(a_end, b_end) - start) // a.element_size(), dtype=torch.bool
    )
    for t, t_start in ((a, a_start), (b, b_start)):
        offset = (t_start - start) // t.element_size()
        elements = touched.as_strided(t.shape, t.stride(), offset)
        if bool(elements.any()):
            return True
        elements.fill_(True)
    return False


def identity(t: torch.Tensor) -> tuple[object, ...] | None:
    """Return what tensors that are the same memory have in common.

    None if there is no memory to compare, as of a tensor without elements.
    """
    if not t.numel() or not t.data_ptr():
        return None
    return t.data_ptr(), t.dtype, tuple(t.shape), t.stride()


def lies_in(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Tell whether ``part`` lies between the ends of ``whole``."""
    (start, end), (whole_start, whole_end) = _extent(part), _extent(whole)
    return whole_start <= start and end <= whole_end


def _extent(t: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte and of the one after the last."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    start = t.data_ptr()
    return start, start + (last + 1) * t.element_size()


def view_of_whole(whole: torch.Tensor, part: torch.Tensor) -> View | None:
    """Return what makes ``part`` of a contiguous ``whole`` that it lies in.

    The memory is laid out as a grid with one dimension for each of the part's
    strides; there the part is a box. None if it is not: if its strides are no
    multiples of one another, as in ``x.diagonal()``, or do not divide the whole.
    """
    if whole.dtype != part.dtype:
        return None
    count, size = whole.numel(), part.element_size()
    offset, remainder = divmod(part.data_ptr() - whole.data_ptr(), size)
    wide = sorted(
        (d for d, n in enumerate(part.shape) if n > 1), key=_by(part.stride())
    )
    strides = [part.stride(d) for d in wide]
    grid: list[int] = []
    starts: list[int] = []
    left = count
    for stride in strides:
        if remainder or not stride or left % stride:
            return None
        grid.append(left // stride)
        starts.append(offset // stride)
        offset %= stride
        left = stride
    lengths = [part.shape[d] for d in wide]
    if any(s + n > g for s, n, g in zip(starts, lengths, grid, strict=True)):
        return None
    order = sorted(range(len(wide)), key=lambda i: wide[i])
    narrow = [d for d, n in enumerate(part.shape) if n == 1]

    def make(memory: torch.Tensor) -> torch.Tensor:
        box = memory.view([*grid, left] if left > 1 else grid)
        for dim, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            if length < grid[dim]:
                box = box.narrow(dim, start, length)
        if left > 1:
            box = box.select(len(grid), offset)
        if order != sorted(order):
            box = box.permute(order)
        for dim in narrow:
            box = box.unsqueeze(dim)
        return box

    return make


def _by(strides: tuple[int, ...]) -> Callable[[int], int]:
    return lambda dim: -strides[dim]
