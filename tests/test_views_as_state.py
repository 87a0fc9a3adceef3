"""Buffers that are views of one another, and of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

from etshared_plugin import EntryPoint, export
from etshared_plugin.errors import StateError
from etshared_plugin.lifted.tensor_views import lies_in, overlap, view_of_whole

Partitioners = Sequence[Partitioner]


class Cache(nn.Module):
    """One cache, and keys and values of each layer as views of it."""

    def __init__(self) -> None:
        super().__init__()
        cache = torch.zeros(2, 2, 4, 3)  # key or value, layer, position, channel
        self.layers = nn.ModuleList(nn.Module() for _ in range(2))
        for i, layer in enumerate(self.layers):
            layer.register_buffer("k", cache[0, i])
            layer.register_buffer("v", cache[1, i])
        self.register_buffer("cache", cache)
        self.register_buffer("last", cache[:, :, -1], persistent=False)
        self.register_buffer("count", torch.tensor([0]))

    def append(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            layer.k[self.count] = x
            layer.v.index_copy_(0, self.count, 2 * x)
            x = x + layer.k.sum(0)
        self.count += 1
        return self.cache

    def attend(self, q: Tensor) -> Tensor:
        for layer in self.layers:
            q = torch.softmax(q @ layer.k.T, -1) @ layer.v
        return q

    def scale(self, by: Tensor) -> tuple[Tensor, Tensor]:
        self.cache.mul_(by)
        return self.last, self.layers[1].v

    def mark(self, x: Tensor) -> Tensor:
        self.last.add_(x)
        self.layers[0].v.add_(self.last[1, 0].clone())
        return self.layers[0].v[3]

    def clear(self) -> None:
        self.cache.zero_()
        self.count.zero_()


def test_views_of_one_cache_show_writes_both_ways(partitioner: Partitioners) -> None:
    model = Cache()
    x, q, by = torch.tensor([[1.0, -2.0, 3.0]]), torch.ones(1, 3), torch.tensor(0.5)
    program = assert_equals_eager(
        model,
        {
            "attend": EntryPoint(model.attend, (q,)),
            "append": EntryPoint(model.append, (x,)),
            "scale": EntryPoint(model.scale, (by,)),
            "mark": EntryPoint(model.mark, (x,)),
            "clear": EntryPoint(model.clear),
        },
        [
            call("append", x),
            call("attend", q),
            call("scale", by),
            call("append", -x),
            call("mark", x),
            call("attend", q),
            call("append", 2 * x),
            call("scale", 3 * by),
            call("append", x),
            call("scale", by),
            call("attend", -q),
            call("clear"),
            call("attend", q),
            call("append", x),
        ],
        partitioner,
    )
    session = program.session()
    assert set(session.state) == {"cache", "count"}


class Forms(nn.Module):
    """Views of other shapes, tied ones, and of the memory of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("row", self.linear.weight.data[1])
        self.register_buffer("transposed", self.linear.weight.data.T)
        self.register_buffer("flat", torch.arange(12.0))
        self.register_buffer("box", self.flat.view(1, 3, 4)[:, 1:, 1:3])
        self.register_buffer("odd", self.flat[1::2])
        self.register_buffer("same", self.flat.view(-1))
        self.register_buffer("first", self.flat[0])
        self.register_buffer("grid", self.flat.view(3, 4).t())
        self.tied = nn.Module()
        self.tied.register_buffer("grid", self.grid)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + F.linear(x, self.transposed.T)

    def set_row(self, x: Tensor) -> Tensor:
        self.row.copy_(x)
        self.transposed[0] = 7
        return self.linear.weight

    def set_weight(self, w: Tensor) -> Tensor:
        self.linear.weight.copy_(w)
        return self.row

    def write_views(self, x: Tensor) -> list[Tensor]:
        self.box += x[1:3]
        self.odd.mul_(2)
        self.first.fill_(-1)
        self.tied.grid[:, 2] -= x
        return [self.flat, self.same + self.flat, self.grid, self.box]

    def write_whole(self, x: Tensor) -> list[Tensor]:
        self.flat[4:8] = x
        self.same.add_(1)
        return [self.box, self.odd, self.first, self.tied.grid]


def test_views_of_any_form_show_writes_both_ways(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Forms()
    x, w = torch.tensor([1.0, -2.0, 3.0, 5.0]), torch.randn(3, 4)
    program = assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (x[None],)),
            "set_row": EntryPoint(model.set_row, (x,)),
            "set_weight": EntryPoint(model.set_weight, (w,)),
            "write_views": EntryPoint(model.write_views, (x,)),
            "write_whole": EntryPoint(model.write_whole, (x,)),
        },
        [
            call("forward", x[None]),
            call("set_row", x),
            call("forward", x[None]),
            call("write_views", x),
            call("set_weight", w),
            call("write_whole", x),
            call("forward", 2 * x[None]),
            call("write_views", -x),
            call("set_row", 2 * x),
            call("forward", x[None]),
            call("write_whole", -x),
        ],
        partitioner,
    )
    session = program.session()
    assert set(session.state) == {"flat", "linear.weight"}
    assert torch.equal(session.state["same"], torch.arange(12.0))


class Assigning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[:2])

    def assign_part(self, x: Tensor) -> None:
        self.part = x

    def assign_whole(self) -> None:
        self.whole = self.whole + 1

    def data(self, x: Tensor) -> None:
        self.part.data = x

    def add(self, x: Tensor) -> Tensor:
        self.part += x
        return self.whole


@pytest.mark.parametrize("name", ["assign_part", "assign_whole", "data"])
def test_a_view_that_would_end_to_be_one_is_refused(name: str) -> None:
    model = Assigning()
    x = torch.ones(2)
    entry_points = {
        "add": EntryPoint(model.add, (x,)),
        name: EntryPoint(getattr(model, name), () if name == "assign_whole" else (x,)),
    }
    message = f"'{name}' assigns '(part|whole)', which lies in one memory with"
    with pytest.raises(StateError, match=message):
        export(model, entry_points)


class Pair(nn.Module):
    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def read(self) -> Tensor:
        return self.first.sum() + self.second.sum()

    def write(self, x: Tensor) -> Tensor:
        self.first.add_(x)
        return self.second.sum() + self.first.sum()


def _pairs(memory: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    return {
        "overlapping": (memory[:6], memory[4:]),
        "diagonal": (memory[:9], memory[:9].view(3, 3).diagonal()),
        "other dtype": (memory, memory.view(torch.int32)),
    }


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("overlapping", "'first' and 'second' lie in one memory, of which none is"),
        ("diagonal", "'second' is a view of 'first' that ExecuTorch cannot make"),
        ("other dtype", "'second' is a view of 'first' that ExecuTorch cannot make"),
    ],
)
def test_views_that_cannot_be_made_are_refused_where_they_are_state(
    form: str, message: str
) -> None:
    model = Pair(*_pairs(torch.ones(10))[form])
    x = torch.tensor(1.0)
    with pytest.raises(StateError, match=message):
        export(model, {"write": EntryPoint(model.write, (x,))})
    with pytest.raises(StateError, match=message):
        export(model, {"read": EntryPoint(model.read)}, state=["*"])
    if form != "other dtype":
        assert_equals_eager(model, {"read": EntryPoint(model.read)}, [call("read")])


def test_interleaved_buffers_are_states_of_their_own(
    partitioner: Partitioners,
) -> None:
    memory = torch.ones(3, 4)
    model = Pair(memory[:, :2], memory[:, 2:])
    x = torch.tensor(2.0)
    program = assert_equals_eager(
        model,
        {"write": EntryPoint(model.write, (x,)), "read": EntryPoint(model.read)},
        [call("read"), call("write", x), call("read"), call("write", x), call("read")],
        partitioner,
    )
    assert set(program.session().state) == {"first"}


def test_an_unregistered_view_of_state_is_refused() -> None:
    class Hidden(Assigning):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = self.whole[1:]

        def read(self) -> Tensor:
            return self.hidden * 2

    model = Hidden()
    entry_points = {
        "read": EntryPoint(model.read),
        "add": EntryPoint(model.add, (torch.ones(2),)),
    }
    with pytest.raises(
        StateError, match="'read' uses a tensor that is a view of .*'wh"
    ):
        export(model, entry_points)


@pytest.mark.parametrize(
    "take",
    [
        lambda t: t[1],
        lambda t: t[:, 1:3],
        lambda t: t[..., 3],
        lambda t: t.permute(2, 0, 1),
        lambda t: t.permute(1, 2, 0)[1:, ::2],
        lambda t: t[1:2, :, 1],
        lambda t: t.view(-1)[5:17],
        lambda t: t.view(4, 6)[1:3, ::3].t(),
        lambda t: t[1, 2, 3],
        lambda t: t.unsqueeze(1).transpose(0, 1)[:, :, 0],
    ],
)
def test_views_are_made_of_the_whole(take: Callable[[Tensor], Tensor]) -> None:
    whole = torch.arange(24).view(2, 3, 4)
    part = take(whole)
    view = view_of_whole(whole, part)
    assert view is not None
    made = view(whole)
    assert made.shape == part.shape
    assert made.data_ptr() == part.data_ptr()
    assert torch.equal(made, part)


class DropsOut(nn.Module):
    """Dropout that is switched off returns what it is given, not a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()
        self.register_buffer("h", torch.ones(2))
        self.register_buffer("start", torch.zeros(2))

    def read(self, x: Tensor) -> Tensor:
        y = self.drop(self.h)
        self.h.add_(x)
        return y * 2

    def write(self, x: Tensor) -> Tensor:
        self.drop(self.h).mul_(x)
        return self.drop(x)

    def restart(self) -> None:
        self.h = self.drop(self.start)


def test_dropout_that_is_off_returns_its_input(partitioner: Partitioners) -> None:
    model, x = DropsOut().eval(), torch.tensor([2.0, 3.0])
    names = ["read", "write", "read"]
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (x,)) for name in names},
        [call(name, x) for name in names],
        partitioner,
    )
    with pytest.raises(StateError, match="'restart' makes one tensor of .*'h' and 'st"):
        export(
            model,
            {
                "read": EntryPoint(model.read, (x,)),
                "restart": EntryPoint(model.restart),
            },
        )


def test_overlap_is_of_elements_not_of_ends() -> None:
    t = torch.zeros(4, 4)
    assert overlap(t[1], t[:, 2])
    assert not overlap(t[:, 0], t[:, 1])
    assert not overlap(t[:2], t[2:])
    assert not overlap(t[:0], t)
    assert overlap(t, t.view(torch.int8)[0])
    assert lies_in(t[1], t)
    assert not lies_in(t, t[1])
