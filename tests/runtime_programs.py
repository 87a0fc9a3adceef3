"""Programs for the tests of the runtime, each exported once per process."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch.export import Dim
from torch.export import export as export_one

import etshared_plugin as etshared

Backend = Literal["portable", "xnnpack"]


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Point:
    x: torch.Tensor
    y: torch.Tensor


torch.export.register_dataclass(Point, serialized_type_name="runtime_programs.Point")


class Recurrent(torch.nn.Module):
    """State of three kinds, and entry points that read and write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("hidden", torch.full((1, 4), 5.0))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.cache = torch.nn.Module()
        self.cache.register_buffer("keys", torch.arange(6.0).reshape(2, 3))
        self.cache.register_buffer("values", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.hidden.copy_(torch.tanh(self.linear(x) + self.hidden))
        self.steps.add_(1)
        return self.hidden * 2, self.steps + 0

    def peek(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden + x

    def fill(self, row: torch.Tensor) -> None:
        self.cache.keys.copy_(self.cache.keys + row)
        self.cache.values.copy_(row.expand(2, 3))

    def lookup(self, index: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        return self.cache.keys[index]

    def nested(
        self, x: dict[str, list[torch.Tensor]], y: torch.Tensor, *, k: torch.Tensor
    ) -> dict[str, object]:
        return {"sum": x["a"][0] + x["a"][1], "rest": [y * 2, (k - 1, None)]}


_ROW = torch.ones(1, 4)

_CALLS: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "forward": ((_ROW,), {}),
    "peek": ((_ROW,), {}),
    "fill": ((torch.ones(1, 3),), {}),
    "lookup": ((torch.tensor([1]),), {}),
    "nested": (({"a": [_ROW, _ROW]}, _ROW), {"k": torch.ones(2)}),
}


def _partitioner(backend: Backend) -> list[XnnpackPartitioner] | None:
    return [XnnpackPartitioner()] if backend == "xnnpack" else None


@functools.cache
def recurrent(backend: Backend) -> bytes:
    """A program with our record."""
    model = Recurrent()
    exported = etshared.export(
        model,
        {
            name: etshared.EntryPoint(getattr(model, name), args, kwargs)
            for name, (args, kwargs) in _CALLS.items()
        },
    )
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=_partitioner(backend)
    )
    return edge.to_executorch().buffer


class _Method(torch.nn.Module):
    """One method of a module as forward, with the module's own names."""

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        super().__init__()
        self._parameters = module._parameters
        self._buffers = module._buffers
        self._modules = module._modules
        self.forward = getattr(module, name)


def _stock(
    model: torch.nn.Module,
    calls: dict[str, tuple[object, ...]],
    backend: Backend = "portable",
    dynamic_shapes: object = None,
    **config: object,
) -> ExecutorchProgramManager:
    model.requires_grad_(False)
    programs = {
        name: export_one(_Method(model, name), args, dynamic_shapes=dynamic_shapes)
        for name, args in calls.items()
    }
    edge = to_edge_transform_and_lower(programs, partitioner=_partitioner(backend))
    return edge.to_executorch(ExecutorchBackendConfig(**config))


@functools.cache
def stock_recurrent(backend: Backend, initialised: bool = False) -> bytes:
    """A program that ExecuTorch alone made, with shared mutable buffers."""
    calls = {name: _CALLS[name][0] for name in ("forward", "peek")}
    passes = [InitializedMutableBufferPass(["hidden"])] if initialised else []
    return _stock(
        Recurrent(),
        calls,
        backend,
        passes=passes,
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
    ).buffer


class Shapes(torch.nn.Module):
    def forward(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]:
        return x.reshape(-1, 2) * 2, x.shape[0], x.view(-1), torch.cat([x, x])


@functools.cache
def dynamic(planned: bool) -> bytes:
    """Up to ten rows; inputs and outputs in the caller's memory if not planned."""
    return _stock(
        Shapes(),
        {"forward": (torch.ones(6, 4),)},
        dynamic_shapes=({0: Dim("rows", min=2, max=10)},),
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=planned, alloc_graph_output=planned
        ),
    ).buffer


class Bounded(torch.nn.Module):
    """Two dimensions that go together, one of its own, one that is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def encode(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x.sum(1) * y


@functools.cache
def bounded(backend: Backend) -> bytes:
    """``x`` has 2 to 16 rows of 8, ``y`` 1 to 5 rows as long as ``x`` has rows."""
    model = Bounded()
    rows, batch = Dim("rows", min=2, max=16), Dim("batch", min=1, max=5)
    entry_point = etshared.EntryPoint(
        model.encode,
        (torch.ones(6, 8), torch.ones(3, 6)),
        dynamic_shapes={"x": {0: rows}, "y": {0: batch, 1: rows}},
    )
    exported = etshared.export(model, {"encode": entry_point})
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=_partitioner(backend)
    )
    return edge.to_executorch().buffer


class Mixed(torch.nn.Module):
    """Inputs and outputs of many kinds."""

    def scaled(self, x: torch.Tensor, k: int, f: float, b: bool, none: None) -> object:
        return x * k + f if b else x

    def shifted(self, x: torch.Tensor, k: int, f: float) -> torch.Tensor:
        return x * k + f

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        return x + x

    def image(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg()

    def constants(self) -> torch.Tensor:
        return torch.arange(3) + 1

    def identity(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x * 2

    def pair(self, x: torch.Tensor) -> Pair:
        return Pair(x + 1, x + 2)

    def point(self, p: Point) -> Point:
        return Point(p.y, p.x)

    def empty(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


_IMAGE = torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)


@functools.cache
def mixed() -> bytes:
    model = Mixed()
    x = torch.ones(2, 3)
    calls: dict[str, tuple[object, ...]] = dict(
        halves=(torch.ones(2, dtype=torch.bfloat16),),
        image=(_IMAGE,),
        constants=(),
        pair=(x,),
        point=(Point(x, x),),
        empty=(torch.ones(0, 3),),
    )
    exported = etshared.export(
        model,
        {
            name: etshared.EntryPoint(getattr(model, name), args)
            for name, args in calls.items()
        },
    )
    return etshared.to_edge_transform_and_lower(exported).to_executorch().buffer


@functools.cache
def fixed() -> bytes:
    """Numbers among the inputs, with our record."""
    model = Mixed()
    inputs = (torch.ones(2, 3), 3, 0.5)
    exported = etshared.export(
        model, {"shifted": etshared.EntryPoint(model.shifted, inputs)}
    )
    return etshared.to_edge_transform_and_lower(exported).to_executorch().buffer


@functools.cache
def frozen() -> bytes:
    """Numbers, a flag and None among the inputs; no record."""
    return _stock(Mixed(), {"scaled": (torch.ones(2, 3), 3, 0.5, True, None)}).buffer


@functools.cache
def identity(planned: bool) -> bytes:
    return _stock(
        Mixed(),
        {"identity": (torch.ones(2, 3),)},
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=planned, alloc_graph_output=planned
        ),
    ).buffer


class Indexing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("indices", torch.tensor([2, 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.indices]


@functools.cache
def indexing() -> bytes:
    """A stock program whose constant is used in a list of optional tensors only."""
    return _stock(Indexing(), {"forward": (torch.ones(3, 2),)}).buffer


@functools.cache
def unplanned_state() -> bytes:
    """A program whose state has no memory at all."""
    return _stock(
        Recurrent(),
        {"forward": (_ROW,)},
        memory_planning_pass=MemoryPlanningPass(alloc_mutable_buffers=False),
        emit_mutable_buffer_names=True,
    ).buffer
