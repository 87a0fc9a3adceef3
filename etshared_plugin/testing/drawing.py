"""Random calls in the likeness of the example inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.calls import Call
from ..capture.declarations import EntryPoint
from ..context import EntryPointRecord
from ..errors import InputError
from ..lifted.signatures import bind
from ..wording import kind_of, quoted

#: By entry point: makes the positional inputs of one call.
Inputs = Mapping[str, Callable[[random.Random], tuple[Any, ...]]]


def check_inputs(inputs: object, names: Collection[str]) -> None:
    """Refuse what makes no inputs of entry points.

    Raises:
        InputError: it does not.
    """
    if not isinstance(inputs, Mapping | None):
        raise InputError(
            f"inputs is {kind_of(inputs)}, expected a dict of functions by entry point"
        )
    for name, make in (inputs or {}).items():
        if name not in names:
            raise InputError(f"inputs has '{name}', expected one of {quoted(names)}")
        if not callable(make):
            raise InputError(
                f"inputs of entry point '{name}' is {kind_of(make)}, expected a"
                " function of a random.Random that returns a tuple",
                method_name=name,
            )


def draw_calls(
    root: nn.Module,
    entry_points: Mapping[str, EntryPoint],
    records: Mapping[str, EntryPointRecord],
    count: int,
    generator: random.Random,
    inputs: Inputs | None = None,
) -> list[Call]:
    """Draw calls at random.

    Tensors have the dtype and the order of dimensions in memory of the example.
    Floating-point elements lie between the example's least and greatest, or between
    -1 and 1 where those are one; integers lie between the example's least and
    greatest. Sizes that export left open lie between the least that is allowed and
    twice the example's, as far as allowed. Numbers and strings are those of the
    example.

    Args:
        records: entry points of the program's record, by name: the sizes.
        inputs: what to call instead, by entry point, for inputs that must be
            made in another way.
    """
    names = sorted(entry_points)
    calls = []
    for _ in range(count):
        name = generator.choice(names)
        if inputs is not None and name in inputs:
            calls.append(Call(name, inputs[name](generator), {}))
            continue
        example = entry_points[name]
        _, bound = bind(root, name, example.fn, example.args, example.kwargs or {})
        leaves, spec = pytree.tree_flatten((bound.args, dict(bound.kwargs)))
        sizes = _draw_sizes(leaves, records[name], generator)
        values = [
            _laid_out_as(leaf, _draw_tensor(leaf, next(sizes), generator))
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in leaves
        ]
        args, kwargs = pytree.tree_unflatten(values, spec)
        calls.append(Call(name, args, kwargs))
    return calls


def _draw_sizes(
    leaves: list[Any], record: EntryPointRecord, generator: random.Random
) -> Iterator[list[int]]:
    drawn: dict[int, int] = {}
    for leaf, one in zip(leaves, record.inputs, strict=True):
        if not isinstance(leaf, torch.Tensor):
            continue
        sizes = list(leaf.shape)
        for dim, symbol in enumerate(one.symbols):
            if symbol == 0:
                continue
            if symbol not in drawn:
                most = min(one.max_sizes[dim], 2 * sizes[dim])
                drawn[symbol] = generator.randint(one.min_sizes[dim], most)
            sizes[dim] = drawn[symbol]
        yield sizes


def _draw_tensor(
    example: torch.Tensor, sizes: list[int], generator: random.Random
) -> torch.Tensor:
    seed = torch.Generator().manual_seed(generator.getrandbits(63))
    if example.dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=seed).bool()
    if example.numel() == 0:
        return torch.zeros(sizes, dtype=example.dtype)
    if not example.is_floating_point():
        least, most = int(example.min()), int(example.max())
        return torch.randint(
            least, most + 1, sizes, generator=seed, dtype=example.dtype
        )
    finite = example[example.isfinite()]
    low, high = -1.0, 1.0
    if finite.numel() and float(finite.min()) < float(finite.max()):
        low, high = float(finite.min()), float(finite.max())
    unit = torch.rand(sizes, generator=seed, dtype=torch.float64)
    drawn = (low + (high - low) * unit).to(example.dtype)
    if finite.numel() == example.numel():
        return drawn
    # A mask: infinities stay where they are.
    if drawn.shape != example.shape:
        raise InputError(
            "an example input has infinities and a dynamic size, so that its likes"
            " cannot be drawn; give 'inputs' that make them"
        )
    return torch.where(example.isfinite(), drawn, example)


def _laid_out_as(example: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    if example.is_contiguous():
        return drawn
    # Unmodified runtimes read inputs in the order of dimensions of the example.
    order = sorted(range(example.dim()), key=example.stride, reverse=True)
    inverse = [order.index(dim) for dim in range(example.dim())]
    return drawn.permute(order).contiguous().permute(inverse)
