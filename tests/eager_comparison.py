"""Short forms of ``etshared_plugin.testing`` for programs as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from executorch.exir import ExecutorchBackendConfig
from executorch.exir.backend.partitioner import Partitioner
from torch import nn

import etshared_plugin as etshared
from etshared_plugin.runtime import SharedProgram
from etshared_plugin.testing import (
    Call,
    Outcome,
    assert_matches_eager,
    assert_program_matches,
    assert_stock_runtime_matches,
    call,
    eager_outcomes,
)

__all__ = [
    "Call",
    "Outcome",
    "assert_equals_eager",
    "assert_program_equals",
    "assert_stock_runtime_matches",
    "call",
    "eager_outcomes",
    "lower",
]


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
    return assert_matches_eager(
        model,
        entry_points,
        calls,
        partitioner=partitioner,
        state=state,
        config=config,
        types=types,
    )


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


def assert_program_equals(
    data: bytes,
    outcomes: Sequence[Outcome],
    *,
    reset_entry_point: str | None = "reset_state",
    types: Sequence[type] = (),
) -> SharedProgram:
    """Compare each call of a program in both runtimes with what eager did."""
    program = etshared.load(data, tensors="torch", types=types)
    assert_program_matches(program, outcomes)
    assert_stock_runtime_matches(data, outcomes, reset_entry_point=reset_entry_point)
    return program
