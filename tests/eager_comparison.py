"""Runs programs next to the eager module, call by call, in two runtimes."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.backend.partitioner import Partitioner
from executorch.runtime import Runtime
from torch import nn
from torch._export.utils import _collect_all_valid_cia_ops
from torch.export import decomp_utils, exported_program
from torch.utils import _pytree as pytree

import etshared_plugin as etshared
from etshared_plugin.runtime import Session, SharedProgram

# torch 2.13 lists all composite operators anew for each decomposition: 40 % of
# the time that lowering a tiny model takes.
_composite_operators = functools.cache(_collect_all_valid_cia_ops)
decomp_utils._collect_all_valid_cia_ops = _composite_operators
exported_program._collect_all_valid_cia_ops = _composite_operators


@dataclass(frozen=True)
class Call:
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(name: str, *args: object, **kwargs: object) -> Call:
    return Call(name, args, kwargs)


@dataclass(frozen=True)
class Outcome:
    """What the eager module returns for a call, and its buffers afterwards.

    ``inputs`` are what a runtime without names for inputs is given.
    """

    call: Call
    inputs: list[Any]
    result: Any
    buffers: dict[str, torch.Tensor]


@torch.no_grad()
def eager_outcomes(
    model: nn.Module,
    entry_points: Mapping[str, etshared.EntryPoint],
    calls: Sequence[Call],
) -> list[Outcome]:
    """Call a copy of the eager module."""
    eager, methods = copy.deepcopy((model, dict(entry_points)))
    outcomes = []
    for one in calls:
        function: Callable[..., Any] = methods[one.name].fn
        if inspect.isfunction(function):
            function = functools.partial(function, eager)
        bound = inspect.signature(function).bind(*one.args, **one.kwargs)
        inputs = bound.args, dict(bound.kwargs)
        args, kwargs = copy.deepcopy(inputs)  # the module may keep and change them
        result = _copied(function(*args, **kwargs))
        buffers = dict(eager.named_buffers(remove_duplicate=False))
        outcomes.append(
            Outcome(one, pytree.tree_leaves(inputs), result, copy.deepcopy(buffers))
        )
    return outcomes


def lower(
    model: nn.Module,
    entry_points: Mapping[str, etshared.EntryPoint],
    partitioner: Sequence[Partitioner] = (),
    *,
    state: Sequence[str] | None = None,
    config: ExecutorchBackendConfig | None = None,
) -> bytes:
    """Return the program of a model's entry points."""
    exported = etshared.export(model, entry_points, state=state)
    edge = etshared.to_edge_transform_and_lower(exported, partitioner=partitioner)
    return bytes(edge.to_executorch(config).buffer)


def assert_equals_eager(
    model: nn.Module,
    entry_points: Mapping[str, etshared.EntryPoint],
    calls: Sequence[Call],
    partitioner: Sequence[Partitioner] = (),
    *,
    state: Sequence[str] | None = None,
    config: ExecutorchBackendConfig | None = None,
    types: Sequence[type] = (),
) -> SharedProgram:
    """Lower a model, and compare each call in both runtimes with the eager module."""
    outcomes = eager_outcomes(model, entry_points, calls)
    data = lower(model, entry_points, partitioner, state=state, config=config)
    return assert_program_equals(data, outcomes, types=types)


def assert_program_equals(
    data: bytes,
    outcomes: Sequence[Outcome],
    *,
    reset_entry_point: str | None = "reset_state",
    types: Sequence[type] = (),
) -> SharedProgram:
    """Compare each call of a program in both runtimes with what eager did.

    In this package's runtime two sessions run one call apart. One loads entry
    points when it first calls them, the other all before, the last one first;
    when both have ended, a third starts anew.
    """
    program = etshared.load(data, tensors="torch", types=types)
    sessions = program.session(), program.session()
    sessions[1].load(*reversed(program.entry_points))
    kept = []
    for step in range(len(outcomes) + 1):
        for session, position in zip(sessions, (step, step - 1), strict=True):
            if 0 <= position < len(outcomes):
                result = _compare(session, outcomes[position])
                kept.append((result, outcomes[position]))
    for result, outcome in kept:  # outputs do not change afterwards
        _assert_same(result, outcome.result, f"{outcome.call}, kept")
    del sessions, session
    session = program.session()
    for outcome in outcomes:
        _compare(session, outcome)
    assert_stock_runtime_equals(data, outcomes, reset_entry_point=reset_entry_point)
    return program


def _compare(session: Session, outcome: Outcome) -> object:
    one = outcome.call
    result = session[one.name](*one.args, **one.kwargs)
    assert pytree.tree_structure(result) == pytree.tree_structure(outcome.result)
    _assert_same(result, outcome.result, f"{one}")
    for fqn, value in session.state.items():
        _assert_same(value, outcome.buffers[fqn], f"state '{fqn}' after {one}")
    return result


def assert_stock_runtime_equals(
    data: bytes,
    outcomes: Sequence[Outcome],
    *,
    reset_entry_point: str | None = "reset_state",
    data_path: Path | None = None,
) -> None:
    """Compare with ``executorch.runtime``, which loads methods late and early."""
    for load_first in (False, True):
        program = Runtime.get().load_program(data, data_path=data_path)
        if load_first:
            for name in sorted(program.method_names, reverse=True):
                program.load_method(name)
        if reset_entry_point in program.method_names:
            program.load_method(reset_entry_point).execute([])
        for outcome in outcomes:
            one = outcome.call
            result = program.load_method(one.name).execute(outcome.inputs)
            expected = pytree.tree_leaves(outcome.result)
            _assert_same(list(result), expected, f"{one} in executorch.runtime")


def _copied(result: object) -> Any:  # noqa: ANN401
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), result)


def _assert_same(actual: object, expected: object, place: str) -> None:
    actual, expected = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(actual) == len(expected), place
    for one, other in zip(actual, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(
                one, other.detach(), msg=lambda text: f"{place}: {text}"
            )
        else:
            assert type(one) is type(other) and one == other, place
