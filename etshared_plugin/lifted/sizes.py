"""Sizes of dimensions that are not fixed."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


def expression_of(size: int | torch.SymInt) -> Any:  # noqa: ANN401
    """Return the symbols that a size is computed of, None if it is fixed."""
    if not isinstance(size, torch.SymInt) or size.node.expr.is_number:
        return None
    return size.node.expr


def range_of(expression: Any, known: dict[Any, ValueRanges[Any]]) -> ValueRanges[Any]:  # noqa: ANN401
    """Return the least and the largest value that a size may have.

    Args:
        expression: of the size.
        known: what the program says of symbols and expressions.
    """
    return known[expression] if expression in known else bound_sympy(expression, known)
