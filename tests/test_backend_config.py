"""What the user's ExecutorchBackendConfig sets is kept, and state stays shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from eager_comparison import (
    Outcome,
    assert_program_equals,
    call,
    eager_outcomes,
)
from executorch.backends.xnnpack.partition.config.gemm_configs import LinearConfig
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.memory_planning import (
    MemoryPlanningAlgorithmSuite,
    greedy,
    naive,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.tensor import TensorSpec
from torch import Tensor, fx, nn
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.passes.infra.pass_base import PassResult

import etshared_plugin as etshared
from etshared_plugin import EntryPoint, SharedEdgeProgramManager
from etshared_plugin.errors import MemoryPlanningError
from etshared_plugin.inspection import verify_program


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("h", torch.full((1, 8), 0.5))
        self.register_buffer("k", torch.ones(4, 8))
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x) + self.h)
        self.h.copy_(torch.sin(y))
        return y * 2 + self.mask[3]

    def update(self, pos: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        self.k.index_copy_(0, pos, x)
        return x, x.view(2, 4)

    def read(self) -> Tensor:
        return self.k.sum(0) - self.h * 3


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def entry_points(model: Model) -> dict[str, EntryPoint]:
    x, pos = torch.ones(1, 8), torch.tensor([1])
    return {
        "forward": EntryPoint(model.forward, (x,)),
        "update": EntryPoint(model.update, (pos, x)),
        "read": EntryPoint(model.read),
    }


@pytest.fixture(scope="module", params=["portable", "xnnpack"])
def edge(
    request: pytest.FixtureRequest, model: Model, entry_points: dict[str, EntryPoint]
) -> SharedEdgeProgramManager:
    return etshared.to_edge_transform_and_lower(
        etshared.export(model, entry_points),
        partitioner=[XnnpackPartitioner()] if request.param == "xnnpack" else None,
    )


@pytest.fixture(scope="module")
def outcomes(model: Model, entry_points: dict[str, EntryPoint]) -> list[Outcome]:
    torch.manual_seed(1)
    x, y = torch.randn(2, 1, 8)
    calls = [
        call("read"),
        call("forward", x),
        call("update", torch.tensor([2]), y),
        call("read"),
        call("forward", y),
        call("update", torch.tensor([0]), x),
        call("read"),
    ]
    return eager_outcomes(model, entry_points, calls)


class CustomPool(MemoryPlanningPass):
    """Puts the results of some operators into a pool of their own."""

    def __init__(self, mem_id: int) -> None:
        super().__init__()
        self.pool = mem_id

    def run(
        self,
        graph_module: fx.GraphModule,
        graph_signature: ExportGraphSignature | None = None,
    ) -> PassResult:
        for node in graph_module.graph.nodes:
            name = getattr(node.target, "__name__", "")
            if node.op == "call_function" and name.startswith(("sum", "mul", "sin")):
                node.meta["spec"].mem_id = self.pool
        return super().run(graph_module, graph_signature)


def side_by_side(
    alignment: int,
    specs: Iterable[TensorSpec],
    graph_module: fx.GraphModule,
    graph_signature: ExportGraphSignature,
    extra_padding: int,
) -> list[int]:
    """Reuse no memory, keep the last first, and larger tensors in a pool of theirs."""
    sizes = [0, 0, 0]
    for spec in reversed(list(specs)):
        spec.realign(alignment)
        spec.mem_id = 2 if spec.allocated_memory > 64 else 1
        spec.mem_offset = sizes[spec.mem_id]
        sizes[spec.mem_id] += spec.allocated_memory
    return [0, *(size + extra_padding for size in sizes[1:])]


def with_io(alloc_inputs: bool, alloc_outputs: bool) -> ExecutorchBackendConfig:
    return ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=alloc_inputs, alloc_graph_output=alloc_outputs
        )
    )


CONFIGS: dict[str, Callable[[], ExecutorchBackendConfig]] = {
    "default": ExecutorchBackendConfig,
    "inputs unplanned": lambda: with_io(False, True),
    "outputs unplanned": lambda: with_io(True, False),
    "inputs and outputs unplanned": lambda: with_io(False, False),
    "sharing asked for": lambda: ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True)
    ),
    "a pass for each entry point": lambda: ExecutorchBackendConfig(
        memory_planning_pass={
            "forward": MemoryPlanningPass(alloc_graph_input=False),
            "read": MemoryPlanningPass(alloc_graph_output=False),
            "update": MemoryPlanningPass(),
        }
    ),
    "pool 2": lambda: ExecutorchBackendConfig(memory_planning_pass=CustomPool(2)),
    "pool 3": lambda: ExecutorchBackendConfig(memory_planning_pass=CustomPool(3)),
    "pool of one entry point": lambda: ExecutorchBackendConfig(
        memory_planning_pass={"read": CustomPool(4)}
    ),
    "an algorithm of the caller": lambda: ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(memory_planning_algo=side_by_side)
    ),
    "the best of two algorithms": lambda: ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(
            memory_planning_algo=MemoryPlanningAlgorithmSuite([naive, greedy]),
            alignment=64,
        )
    ),
    "names": lambda: ExecutorchBackendConfig(emit_mutable_buffer_names=True),
    "constants propagated": lambda: ExecutorchBackendConfig(
        do_quant_fusion_and_const_prop=True
    ),
    "in place": lambda: ExecutorchBackendConfig(run_reinplace_pass=True),
    "views copied": lambda: ExecutorchBackendConfig(remove_view_copy=False),
    "delegates inside": lambda: ExecutorchBackendConfig(
        extract_delegate_segments=False
    ),
    "alignments": lambda: ExecutorchBackendConfig(
        segment_alignment=4096, constant_tensor_alignment=64, delegate_alignment=64
    ),
}


def test_stack_traces_may_be_emitted(
    model: Model, entry_points: dict[str, EntryPoint], outcomes: list[Outcome]
) -> None:
    # Not with delegates: 1.5.1 counts them wrongly.
    edge = etshared.to_edge_transform_and_lower(etshared.export(model, entry_points))
    program = edge.to_executorch(ExecutorchBackendConfig(emit_stacktrace=True))
    assert_program_equals(bytes(program.buffer), outcomes)


@pytest.mark.parametrize("name", CONFIGS)
def test_state_is_shared_under_the_callers_config(
    edge: SharedEdgeProgramManager, outcomes: list[Outcome], tmp_path: Path, name: str
) -> None:
    config = CONFIGS[name]()
    before = _settings(config)
    path = tmp_path / "program.pte"
    edge.to_executorch(config).save(str(path))
    assert _settings(config) == before
    assert_program_equals(path.read_bytes(), outcomes)
    assert verify_program(path) == ()


def _settings(config: ExecutorchBackendConfig) -> dict[str, Any]:
    settings = vars(config).copy()
    planners = settings["memory_planning_pass"]
    for planner in planners.values() if isinstance(planners, dict) else [planners]:
        settings[f"planner {id(planner)}"] = vars(planner).copy()
    return settings


def test_pools_of_the_caller_are_left_to_it(edge: SharedEdgeProgramManager) -> None:
    program = edge.to_executorch(
        ExecutorchBackendConfig(memory_planning_pass=CustomPool(3))
    )
    context = etshared.load(bytes(program.buffer)).context
    assert context is not None
    assert {buffer.mem_id for buffer in context.buffers} == {4}
    kinds = {arena.mem_id: arena.kind.name for arena in context.arenas}
    assert kinds == {1: "ACTIVATIONS", 2: "CUSTOM", 3: "CUSTOM", 4: "SHARED_STATE"}


def test_state_lies_behind_the_pools_of_an_algorithm(
    edge: SharedEdgeProgramManager,
) -> None:
    config = CONFIGS["an algorithm of the caller"]()
    context = etshared.load(bytes(edge.to_executorch(config).buffer)).context
    assert context is not None
    assert {buffer.mem_id for buffer in context.buffers} == {3}


@pytest.mark.parametrize("name", ["default", "pool 3", "a pass for each entry point"])
def test_one_config_serves_several_programs(
    edge: SharedEdgeProgramManager, name: str
) -> None:
    config = CONFIGS[name]()
    small = nn.Module()
    small.register_buffer("n", torch.zeros(2))
    small.forward = MethodType(_count, small)
    other = etshared.to_edge_transform_and_lower(
        etshared.export(small, {"forward": EntryPoint(small.forward, (torch.ones(2),))})
    )
    programs = [bytes(one.to_executorch(config).buffer) for one in (edge, other, edge)]
    alone = [bytes(one.to_executorch(CONFIGS[name]()).buffer) for one in (edge, other)]
    assert programs == [*alone, alone[0]]


def _count(self: nn.Module, x: Tensor) -> Tensor:
    self.n += x
    return self.n * 2


def test_an_entry_point_may_have_several_partitioners(
    model: Model, entry_points: dict[str, EntryPoint], outcomes: list[Outcome]
) -> None:
    edge = etshared.to_edge_transform_and_lower(
        etshared.export(model, entry_points),
        partitioner={
            "forward": [
                XnnpackPartitioner(configs=[LinearConfig]),
                XnnpackPartitioner(),
            ],
            "read": [XnnpackPartitioner(configs=[LinearConfig])],
        },
    )
    program = assert_program_equals(bytes(edge.to_executorch().buffer), outcomes)
    assert program.context is not None
    names = [one.name for one in program.context.entry_points]
    delegates = [names[one.entry_point] for one in program.context.delegates]
    assert delegates == ["forward", "forward"]


def test_a_manager_makes_the_same_program_again(edge: SharedEdgeProgramManager) -> None:
    first = bytes(edge.to_executorch().buffer)
    edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=CustomPool(3)))
    assert bytes(edge.to_executorch().buffer) == first


def test_what_is_no_pass_is_refused(edge: SharedEdgeProgramManager) -> None:
    config = dataclasses.replace(
        ExecutorchBackendConfig(), memory_planning_pass={"read": "greedy"}
    )
    with pytest.raises(MemoryPlanningError, match="of entry point 'read' is a str"):
        edge.to_executorch(config)
