"""The drop-in: plain programs, later transforms and partitioners, other options."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from eager_comparison import assert_program_equals, call, eager_outcomes
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.devtools.etrecord import parse_etrecord
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportPass
from executorch.runtime import Runtime
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import StateError

Partitioners = Sequence[Partitioner]


class Core(nn.Module):
    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("n", torch.full((2,), value))
        self.register_buffer("local", torch.full((2,), 3.0), persistent=False)
        self.register_buffer("table", torch.tensor([1.0, 2.0]))


class Add(nn.Module):
    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        self.core.n += x
        self.core.n.mul_(self.core.table)
        return self.core.linear(self.core.n) + n


class Double(nn.Module):
    """Knows the same module under another name."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.inner = core

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        previous = self.inner.local.clone()
        self.inner.local.copy_(self.inner.n)
        self.inner.n[0] = x[1]
        self.inner.n.mul_(2)
        return self.inner.n + x, previous


class Read(nn.Module):
    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core

    def forward(self) -> dict[str, Tensor]:
        return {"n": self.core.n, "scaled": self.core.local * 2.0 + 1.0}


X, N = torch.tensor([1.0, -3.0]), torch.tensor([7.0, 7.0])

CALLS = [
    call("read"),
    call("add", X, N),
    call("double", 0 * X),
    call("add", 2 * X, N),
    call("double", X),
    call("read"),
    call("add", X, -N),
    call("read"),
]


class Family(nn.Module):
    """All names of the shared buffers, for comparison."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = self.inner = core


def plain_programs(core: Core, functional: bool) -> dict[str, ExportedProgram]:
    programs = {
        "add": torch.export.export(Add(core), (X, N)),
        "double": torch.export.export(Double(core), (X,)),
        "read": torch.export.export(Read(core), ()),
    }
    if functional:
        programs = {n: p.run_decompositions({}) for n, p in programs.items()}
    return programs


@pytest.mark.parametrize("functional", [False, True])
def test_plain_programs_share_the_buffers_of_one_module(
    partitioner: Partitioners, functional: bool
) -> None:
    torch.manual_seed(0)
    core = Core()
    programs = plain_programs(core, functional)
    before = {name: str(program.graph) for name, program in programs.items()}
    values = {name: copy.deepcopy(p.state_dict) for name, p in programs.items()}
    edge = etshared.to_edge_transform_and_lower(programs, partitioner=partitioner)
    family = Family(core)
    entry_points = {
        "add": EntryPoint(Add.forward.__get__(family)),
        "double": EntryPoint(Double.forward.__get__(family)),
        "read": EntryPoint(Read.forward.__get__(family)),
    }
    program = assert_program_equals(
        bytes(edge.to_executorch().buffer),
        eager_outcomes(family, entry_points, CALLS),
    )
    assert set(program.session().state) == {"core.n", "core.local"}
    assert {name: str(program.graph) for name, program in programs.items()} == before
    for name, program in programs.items():
        for fqn, value in values[name].items():
            assert torch.equal(program.state_dict[fqn], value)


def test_a_single_program_is_forward() -> None:
    core = Core()
    edge = etshared.to_edge_transform_and_lower(torch.export.export(Add(core), (X, N)))
    family = Family(core)
    outcomes = eager_outcomes(
        family,
        {"forward": EntryPoint(Add.forward.__get__(family))},
        [call("forward", X, N), call("forward", N, X)],
    )
    assert_program_equals(bytes(edge.to_executorch().buffer), outcomes)


def test_modules_that_only_share_a_name_are_not_made_one() -> None:
    programs = {
        "add": torch.export.export(Add(Core(1.0)), (X, N)),
        "read": torch.export.export(Read(Core(1.0)), ()),
    }
    with pytest.raises(
        StateError,
        match="'core.n' of entry point 'add' and 'core.n' of entry point 'read' are"
        " different tensors",
    ):
        etshared.to_edge_transform_and_lower(programs)
    shared = etshared.to_edge_transform_and_lower(programs, state=["core.n"])
    session = etshared.load(bytes(shared.to_executorch().buffer)).session()
    session.add(X, N)
    assert torch.equal(session.read()["n"], (1 + X) * torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(
    ("buffer", "found"),
    [(torch.zeros(3), r"float32\[3\]"), (torch.zeros(2).int(), r"int32\[2\]")],
)
def test_one_name_with_another_shape_or_dtype_is_refused(
    buffer: Tensor, found: str
) -> None:
    other = Core()
    other.n = buffer
    programs = {
        "add": torch.export.export(Add(Core()), (X, N)),
        "read": torch.export.export(Read(other), ()),
    }
    message = (
        r"buffer 'core.n' of entry point 'add' and 'core.n' of entry point 'read' are"
        rf" float32\[2\] and {found}"
    )
    for state in (None, ["core.n"]):
        with pytest.raises(StateError, match=message):
            etshared.to_edge_transform_and_lower(programs, state=state)


class Hiding(nn.Module):
    """Knows the memory of its buffer under another name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        memory = torch.zeros(2)
        self.register_buffer("h", memory)
        if kind == "attribute":
            self.other = memory[:1]
        elif kind == "buffer":
            self.register_buffer("other", memory[:1])
        else:
            self.other = nn.Parameter(memory, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.h += x
        return self.other + x


@pytest.mark.parametrize("kind", ["attribute", "buffer", "parameter"])
def test_other_names_for_the_memory_of_state_are_refused(kind: str) -> None:
    program = torch.export.export(Hiding(kind), (X,))
    with pytest.raises(
        StateError, match="'forward' uses 'other', which lies in .* shared buffer 'h'"
    ):
        etshared.to_edge_transform_and_lower(program)


class AddTwice(ExportPass):
    """Doubles every addition of two tensors."""

    def call_operator(self, op, args, kwargs, meta):  # noqa: ANN001, ANN201
        result = super().call_operator(op, args, kwargs, meta)
        if op is exir_ops.edge.aten.add.Tensor:
            return super().call_operator(op, (result, result), {}, meta)
        return result


class Exported:
    """Our export, and what the same calls give with additions doubled."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.core = Core()
        self.family = Family(self.core)
        self.entry_points = {
            "add": EntryPoint(Add.forward.__get__(self.family), (X, N)),
            "double": EntryPoint(Double.forward.__get__(self.family), (X,)),
            "read": EntryPoint(Read.forward.__get__(self.family)),
        }


@pytest.fixture(scope="module")
def exported() -> Exported:
    return Exported()


@pytest.fixture(scope="module")
def programs(exported: Exported) -> Mapping[str, ExportedProgram]:
    return etshared.export(exported.family, exported.entry_points)


@pytest.fixture(scope="module")
def edge(programs: Mapping[str, ExportedProgram]) -> etshared.SharedEdgeProgramManager:
    return etshared.to_edge_transform_and_lower(programs)


def test_partitioning_later_keeps_sharing(
    exported: Exported, edge: etshared.SharedEdgeProgramManager
) -> None:
    outcomes = eager_outcomes(exported.family, exported.entry_points, CALLS)
    for partitioner in (
        XnnpackPartitioner(),
        {"add": XnnpackPartitioner(), "read": [XnnpackPartitioner()] * 2},
    ):
        lowered = copy.deepcopy(edge).to_backend(partitioner)
        program = assert_program_equals(bytes(lowered.to_executorch().buffer), outcomes)
        assert program.context is not None
        assert {d.backend_id for d in program.context.delegates} == {"XnnpackBackend"}


def test_transforming_keeps_sharing(
    exported: Exported, edge: etshared.SharedEdgeProgramManager
) -> None:
    def doubled(self: Family, x: Tensor) -> tuple[Tensor, Tensor]:
        result, previous = Double.forward(self, x)
        return 2 * result, previous

    transformed = edge.transform({"double": [AddTwice()]}).to_backend(
        XnnpackPartitioner()
    )
    outcomes = eager_outcomes(
        exported.family,
        {**exported.entry_points, "double": EntryPoint(doubled)},
        CALLS,
    )
    assert_program_equals(bytes(transformed.to_executorch().buffer), outcomes)
    passes_at_lowering = etshared.to_edge_transform_and_lower(
        etshared.export(exported.family, exported.entry_points),
        transform_passes={"double": [AddTwice()]},
    )
    assert_program_equals(bytes(passes_at_lowering.to_executorch().buffer), outcomes)


def test_an_etrecord_is_made(
    programs: Mapping[str, ExportedProgram], tmp_path: Path
) -> None:
    edge = etshared.to_edge_transform_and_lower(
        programs, partitioner=[XnnpackPartitioner()], generate_etrecord=True
    )
    executorch_program = edge.to_executorch()
    executorch_program.get_etrecord().save(str(tmp_path / "etrecord.bin"))
    parsed = parse_etrecord(str(tmp_path / "etrecord.bin"))
    assert parsed.edge_dialect_program is not None


def test_constant_methods_stand_beside_entry_points(
    exported: Exported, programs: Mapping[str, ExportedProgram]
) -> None:
    constants = {"version": 3, "names": ["a", "b"], "limits": {"low": 0.5, "on": True}}
    edge = etshared.to_edge_transform_and_lower(programs, constant_methods=constants)
    data = bytes(edge.to_executorch().buffer)
    outcomes = eager_outcomes(exported.family, exported.entry_points, CALLS)
    session = assert_program_equals(data, outcomes).session()
    stock = Runtime.get().load_program(data)
    for name, value in constants.items():
        assert session[name]() == value
        assert stock.load_method(name).execute([]) == pytree.tree_leaves(value)


def test_the_generated_entry_point_may_have_another_name(
    exported: Exported, programs: Mapping[str, ExportedProgram]
) -> None:
    with pytest.raises(StateError, match="'read' has the name of the generated one"):
        etshared.to_edge_transform_and_lower(programs, reset_entry_point="read")
    edge = etshared.to_edge_transform_and_lower(programs, reset_entry_point="init")
    program = assert_program_equals(
        bytes(edge.to_executorch().buffer),
        eager_outcomes(exported.family, exported.entry_points, CALLS),
        reset_entry_point="init",
    )
    assert set(program.entry_points) == {"add", "double", "read"}


def test_without_state_nothing_is_generated() -> None:
    model = nn.Linear(2, 2)
    edge = etshared.to_edge_transform_and_lower(
        etshared.export(model, {"forward": EntryPoint(model.forward, (X,))})
    )
    data = bytes(edge.to_executorch().buffer)
    assert Runtime.get().load_program(data).method_names == {"forward"}
    session = etshared.load(data).session()
    torch.testing.assert_close(session.forward(X), model(X).detach())
    assert len(session.state) == 0


def test_other_dim_order_settings_keep_sharing(exported: Exported) -> None:
    edge: EdgeProgramManager = etshared.to_edge_transform_and_lower(
        etshared.export(exported.family, exported.entry_points),
        compile_config=EdgeCompileConfig(_skip_dim_order=True),
    )
    assert_program_equals(
        bytes(edge.to_executorch().buffer),
        eager_outcomes(exported.family, exported.entry_points, CALLS),
    )
