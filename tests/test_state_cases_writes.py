"""Every kind of write reaches every entry point, in the order of eager calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

from etshared_plugin import EntryPoint, export
from etshared_plugin.errors import EntryPointError

Partitioners = Sequence[Partitioner]


class OnlyCopies(nn.Module):
    """The copy is the last operator, and nothing is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(2, 3))
        self.register_buffer("one", torch.tensor([5.0]))
        self.register_buffer("scalar", torch.tensor(6))

    def set(self, v: Tensor) -> None:
        self.h.copy_(v)

    def set_one(self, v: Tensor) -> None:
        self.one.copy_(v)

    def set_scalar(self, v: Tensor) -> None:
        self.scalar.copy_(v)

    def set_all(self, v: Tensor) -> None:
        self.h.copy_(v)
        self.one.copy_(v[0, :1])
        self.scalar.fill_(9)

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.h, self.one, self.scalar


def test_a_copy_is_kept_though_nothing_is_returned(partitioner: Partitioners) -> None:
    model = OnlyCopies()
    v = torch.arange(6.0).reshape(2, 3)
    assert_equals_eager(
        model,
        {
            "set": EntryPoint(model.set, (v,)),
            "set_one": EntryPoint(model.set_one, (torch.zeros(1),)),
            "set_scalar": EntryPoint(model.set_scalar, (torch.tensor(0),)),
            "set_all": EntryPoint(model.set_all, (v,)),
            "get": EntryPoint(model.get),
        },
        [
            call("get"),
            call("set", v),
            call("get"),
            call("set_one", torch.tensor([3.0])),
            call("set_scalar", torch.tensor(-4)),
            call("get"),
            call("set_all", v + 1),
            call("get"),
        ],
        partitioner,
    )


class Registers(nn.Module):
    """Buffers that are copied to one another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([1.0, 10.0]))
        self.register_buffer("b", torch.tensor([2.0, 20.0]))
        self.register_buffer("c", torch.tensor([3.0, 30.0]))

    def swap(self) -> tuple[Tensor, Tensor]:
        held = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(held)
        return self.a, self.b

    def swap_names(self) -> tuple[Tensor, Tensor]:
        self.a, self.b = self.b, self.a
        return self.a, self.b

    def snapshot(self) -> tuple[Tensor, Tensor]:
        self.b.copy_(self.a)
        return self.a, self.b

    def rotate(self, x: Tensor) -> None:
        self.b.copy_(self.a)
        self.a.copy_(x)

    def shift(self, x: Tensor) -> Tensor:
        last = self.c.clone()
        self.c.copy_(self.b)
        self.b.copy_(self.a)
        self.a.copy_(x)
        return last

    def spread(self, x: Tensor) -> Tensor:
        self.a.copy_(x)
        self.b.copy_(x)
        self.c = x + 1
        return x

    def previous(self, x: Tensor) -> Tensor:
        before, self.c = self.c, x
        return before - self.a

    def get(self) -> list[Tensor]:
        return [self.a, self.b, self.c]


def test_buffers_are_copied_to_one_another_in_order(partitioner: Partitioners) -> None:
    model = Registers()
    x = torch.tensor([9.0, 90.0])
    entry_points = {
        name: EntryPoint(getattr(model, name), args)
        for name, args in {
            "swap": (),
            "swap_names": (),
            "snapshot": (),
            "rotate": (x,),
            "shift": (x,),
            "spread": (x,),
            "previous": (x,),
            "get": (),
        }.items()
    }
    mixed = ["swap", "snapshot", "rotate", "swap_names", "shift", "previous", "spread"]
    calls = [
        call(name, *(step * x for _ in entry_points[name].args))
        for step, name in enumerate(
            itertools.chain(mixed, reversed(mixed), ["shift", "shift", "swap_names"])
        )
    ]
    assert_equals_eager(
        model,
        entry_points,
        [one for pair in zip(calls, itertools.repeat(call("get"))) for one in pair],
        partitioner,
    )


class Streaming(nn.Module):
    """A convolution over what came before: the buffer's new value is a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 3, 3)
        self.register_buffer("before", torch.zeros(1, 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.before, x], dim=2)
        self.before.copy_(y[:, :, -2:])
        return self.conv(y)

    def reset(self) -> None:
        self.before.zero_()


def test_a_slice_of_an_intermediate_value_becomes_state(
    partitioner: Partitioners,
) -> None:
    model = Streaming()
    chunks = torch.randn(3, 1, 4, 5)
    calls = [call("forward", chunk) for chunk in chunks]
    program = assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (chunks[0],)),
            "reset": EntryPoint(model.reset),
        },
        [*calls, call("reset"), *calls],
        partitioner,
    )
    session = program.session()
    whole = torch.cat([torch.zeros(1, 4, 2), *chunks], dim=2)
    torch.testing.assert_close(
        torch.cat([session.forward(chunk) for chunk in chunks], dim=2),
        model.conv(whole).detach(),
    )


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(10, 20))

    def set(self, data: Tensor) -> None:
        self.cache[: data.shape[0], : data.shape[1]] = data

    def read(self) -> Tensor:
        return self.cache


def test_a_slice_of_dynamic_size_is_written(partitioner: Partitioners) -> None:
    model = Block()
    rows, columns = torch.export.Dim("rows", max=10), torch.export.Dim("cols", max=19)
    assert_equals_eager(
        model,
        {
            "set": EntryPoint(
                model.set,
                (torch.ones(3, 4),),
                dynamic_shapes={"data": {0: rows, 1: columns}},
            ),
            "read": EntryPoint(model.read),
        },
        [
            call("set", torch.ones(3, 4)),
            call("read"),
            call("set", torch.full((2, 2), 2.0)),
            call("read"),
            call("set", torch.full((10, 19), 3.0)),
            call("set", torch.full((1, 19), 4.0)),
            call("read"),
        ],
        partitioner,
    )


class Views(nn.Module):
    """Writes through views, indices and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2, 4))

    def through_views(self, x: Tensor) -> Tensor:
        upper, lower = self.h.chunk(2)
        upper.add_(x)
        lower[0, 1:3].mul_(2).sub_(x[1:3])
        self.h.view(-1)[3] = 9
        return self.h.t()

    def roll(self) -> Tensor:
        self.h = torch.roll(self.h, 1, 1)
        return self.h.sum()

    def column(self, position: Tensor, x: Tensor) -> Tensor:
        self.h[:, position] = x
        return self.h

    def masked(self, mask: Tensor) -> list[Tensor]:
        self.h.masked_fill_(mask, -1.0)
        self.h[~mask] = 5.0
        return [self.h[0], self.h[0], mask]


def test_writes_go_through_views_indices_and_masks(partitioner: Partitioners) -> None:
    model = Views()
    x, one, column = torch.arange(4.0), torch.tensor([1]), torch.full((2, 1), 2.0)
    mask = torch.tensor([[True, False, True, False]] * 2)
    program = assert_equals_eager(
        model,
        {
            "through_views": EntryPoint(model.through_views, (x,)),
            "roll": EntryPoint(model.roll),
            "column": EntryPoint(model.column, (one, column)),
            "masked": EntryPoint(model.masked, (mask,)),
        },
        [
            call("through_views", x),
            call("roll"),
            call("column", one + 1, column),
            call("through_views", -x),
            call("masked", mask),
            call("roll"),
            call("column", one - 1, 3 * column),
            call("masked", ~mask),
        ],
        partitioner,
    )
    session = program.session()
    written = session.column(one + 1, column)
    assert torch.equal(written, torch.tensor([0.0, 0.0, 2.0, 0.0]).expand(2, 4))


class Ring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position", torch.tensor([1]))

    def back(self, x: Tensor, by: Tensor) -> tuple[Tensor, ...]:
        self.position = (self.position - by) % 4
        small = by.to(torch.int8)
        return self.position, (-by) % by, small % -3, x % 0.75, x % by


def test_a_position_in_a_ring_wraps_around_at_zero(partitioner: Partitioners) -> None:
    model = Ring()
    x, by = torch.tensor([-2.5, 0.5]), torch.tensor([3])
    assert_equals_eager(
        model,
        {"back": EntryPoint(model.back, (x, by))},
        [call("back", x, by), call("back", -x, by - 1), call("back", x, by + 4)],
        partitioner,
    )


def test_a_write_into_an_argument_is_refused_at_export() -> None:
    model = OnlyCopies()

    def get_into(root: OnlyCopies, destination: Tensor) -> None:
        destination.copy_(root.h)

    def swap(root: OnlyCopies, destination: Tensor) -> None:
        root.h, old = destination + 0, root.h
        destination.copy_(old)

    for function in (get_into, swap):
        name = function.__name__
        with pytest.raises(
            EntryPointError,
            match=f"'{name}' writes into its argument 'destination'.*return the value",
        ):
            export(model, {name: EntryPoint(function, (torch.zeros(2, 3),))})
