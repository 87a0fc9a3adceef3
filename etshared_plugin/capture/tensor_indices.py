"""Assignments to elements that a tensor without dimensions chooses."""

from __future__ import annotations

from typing import Any

import torch

#: What Python calls for ``x[index] = value``.
SET_ITEM = torch.Tensor.__setitem__


def set_item(x: torch.Tensor, index: Any, value: Any) -> None:  # noqa: ANN401
    """Do what ``x[index] = value`` does.

    Eager reads a tensor index without dimensions as a number, which tracing cannot;
    an operator takes it as it is, unless something beside it makes a copy of what
    is chosen.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    chosen = [i for i, item in enumerate(items) if _is_scalar_index(item)]
    if not chosen or not all(
        i in chosen or _is_number(item) or _keeps_view(item)
        for i, item in enumerate(items)
    ):
        SET_ITEM(x, index, value)
        return
    sliced = [slice(None) if i in chosen else item for i, item in enumerate(items)]
    view = x[tuple(sliced)]
    indices: list[torch.Tensor | None] = [None] * view.dim()
    for i in chosen:
        # The kernel takes no narrower integers.
        indices[_dimension(sliced, i, view.dim())] = items[i].to(torch.int64)
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    # Assignments drop leading dimensions of one, as broadcasting does not.
    while value.dim() > view.dim() - len(chosen) and value.shape[0] == 1:
        value = value[0]
    torch.ops.aten.index_put_(view, indices, value.to(x.dtype))


def _is_scalar_index(item: object) -> bool:
    """Tell whether an item is a number in a tensor; uint8 would be a mask."""
    return (
        isinstance(item, torch.Tensor)
        and item.dim() == 0
        and item.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
    )


def _keeps_view(item: object) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice)


def _dimension(items: list[Any], position: int, rank: int) -> int:
    """Return where in the result of an index the item at ``position`` is."""
    if any(item is Ellipsis for item in items[:position]):
        return rank - sum(not _is_number(item) for item in items[position:])
    return sum(not _is_number(item) for item in items[:position])


def _is_number(item: object) -> bool:
    return isinstance(item, int | torch.SymInt) and not isinstance(item, bool)
