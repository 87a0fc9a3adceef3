"""Delegates never keep shared state, in this package's flow and in the stock one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch.export import ExportedProgram, export
from torch.export.graph_signature import InputKind
from torch.nn import functional

import etshared_plugin as etshared
from etshared_plugin.backends.xnnpack import SharedXnnpackPartitioner
from etshared_plugin.errors import LoweringError, PartitionError


class Learner(torch.nn.Module):
    """``set`` writes the weight with which ``forward`` multiplies."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.register_buffer("W", torch.randn(4, 4))
        self.linear = torch.nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.linear(x), self.W)

    def set(self, w: torch.Tensor) -> torch.Tensor:
        self.W.copy_(w)
        return w + 1


class _Set(torch.nn.Module):
    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.register_buffer("W", learner.W)

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        self.W.copy_(w)
        return w + 1


def programs(learner: Learner) -> dict[str, ExportedProgram]:
    return {
        "forward": export(learner, (torch.ones(1, 4),)),
        "set": export(_Set(learner), (torch.ones(4, 4),)),
    }


def _exported(learner: Learner) -> etshared.ExportedEntryPoints:
    return etshared.export(
        learner,
        {
            "forward": etshared.EntryPoint(learner.forward, (torch.ones(1, 4),)),
            "set": etshared.EntryPoint(learner.set, (torch.ones(4, 4),)),
        },
    )


def placeholder_kinds(edge: EdgeProgramManager, name: str) -> dict[str, InputKind]:
    specs = edge.exported_program(name).graph_signature.input_specs
    return {str(spec.target): spec.kind for spec in specs if spec.target}


def run_stock(edge: EdgeProgramManager, w: torch.Tensor) -> torch.Tensor:
    """Call ``set`` and then ``forward`` as stock ExecuTorch plans and runs them."""
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
        emit_mutable_buffer_names=True,
    )
    program = Runtime.get().load_program(bytes(edge.to_executorch(config).buffer))
    program.load_method("set").execute([w])
    (result,) = program.load_method("forward").execute([torch.ones(1, 4)])
    return result.clone()


STATE_KEEPERS: dict[str, Callable[[], Partitioner]] = {
    "any": lambda: etshared.SharedStatePartitioner(XnnpackPartitioner(), state=["W"]),
    "xnnpack": lambda: SharedXnnpackPartitioner(state=["W"]),
    "per operator": lambda: SharedXnnpackPartitioner(state=["W"], per_op_mode=True),
}


@pytest.mark.parametrize("keeper", STATE_KEEPERS)
def test_a_stock_flow_does_not_freeze_state(keeper: str) -> None:
    learner, w = Learner(), torch.arange(16.0).reshape(4, 4)
    edge = to_edge_transform_and_lower(
        programs(learner), partitioner=[STATE_KEEPERS[keeper]()]
    )
    assert placeholder_kinds(edge, "forward")["W"] is InputKind.BUFFER
    found = run_stock(edge, w)
    learner.W.copy_(w)
    torch.testing.assert_close(found, learner(torch.ones(1, 4)))
    delegates = [
        node.name
        for node in edge.exported_program("forward").graph.nodes
        if node.name.startswith("executorch_call_delegate")
    ]
    assert delegates  # the layer with the constant weight


def test_xnnpack_alone_freezes_state() -> None:
    edge = to_edge_transform_and_lower(
        programs(Learner()), partitioner=[XnnpackPartitioner()]
    )
    assert "W" not in placeholder_kinds(edge, "forward")


class _TagsEveryPlaceholder(Partitioner):
    def __init__(self) -> None:
        super().__init__()
        self.inner = XnnpackPartitioner()

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = self.inner.partition(exported_program)
        for node in exported_program.graph.nodes:
            if node.op == "placeholder":
                node.meta["delegation_tag"] = next(iter(result.partition_tags))
        return result


def test_taking_state_is_an_error_in_a_stock_flow() -> None:
    keeper = etshared.SharedStatePartitioner(
        _TagsEveryPlaceholder(), ["W"], method_name="forward"
    )
    with pytest.raises(PartitionError) as raised:
        to_edge_transform_and_lower(
            programs(Learner())["forward"], partitioner=[keeper]
        )
    assert str(raised.value) == (
        "entry point 'forward': _TagsEveryPlaceholder moves shared buffer 'W' into a"
        " delegate, where other entry points cannot see it; tell it to leave mutable"
        " buffers alone"
    )
    assert (raised.value.method_name, raised.value.fqn) == ("forward", "W")


def test_taking_state_is_an_error_in_this_flow() -> None:
    exported = _exported(Learner())
    with pytest.raises(PartitionError, match="_TagsEveryPlaceholder moves") as raised:
        etshared.to_edge_transform_and_lower(
            exported, partitioner={"forward": [_TagsEveryPlaceholder()]}
        )
    assert (raised.value.method_name, raised.value.fqn) == ("forward", "W")
    edge = etshared.to_edge_transform_and_lower(exported)
    with pytest.raises(PartitionError, match="entry point 'set': ") as raised:
        edge.to_backend({"set": _TagsEveryPlaceholder()})
    assert (raised.value.method_name, raised.value.fqn) == ("set", "W")


class _FailsAtAdditions(Partitioner):
    def __init__(self) -> None:
        super().__init__()
        self.inner = XnnpackPartitioner()

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        if any(
            "aten.add." in str(node.target) for node in exported_program.graph.nodes
        ):
            raise RuntimeError("no additions")
        return self.inner.partition(exported_program)


def test_a_partitioner_that_fails_is_an_error_of_the_entry_point() -> None:
    exported = _exported(Learner())
    message = "ExecuTorch cannot lower entry point 'set': RuntimeError: no additions"
    failing = [XnnpackPartitioner(), _FailsAtAdditions()]
    with pytest.raises(LoweringError, match=message) as raised:
        etshared.to_edge_transform_and_lower(exported, partitioner=failing[1:])
    assert raised.value.method_name == "set"
    edge = etshared.to_edge_transform_and_lower(exported)
    with pytest.raises(LoweringError, match=message) as raised:
        edge.to_backend({"forward": failing[:1], "set": failing[1:]})
    assert raised.value.method_name == "set"
    edge.to_backend({"forward": failing})


def test_a_wrapper_without_state_is_checked_too() -> None:
    learner = Learner()
    exported = etshared.export(
        learner, {"set": etshared.EntryPoint(learner.set, (torch.ones(4, 4),))}
    )
    careless = etshared.SharedStatePartitioner(_TagsEveryPlaceholder())
    with pytest.raises(PartitionError, match="shared buffer 'W'"):
        etshared.to_edge_transform_and_lower(exported, partitioner=[careless])


def test_the_xnnpack_partitioner_is_named_by_the_package() -> None:
    assert etshared.SharedXnnpackPartitioner is SharedXnnpackPartitioner
    inner = SharedXnnpackPartitioner(per_op_mode=True).inner
    assert isinstance(inner, XnnpackPartitioner)
