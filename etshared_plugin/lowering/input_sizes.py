"""Which sizes the inputs of an entry point may have."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    TensorArgument,
)

from ..context import InputSizes
from ..lifted.lifted_state import LiftedProgram
from ..lifted.program_surgery import inputs_of
from ..lifted.sizes import expression_of, range_of


def input_sizes(
    exported: LiftedProgram, planned: tuple[fx.GraphModule, ExportGraphSignature]
) -> tuple[InputSizes, ...]:
    """Describe each user input; what is no tensor has no dimensions.

    Args:
        exported: the program before it was lowered to edge, which in 1.5.1
            raises every minimum to 2, the least that tracing has seen.
        planned: what memory planning left of it, with room for the largest sizes.
    """
    if exported.anchored:
        return ()
    program = exported.program
    user_inputs = [n for n, s in inputs_of(program) if s.kind is InputKind.USER_INPUT]
    # One number for each size that is not fixed, in the order of the inputs.
    symbols: dict[Any, int] = {}
    found = []
    for node, largest in zip(
        user_inputs[len(exported.inputs) :], _largest_sizes(*planned), strict=True
    ):
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        lowest, highest, numbers = [], [], []
        for size, most in zip(shape, largest, strict=True):
            expression = expression_of(size)
            number, least = 0, most
            if expression is not None:
                number = symbols.setdefault(expression, len(symbols) + 1)
                span = range_of(expression, program.range_constraints)
                least = int(span.lower) if span.lower > 0 else 0
                most = int(span.upper) if span.upper < most else most
            lowest.append(least)
            highest.append(most)
            numbers.append(number)
        found.append(InputSizes(tuple(lowest), tuple(highest), tuple(numbers)))
    return tuple(found)


def _largest_sizes(
    graph_module: fx.GraphModule, signature: ExportGraphSignature
) -> list[tuple[int, ...]]:
    nodes = {
        node.name: node for node in graph_module.graph.find_nodes(op="placeholder")
    }
    return [
        tuple(nodes[spec.arg.name].meta["spec"].shape)
        if isinstance(spec.arg, TensorArgument)
        else ()
        for spec in signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
