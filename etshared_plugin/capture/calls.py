"""Calls of entry points, as callers write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..state import RESET_STATE, tensor_kind
from ..wording import kind_of, quoted


@dataclass(frozen=True)
class Call:
    """One call of an entry point."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        values = [_short(value) for value in self.args]
        values += [f"{name}={_short(value)}" for name, value in self.kwargs.items()]
        return f"'{self.name}' ({', '.join(values)})"


#: ``("forward", (x,))``, ``("forward", (x,), {"k": 1})``, or ``call("forward", x)``.
AnyCall: TypeAlias = (
    Call | tuple[str, Sequence[Any]] | tuple[str, Sequence[Any], Mapping[str, Any]]
)


def call(name: str, *args: object, **kwargs: object) -> Call:
    """Return the call ``name(*args, **kwargs)``."""
    return Call(name, args, kwargs)


def call_of(given: object) -> Call:
    """Return the call that a caller means.

    Raises:
        InputError: it is none.
    """
    if isinstance(given, Call):
        return given
    parts = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(parts) not in (2, 3) or not isinstance(parts[0], str):
        raise InputError(
            f"a call is {_described(given)}, expected (name, args), (name, args,"
            " kwargs) or what etshared_plugin.testing.call makes"
        )
    name, args, kwargs = (*parts, {})[:3]
    for value, kinds, what, remedy in (
        (args, (tuple, list), "args are", "a tuple; write (x,)"),
        (kwargs, Mapping, "kwargs are", "a dict"),
    ):
        if not isinstance(value, kinds):
            raise InputError(
                f"a call of entry point '{name}': {what} a {type(value).__name__},"
                f" expected {remedy}",
                method_name=name,
            )
    return Call(name, tuple(args), dict(kwargs))


def calls_of(given: object, what: str = "calls") -> Iterator[Call]:
    """Return the calls that a caller means, each looked at when it is its turn.

    Raises:
        InputError: one is none, or they are not several.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping | Call):
        raise InputError(
            f"{what} is {kind_of(given)}, expected several, such as"
            " [('forward', (x,)), call('peek')]"
        )
    return map(call_of, given)


def is_reset(one: Call, names: Collection[str]) -> bool:
    """Tell whether a call starts another life of the state.

    Args:
        names: of the entry points. If ``reset_state`` is none of them, it is the
            generated one.

    Raises:
        InputError: there is no such entry point.
    """
    if one.name in names:
        return False
    if one.name != RESET_STATE:
        raise InputError(f"there is no entry point '{one.name}', only {quoted(names)}")
    if one.args or one.kwargs:
        raise InputError(f"'{RESET_STATE}' takes no inputs", method_name=one.name)
    return True


def _described(given: object) -> str:
    if isinstance(given, (tuple, list)):
        kinds = ", ".join(type(one).__name__ for one in given[:4])
        return f"a {type(given).__name__} of {len(given)} ({kinds})"
    return repr(given) if isinstance(given, str) else f"a {type(given).__name__}"


def _short(value: object) -> str:
    leaves = pytree.tree_leaves(value)
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return ", ".join(
            tensor_kind(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
            for leaf in leaves
        )
    return repr(value)
