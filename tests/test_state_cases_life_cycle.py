"""Initial values, resetting, loading, and sessions beside each other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import pytest
import torch
from eager_comparison import (
    Call,
    assert_program_equals,
    call,
    eager_outcomes,
    lower,
)
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.runtime import SharedProgram

Partitioners = Sequence[Partitioner]


class Accumulator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("h", torch.zeros(1, 8))
        self.register_buffer("k_cache", torch.ones(4, 8))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("ramp", torch.arange(6, dtype=torch.float64))
        self.register_buffer("unused", torch.full((3,), 4.0))

    def forward(self, x: Tensor) -> Tensor:
        self.h += x
        self.count += 1
        return self.h

    def reset(self) -> None:
        self.h.zero_()

    def write_row(self, row: Tensor) -> Tensor:
        self.k_cache[0] = row
        self.ramp.mul_(-1)
        return self.k_cache

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.count, self.h, self.ramp

    def set_count(self, value: Tensor) -> None:
        self.count.copy_(value)

    def stateless(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


ONES = torch.ones(1, 8)

ENTRY_POINTS = ["forward", "reset", "write_row", "get", "set_count", "stateless"]


def entry_points_of(model: Accumulator) -> dict[str, EntryPoint]:
    inputs = {
        "forward": (ONES,),
        "write_row": (ONES[0],),
        "set_count": (torch.tensor(0),),
        "stateless": (ONES,),
    }
    return {
        name: EntryPoint(getattr(model, name), inputs.get(name, ()))
        for name in ENTRY_POINTS
    }


@pytest.fixture(scope="module")
def model() -> Accumulator:
    torch.manual_seed(0)
    return Accumulator()


@functools.cache
def lowered(model: Accumulator, partitioners: type[Partitioner] | None) -> bytes:
    return lower(
        model, entry_points_of(model), [partitioners()] if partitioners else ()
    )


@pytest.fixture
def data(model: Accumulator, partitioner: Partitioners) -> bytes:
    return lowered(model, type(partitioner[0]) if partitioner else None)


@pytest.fixture
def program(data: bytes) -> SharedProgram:
    return etshared.load(data, tensors="torch")


@pytest.mark.parametrize(
    "names",
    [
        ["forward", "forward", "reset", "forward"],
        ["get", "forward", "get", "set_count", "get", "forward", "get"],
        ["write_row", "get", "write_row", "stateless", "reset", "get"],
        ["stateless", "get", "reset", "forward", "write_row", "forward", "get"],
    ],
)
def test_calls_equal_eager(model: Accumulator, data: bytes, names: list[str]) -> None:
    inputs = {
        "forward": ONES,
        "write_row": 5 * ONES[0],
        "set_count": torch.tensor(7),
        "stateless": ONES,
    }
    calls = [call(name, *([inputs[name]] if name in inputs else [])) for name in names]
    assert_program_equals(data, eager_outcomes(model, entry_points_of(model), calls))


def test_forward_and_reset(program: SharedProgram) -> None:
    session = program.session()
    results = [session.forward(ONES), session.forward(ONES)]
    session["reset"]()
    results.append(session.forward(ONES))
    assert [result.unique().item() for result in results] == [1.0, 2.0, 1.0]


def test_a_partly_written_buffer_keeps_its_other_initial_values(
    program: SharedProgram,
) -> None:
    written = program.session().write_row(5 * ONES[0])
    assert torch.equal(written, torch.tensor([5.0, 1, 1, 1])[:, None].expand(4, 8))


def test_a_reader_before_any_writer_reads_the_initial_value(
    program: SharedProgram,
) -> None:
    session = program.session()
    assert session.get()[0] == 5
    session.set_count(torch.tensor(7))
    assert session.get()[0] == 7


@pytest.mark.parametrize(
    "load_last", [["get"], ["stateless"], ["get", "stateless", "reset", "write_row"]]
)
def test_loading_later_changes_no_state(
    program: SharedProgram, load_last: list[str]
) -> None:
    session = program.session()
    session.forward(ONES)
    session.forward(ONES)
    session.load(*load_last)
    assert session.get()[0] == 7
    session.load()
    assert session.get()[0] == 7


def test_a_session_ends_without_the_state_of_others(program: SharedProgram) -> None:
    session = program.session()
    session.forward(ONES)
    session.forward(ONES)
    saved = session.snapshot()
    del session
    again = program.session()
    assert again.get()[0] == 5
    again.restore(saved)
    again.load()
    assert again.get()[0] == 7
    again["reset"]()  # the model's own
    assert again.get()[0] == 7
    assert torch.count_nonzero(again.get()[1]) == 0


def test_resetting_brings_initial_values_back(program: SharedProgram) -> None:
    session = program.session()
    for one in (call("forward", ONES), call("write_row", ONES[0])):
        session[one.name](*one.args)
    etshared.Session.reset(session)
    count, h, ramp = session.get()
    assert count == 5
    assert torch.equal(h, torch.zeros(1, 8))
    assert torch.equal(ramp, torch.arange(6, dtype=torch.float64))
    assert torch.equal(session.state["k_cache"], torch.ones(4, 8))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_load_order_is_without_effect(
    program: SharedProgram, model: Accumulator, order: tuple[int, ...]
) -> None:
    session = program.session()
    names = ["forward", "get", "stateless"]
    for position in order:
        session.load(names[position])
        session.forward(ONES)
    assert session.get()[0] == 5 + len(order)


def test_sessions_beside_each_other_equal_each_alone(program: SharedProgram) -> None:
    steps = [torch.randn(1, 8) for _ in range(4)]

    def run(session: etshared.Session, x: Tensor) -> list[Tensor]:
        return [session.forward(x), session.stateless(x), *session.get()]

    alone = [[run(session, x) for x in xs] for session, xs in _sessions(program, steps)]
    (a, long), (b, short) = _sessions(program, steps)
    beside = [[run(a, long[0])], [run(b, short[0])]]
    beside[0] += [run(a, x) for x in long[1:]]
    flat = [t for session in alone for results in session for t in results]
    other = [t for session in beside for results in session for t in results]
    assert all(map(torch.equal, flat, other))
    assert a.get()[0] == 8
    assert b.get()[0] == 6
    assert torch.equal(a.state["h"], sum(steps[:3]))
    assert torch.equal(b.state["h"], steps[3])


def _sessions(
    program: SharedProgram, steps: list[Tensor]
) -> list[tuple[etshared.Session, list[Tensor]]]:
    return [(program.session(), steps[:3]), (program.session(), steps[3:])]


def test_a_buffer_that_no_entry_point_uses_is_no_state(program: SharedProgram) -> None:
    assert set(program.session().state) == {"h", "k_cache", "count", "ramp"}


def test_named_state_may_be_read_only(partitioner: Partitioners) -> None:
    model = Accumulator()
    reader = EntryPoint(model.get)
    data = lower(model, {"get": reader}, partitioner, state=["count", "h"])
    calls: list[Call] = [call("get"), call("get")]
    program = assert_program_equals(data, eager_outcomes(model, {"get": reader}, calls))
    session = program.session()
    session.state["count"] = torch.tensor(11)
    assert session.get()[0] == 11


class Inverse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.tensor([-0.0, -0.0]))

    def get(self) -> Tensor:
        return 1 / self.h

    def set(self, h: Tensor) -> None:
        self.h.copy_(h)


def test_a_negative_zero_keeps_its_sign() -> None:
    model = Inverse()
    entry_points = {
        "get": EntryPoint(model.get),
        "set": EntryPoint(model.set, (torch.ones(2),)),
    }
    calls = [call("get"), call("set", torch.zeros(2)), call("get")]
    assert_program_equals(
        lower(model, entry_points), eager_outcomes(model, entry_points, calls)
    )
