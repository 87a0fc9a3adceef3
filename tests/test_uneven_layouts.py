"""State whose elements do not lie in rows, of which reshaping makes copies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import EtsharedError

Partitioners = Sequence[Partitioner]


class Transposed(nn.Module):
    """Keeps copies, or views where eager makes one, beyond a write."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("columns", torch.arange(6.0).reshape(3, 2).T)
        self.register_buffer("rows", torch.arange(6.0).reshape(2, 3))
        image = torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last)
        self.register_buffer("image", image)

    def keep(self, x: Tensor) -> tuple[Tensor, ...]:
        kept = []
        for state in (self.columns, self.rows):
            kept += [state.contiguous(), state.flatten(), state.reshape(6)]
            kept += [state.T.flatten(), state.T.contiguous()]
            state.add_(x)
        return *kept, self.columns

    def write_through(self, x: Tensor) -> Tensor:
        self.columns.reshape(-1).add_(1)  # a copy
        self.columns.T.view(-1)[1:3] *= 2  # a view
        self.columns[:, 1:].copy_(x[:, :2])
        return self.columns @ x.T

    def look(self, x: Tensor) -> tuple[Tensor, ...]:
        flat = self.image.permute(0, 2, 3, 1).view(-1)
        kept = self.image.flatten(1)
        self.image.add_(x)
        last = torch.cond(
            x.sum() > 0, lambda a: a.add_(1).clone(), lambda a: a * 2, (self.image,)
        )
        return flat, kept, last, self.image.contiguous(), flat.reshape(2, -1)

    def assign(self, x: Tensor) -> Tensor:
        self.columns = self.rows.clone() + x
        return self.columns.T.reshape(2, 3)


def test_copies_of_uneven_state_are_copies(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Transposed()
    strides = {name: value.stride() for name, value in model.named_buffers()}
    x, image = torch.randn(2, 3), torch.randn(1, 2, 3, 4)
    assert_equals_eager(
        model,
        {
            "keep": EntryPoint(model.keep, (x,)),
            "write_through": EntryPoint(model.write_through, (x,)),
            "look": EntryPoint(model.look, (image,)),
            "assign": EntryPoint(model.assign, (x,)),
        },
        [
            call("keep", x),
            call("write_through", x),
            call("look", image),
            call("keep", -x),
            call("look", -image),
            call("write_through", 2 * x),
            call("assign", x),
        ],
        partitioner,
    )
    assert {name: value.stride() for name, value in model.named_buffers()} == strides


class Mixed(nn.Module):
    """Weights in columns, written as state and reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3).T)
        self.register_buffer("table", torch.arange(12).reshape(3, 4).T)

    def update(self, x: Tensor) -> Tensor:
        kept = self.weight.reshape(-1)
        self.weight.copy_(self.weight * 0.5 + x)
        self.table[1:3] += kept[:3].long()
        return kept.sum() + self.weight.T.view(-1).mean()

    def read(self, i: Tensor) -> tuple[Tensor, Tensor]:
        return self.table.flatten()[i], torch.take(self.table, i)


def test_parameters_and_integers_may_lie_in_columns(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Mixed()
    x, i = torch.randn(3, 4), torch.tensor([0, 5, 11])
    assert_equals_eager(
        model,
        {
            "update": EntryPoint(model.update, (x,)),
            "read": EntryPoint(model.read, (i,)),
        },
        [call("read", i), call("update", x), call("read", i), call("update", -x)],
        partitioner,
    )


class Strided(nn.Module):
    """Keeps state in columns, with gaps, and several elements in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("columns", torch.arange(6.0).reshape(2, 3).T)
        self.register_buffer("table", torch.zeros(3, 4)[:, :2])
        self.register_buffer("bias", torch.ones(1, 2).expand(3, 2))

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.columns.add_(x)
        chosen = torch.cond(
            x.sum() > 0,
            lambda h: h.T.reshape(-1) * 2,
            lambda h: h.T.view(6) * 3,
            (self.columns,),
        )
        return chosen, self.table.flatten() + self.bias.reshape(-1)

    def write(self, x: Tensor) -> Tensor:
        self.table.add_(x)
        self.table[1:].T.mul_(2)
        return self.table + self.bias

    def windows(self, x: Tensor) -> Tensor:
        return (self.columns + x).as_strided((2, 3), (1, 2))

    def windows_of_branch(self, x: Tensor) -> Tensor:
        def read(h: Tensor) -> Tensor:
            return h.as_strided((6,), (1,)) * 2

        return torch.cond(x.sum() > 0, read, lambda h: h.T.reshape(-1), (self.columns,))

    def write_copy(self, x: Tensor) -> Tensor:
        self.table.flatten().add_(1)
        return self.table + x

    def write_column(self, x: Tensor) -> Tensor:
        self.table[:, 0].ravel().add_(1)
        return self.table + x

    def write_beside(self, x: Tensor) -> Tensor:
        def add(h: Tensor) -> Tensor:
            h.reshape(-1).add_(1)
            return h * 2

        return torch.cond(x.sum() > 0, add, lambda h: h * 3, (self.table,))


def test_state_may_lie_apart(partitioner: Partitioners) -> None:
    model, x = Strided(), torch.ones(3, 2)
    names = ("branch", "write")
    entry_points = {name: EntryPoint(getattr(model, name), (x,)) for name in names}
    calls = [call(name, sign * x) for sign in (1, -2) for name in names]
    assert_equals_eager(model, entry_points, calls, partitioner)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("windows", "as_strided on what comes from 'columns'"),
        ("windows_of_branch", "as_strided on what comes from 'columns'"),
        ("write_copy", "flatten of 'table', in which elements do not lie side"),
        ("write_column", "ravel of 'table', in which elements do not lie side"),
        ("write_beside", "reshape of 'table', in which elements do not lie side"),
    ],
)
def test_what_depends_on_strides_is_refused(name: str, problem: str) -> None:
    model = Strided()
    entry_point = EntryPoint(getattr(model, name), (torch.ones(3, 2),))
    with pytest.raises(EtsharedError, match=f"'{name}' uses .*{problem}"):
        etshared.export(model, {name: entry_point})


class Columns(nn.Module):
    """A column looks the same in any shape, without a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(12.0).reshape(4, 3))
        self.register_buffer("last", self.rows[:, -1])
        self.register_buffer("alone", torch.zeros(4, 1, 3)[..., 1])

    def write(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.last.reshape(2, 2).mul_(2)
        self.last.flatten()[1:].add_(x)
        self.alone.reshape(-1)[1:] -= self.last.reshape_as(self.alone)[1:, 0]
        return self.rows + 1, self.alone * 2

    def fill(self, x: Tensor) -> Tensor:
        self.last.index_fill_(0, self.last.reshape(-1)[:1].long() % 4, 0)
        return self.rows.sum(0) + x


def test_columns_are_reshaped_and_written(partitioner: Partitioners) -> None:
    model, x = Columns(), torch.ones(3)
    names = ("write", "fill")
    entry_points = {name: EntryPoint(getattr(model, name), (x,)) for name in names}
    calls = [call(name, sign * x) for sign in (1, -2) for name in names]
    assert_equals_eager(model, entry_points, calls, partitioner)


class Frames(nn.Module):
    """Warps the frame before, in channels-last layout; a streamed cell beside it."""

    def __init__(self) -> None:
        super().__init__()
        previous = torch.rand(1, 3, 4, 4).to(memory_format=torch.channels_last)
        self.register_buffer("previous", previous)
        self.conv = nn.Conv2d(6, 3, 3, padding=1).to(memory_format=torch.channels_last)
        self.up = nn.ConvTranspose2d(3, 2, 2, stride=2)
        self.register_buffer("history", torch.zeros(3, 1, 2, 8, 8))
        self.cell = nn.LSTMCell(4, 3)
        self.register_buffer("h", torch.zeros(1, 3))
        self.register_buffer("c", torch.zeros(1, 3))
        self.register_buffer("cells", torch.zeros(2, 1, 4))

    def frame(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(torch.cat([x, self.previous], 1))
        self.previous = x.clone()
        up = self.up(y)
        self.history = self.history.roll(-1, 0)
        self.history[-1] = up
        return y, up.mean((2, 3))

    def step(self, x: Tensor) -> Tensor:
        h, c = self.cell(x, (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        self.cells[0, :, :3].copy_(c)
        return h

    def read(self) -> tuple[Tensor, ...]:
        change = self.history[-1] - self.history[0]
        return change, self.previous.permute(0, 2, 3, 1), self.cells


def test_values_may_be_written_to_several_states(partitioner: Partitioners) -> None:
    """XNNPACK fails where a value and a copy of it leave the delegate."""
    torch.manual_seed(0)
    model = Frames().eval()
    x, frame = torch.randn(1, 4), torch.rand(1, 3, 4, 4)
    frame = frame.to(memory_format=torch.channels_last)
    assert_equals_eager(
        model,
        {
            "frame": EntryPoint(model.frame, (frame,)),
            "step": EntryPoint(model.step, (x,)),
            "read": EntryPoint(model.read),
        },
        [
            call("step", x),
            call("frame", frame),
            call("read"),
            call("frame", frame.flip(2)),
            call("step", -x),
            call("read"),
        ],
        partitioner,
    )


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.arange(6.0).reshape(3, 2))
        self.register_buffer("columns", torch.arange(6.0).reshape(2, 3).t())

    def lerp(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        self.mean.lerp_(x.t(), 0.2)
        return torch.lerp(self.mean, x.t(), 0.7), torch.lerp(x.t(), self.mean, -0.5)

    def lerp_each(self, x: Tensor, i: Tensor) -> Tensor:
        self.mean = torch.lerp(self.mean, x.t(), self.columns / 6)
        return self.mean * 2

    def fill(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        self.columns.t().index_fill_(1, i, 2.5)
        filled = self.mean.t().index_fill(-1, i, self.mean[0, 0])
        self.mean = filled.t() + 1
        return x.t().index_fill(0, i[:1], 7), filled


def test_values_beside_transposed_ones_are_as_eager(partitioner: Partitioners) -> None:
    model = Between()
    x, i = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, 0.25]]), torch.tensor([1, -1])
    names = ("lerp", "fill", "lerp_each", "lerp", "lerp_each", "fill")
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (x, i)) for name in set(names)},
        [call(name, x * (n + 1), i - n % 2) for n, name in enumerate(names)],
        partitioner,
    )
