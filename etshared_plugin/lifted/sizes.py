"""Sizes of dimensions that are not fixed."""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
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


def forget_pending_sizes(program: ExportedProgram) -> None:
    """Let a program be traced again after passes have run over it.

    Where a size depends on values, as behind a mask, every pass of ExecuTorch makes
    a symbol for it that no node has, and then torch 2.13 fails to trace.
    """
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()
