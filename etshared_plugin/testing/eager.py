"""What the eager module does for a sequence of calls."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.bound_state import BoundState
from ..capture.entry_points import EntryPoint
from ..errors import InputError
from ..lifted.signatures import bind


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


def call(name: str, *args: object, **kwargs: object) -> Call:
    """Return the call ``name(*args, **kwargs)``."""
    return Call(name, args, kwargs)


@dataclass(frozen=True)
class Outcome:
    """What the eager module returns for a call, and its state afterwards.

    ``inputs`` are the flat inputs for a runtime that has no names for them.
    ``state`` holds copies of all buffers and parameters that calls may change,
    by every name that they have.
    """

    call: Call
    inputs: list[Any]
    result: Any
    state: dict[str, torch.Tensor]


@torch.no_grad()
def eager_outcomes(
    root: nn.Module,
    entry_points: Mapping[str, EntryPoint],
    calls: Sequence[Call],
    *,
    parameters: Sequence[str] = (),
) -> list[Outcome]:
    """Make calls on a copy of the eager module.

    Args:
        root: left as it is.
        parameters: fqns of parameters that are state too, as all buffers are.

    Raises:
        InputError: a call names no entry point, or does not fit its signature.
    """
    eager, methods = _deep_copy(root, dict(entry_points))
    bound_state = BoundState(eager, methods)
    methods = bound_state.entry_points
    outcomes = []
    for one in calls:
        if one.name not in methods:
            known = ", ".join(f"'{name}'" for name in methods)
            raise InputError(f"there is no entry point '{one.name}', only {known}")
        function, bound = bind(
            eager, one.name, methods[one.name].fn, one.args, one.kwargs
        )
        inputs = bound.args, dict(bound.kwargs)
        # The module may keep its arguments, and change them.
        args, kwargs = copy.deepcopy(inputs)
        result = _copied(function(*args, **kwargs))
        state: dict[str, torch.Tensor] = {
            name: parameter
            for name, parameter in eager.named_parameters(remove_duplicate=False)
            if name in parameters
        }
        state.update(eager.named_buffers(remove_duplicate=False))
        state.update(bound_state.values)
        outcomes.append(
            Outcome(one, pytree.tree_leaves(inputs), result, _copied(state))
        )
    return outcomes


def _deep_copy(
    root: nn.Module, entry_points: dict[str, EntryPoint]
) -> tuple[nn.Module, dict[str, EntryPoint]]:
    """Copy a module so that views of parameters are views of their copies."""
    memo: dict[int, Any] = {}
    data = [(parameter, parameter.data) for parameter in root.parameters()]
    for parameter, tensor in data:
        memo[id(parameter)] = nn.Parameter(
            copy.deepcopy(tensor, memo), requires_grad=parameter.requires_grad
        )
    return copy.deepcopy((root, entry_points), memo)


def _copied(value: object) -> Any:  # noqa: ANN401
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), value)


def _short(value: object) -> str:
    leaves = pytree.tree_leaves(value)
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return ", ".join(
            f"{str(leaf.dtype)[6:]}{list(leaf.shape)}"
            if isinstance(leaf, torch.Tensor)
            else repr(leaf)
            for leaf in leaves
        )
    return repr(value)
