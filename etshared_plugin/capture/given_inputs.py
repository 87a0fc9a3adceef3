"""Inputs of exported programs, checked as the runtime checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..lifted.lifted_state import LiftedProgram
from ..lifted.program_surgery import inputs_of
from ..lifted.signatures import CallingConvention
from ..lifted.sizes import expression_of, range_of
from ..wording import counted, dtype_name


def flat_inputs(
    name: str,
    lifted: LiftedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Bring the inputs of an entry point into the order of its graph.

    Raises:
        InputError: they are not what the entry point was exported for.
    """
    leaves, spec = pytree.tree_flatten(_ordered(name, lifted.call, args, kwargs))
    if spec != lifted.call.in_spec:
        raise InputError(
            f"entry point '{name}': inputs are nested as {spec}, expected"
            f" {lifted.call.in_spec}",
            method_name=name,
        )
    program = lifted.program
    placeholders = [n for n, s in inputs_of(program) if s.kind is InputKind.USER_INPUT]
    own = placeholders[len(lifted.inputs) :]
    sizes = _sizes([node.meta["val"] for node in own], leaves)
    for node, leaf in zip(own, leaves, strict=True):
        difference = _difference(leaf, node.meta["val"], program, sizes)
        if difference:
            raise InputError(
                f"entry point '{name}': input '{node.name}' is {difference}",
                method_name=name,
            )
    return leaves


def _ordered(
    name: str,
    call: CallingConvention,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bring inputs into the form that the entry point was exported with."""
    args_spec, kwargs_spec = call.in_spec.children()
    count, keys = args_spec.num_children, list(kwargs_spec.context or ())
    by_name = list(call.argument_names[:count])[len(args) :]
    given = set(kwargs)
    if len(args) + len(by_name) != count or given != {*by_name, *keys}:
        wanted = ", ".join(call.argument_names) or counted(count, "positional input")
        raise InputError(
            f"entry point '{name}': got {counted(len(args), 'positional input')} and"
            f" {sorted(given)}, expected the arguments it was exported with: {wanted}",
            method_name=name,
        )
    positional = (*args, *(kwargs[one] for one in by_name))
    return positional, {key: kwargs[key] for key in keys}


def _difference(
    value: object,
    expected: object,
    program: ExportedProgram,
    sizes: dict[Any, int],
) -> str | None:
    """Say what is wrong with an input, or None."""
    if not isinstance(expected, torch.Tensor):
        if isinstance(expected, torch.SymInt) or value == expected:
            return None
        return f"{value!r}, expected {expected!r} as it was exported"
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}, expected a tensor"
    if value.dtype != expected.dtype:
        return f"{dtype_name(value.dtype)}, expected {dtype_name(expected.dtype)}"
    shape = list(value.shape)
    allowed = [_allowed(size, program, sizes) for size in expected.shape]
    fits = len(shape) == len(allowed) and all(
        lowest <= size <= highest
        for size, (lowest, highest) in zip(shape, allowed, strict=True)
    )
    if fits:
        return None
    wanted = ", ".join(
        f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
        for lowest, highest in allowed
    )
    return f"of shape {shape}, expected [{wanted}]"


def _allowed(
    size: int | torch.SymInt, program: ExportedProgram, sizes: Mapping[Any, int]
) -> tuple[Any, Any]:
    """Return the least and the largest size that a dimension may have."""
    expression = expression_of(size)
    if expression is None:
        return int(size), int(size)
    span = range_of(expression, program.range_constraints)
    value = expression.subs(sizes)
    if value.is_number and span.lower <= value <= span.upper:
        return value, value
    return span.lower, span.upper


def _sizes(expected: Sequence[object], values: Sequence[object]) -> dict[Any, int]:
    """Return what each symbol stands for in the first input that has it."""
    sizes: dict[Any, int] = {}
    for one, value in zip(expected, values, strict=True):
        if isinstance(one, torch.Tensor) and isinstance(value, torch.Tensor):
            for allowed, size in zip(one.shape, value.shape, strict=False):
                expression = expression_of(allowed)
                if expression is not None and expression.is_symbol:
                    sizes.setdefault(expression, size)
    return sizes
