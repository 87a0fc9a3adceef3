"""What a user declares of an entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import EntryPointError
from ..lifted.signatures import check_names
from ..wording import kind_of
from .registered_tensors import defect_of


@dataclass(frozen=True, slots=True)
class Bind:
    """Which argument and which result of a method are one piece of state.

    Both may be nested containers of tensors: each tensor then is state of its own,
    named after the bind and its place in them, such as ``cache.0.k``. The example
    argument holds the initial values.

    Args:
        input: position or name of the argument that takes the old value; None for
            a method that does not look at it.
        output: where in the result the new value is: an index, key or field, or a
            tuple of them that leads there, ``()`` for the whole result; None for a
            method that leaves the state as it is. A tuple of which one element is
            left is returned as that element; a field of a named tuple or of another
            class is returned as None.
    """

    input: int | str | None = None
    output: int | str | tuple[int | str, ...] | None = None

    @property
    def path(self) -> tuple[int | str, ...] | None:
        """What leads to the new value in the result."""
        if self.output is None or isinstance(self.output, tuple):
            return self.output
        return (self.output,)


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A method to export, with example inputs.

    Args:
        fn: a bound method of the root or of one of its submodules, a
            `functools.partial` of one, or a function. A function that takes one
            more positional argument than ``args`` gives gets the root as its
            first.
        args: example positional inputs, as for `torch.export.export`.
        kwargs: example keyword inputs.
        dynamic_shapes: as for `torch.export.export`, by the names of the
            function's own arguments.
        binds: state that the function takes and returns, by name: it is shared, and
            no input or output of the entry point.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    binds: Mapping[str, Bind] | None = None


def check_entry_points(entry_points: Mapping[str, EntryPoint]) -> None:
    """Refuse what is no declaration of entry points.

    Raises:
        EntryPointError: it is not.
    """
    if not isinstance(entry_points, Mapping):
        raise EntryPointError(
            f"entry_points is a {type(entry_points).__name__}, expected a dict of"
            " EntryPoints by name"
        )
    if not entry_points:
        raise EntryPointError("there is no entry point to export")
    check_names(entry_points)
    for name, one in entry_points.items():
        if not isinstance(one, EntryPoint):
            raise EntryPointError(
                f"entry point '{name}' is a {type(one).__name__}, expected an"
                f" EntryPoint; write EntryPoint(model.{name}, (x,))",
                method_name=name,
            )
        if not isinstance(one.args, (tuple, list)):
            raise EntryPointError(
                f"entry point '{name}': args are a {type(one.args).__name__}, expected"
                " a tuple; write (x,)",
                method_name=name,
            )
        if not isinstance(one.kwargs, Mapping | None):
            raise EntryPointError(
                f"entry point '{name}': kwargs are {kind_of(one.kwargs)}, expected a"
                " dict",
                method_name=name,
            )
        for leaf in pytree.tree_leaves((one.args, dict(one.kwargs or {}))):
            if isinstance(leaf, torch.Tensor) and (defect := defect_of(leaf)):
                raise EntryPointError(
                    f"entry point '{name}': an example input {defect}",
                    method_name=name,
                )
            if isinstance(leaf, nn.Module):
                raise EntryPointError(
                    f"entry point '{name}' has {kind_of(leaf)}, a module, among its"
                    " inputs; write EntryPoint(functools.partial(fn, module), (x,)), or"
                    " a function that takes the root as its first argument",
                    method_name=name,
                )
        _check_binds(name, one.binds)


def _check_binds(name: str, binds: object) -> None:
    if not isinstance(binds, Mapping | None):
        raise EntryPointError(
            f"entry point '{name}': binds are {kind_of(binds)}, expected a dict; write"
            " {'name': Bind(input=1, output=1)}",
            method_name=name,
        )
    for key, bound in (binds or {}).items():
        problem = None
        if not isinstance(key, str) or not key or set(key) & set("*?[\0"):
            problem = "has a name that no state can have"
        elif not isinstance(bound, Bind):
            problem = f"is {kind_of(bound)}, expected a Bind"
        elif bound.input is not None and not _is_place(bound.input):
            problem = f"has input={bound.input!r}, expected a position or name"
        elif not all(map(_is_place, bound.path or ())):
            problem = f"has output={bound.output!r}, expected an index, key or field"
            problem += ", or a tuple of them"
        if problem is not None:
            raise EntryPointError(
                f"entry point '{name}': bind {key!r} {problem}", method_name=name
            )


def _is_place(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)
