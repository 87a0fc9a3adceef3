"""What the eager module does for a sequence of calls."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.bound_state import BoundState
from ..capture.calls import AnyCall, Call, calls_of, is_reset
from ..capture.declarations import EntryPoint
from ..capture.module_snapshot import TENSOR_DICTS
from ..errors import InputError
from ..lifted.signatures import bind
from ..wording import kind_of
from .captured import refuse_captured_modules

#: What Python and torch raise for an object that cannot be copied, such as a lock.
_NOT_COPIED = (TypeError, RuntimeError)


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
    calls: Iterable[AnyCall],
    *,
    parameters: Sequence[str] = (),
) -> list[Outcome]:
    """Make calls on a copy of the eager module.

    Args:
        root: left as it is.
        calls: as for :func:`assert_matches_eager`.
        parameters: fqns of parameters that are state too, as all buffers are.

    Raises:
        InputError: a call names no entry point, or does not fit its signature, or
            an entry point has the module from outside of its arguments.
    """
    refuse_captured_modules(root, entry_points)
    eager, bound_state = _started(root, entry_points)
    outcomes = []
    for one in calls_of(calls):
        inputs: Any = ()
        result = None
        if is_reset(one, entry_points):
            eager, bound_state = _started(root, entry_points)
        else:
            fn = bound_state.entry_points[one.name].fn
            function, bound = bind(eager, one.name, fn, one.args, one.kwargs)
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


def _started(
    root: nn.Module, entry_points: Mapping[str, EntryPoint]
) -> tuple[nn.Module, BoundState]:
    """Copy a module with its entry points, and the state that they are bound to."""
    eager, methods = _deep_copy(root, dict(entry_points))
    return eager, BoundState(eager, methods)


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
    # What is computed from parameters, as by weight_norm, torch does not copy.
    held = [vars(module) for module in root.modules()]
    given = [(one.args, one.kwargs) for one in entry_points.values()]
    for tensor in pytree.tree_leaves([held, given]):
        if isinstance(tensor, torch.Tensor) and not tensor.is_leaf:
            memo[id(tensor)] = copy.deepcopy(tensor.detach(), memo)
    try:
        return copy.deepcopy((root, entry_points), memo)
    except _NOT_COPIED as error:
        raise InputError(
            "the module cannot be copied to run it in eager:"
            f" {next(_uncopied(root), error)}; take it away, or give it a"
            " __deepcopy__"
        ) from error


def _uncopied(root: nn.Module) -> Iterator[str]:
    """Name attributes that cannot be copied."""
    for prefix, module in root.named_modules():
        for name, value in vars(module).items():
            if name in TENSOR_DICTS:
                continue
            try:
                copy.deepcopy(value)
            except _NOT_COPIED as error:
                fqn = f"{prefix}.{name}" if prefix else name
                yield f"attribute '{fqn}' is {kind_of(value)}, {error}"


def _copied(value: object) -> Any:  # noqa: ANN401
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), value)
