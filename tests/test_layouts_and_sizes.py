"""State and inputs in channels-last layout, of dynamic sizes, and without elements."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn
from torch.export import Dim

from etshared_plugin import EntryPoint

Partitioners = Sequence[Partitioner]


class Vision(nn.Module):
    """A convolution with state in channels-last layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4).eval()
        h = torch.randn(1, 4, 5, 6).to(memory_format=torch.channels_last)
        self.register_buffer("h", h)

    def smooth(self, x: Tensor) -> Tensor:
        self.h = self.h * 0.5 + self.norm(self.conv(x))
        return torch.relu(self.h)

    def add(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.h.add_(self.conv(x))
        return self.h, x.to(memory_format=torch.channels_last)

    def write_slice(self, x: Tensor) -> Tensor:
        self.h[:, 1] = x[:, 0]
        return self.h.mean((2, 3)) + x.mean()

    def get(self) -> Tensor:
        return self.h


@pytest.mark.parametrize(
    ("model_format", "input_format"),
    [
        (torch.contiguous_format, torch.channels_last),
        (torch.channels_last, torch.contiguous_format),
        (torch.channels_last, torch.channels_last),
    ],
)
def test_layouts_make_no_difference(
    partitioner: Partitioners,
    model_format: torch.memory_format,
    input_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    model = Vision().to(memory_format=model_format)
    x = torch.randn(1, 3, 5, 6).to(memory_format=input_format)
    names = ["smooth", "add", "write_slice"]
    weight = model.conv.weight
    assert_equals_eager(
        model,
        {
            **{name: EntryPoint(getattr(model, name), (x,)) for name in names},
            "get": EntryPoint(model.get),
        },
        [
            one
            for step in (1, -2)
            for name in names
            for one in (call(name, step * x), call("get"))
        ],
        partitioner,
    )
    assert model.conv.weight is weight
    assert weight.is_contiguous(memory_format=model_format)


class Mobile(nn.Module):
    """Blocks of mobile networks: many dimensions of size one, constants, state."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(3, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(),
            nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False),
            nn.BatchNorm2d(8),
        )
        self.squeeze = nn.Conv2d(8, 1, 1)
        self.excite = nn.Conv2d(1, 8, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.register_buffer("shift", torch.randn(1, 8, 1, 1))
        self.register_buffer("border", torch.randn(1, 8, 1, 4))
        self.register_buffer("past", torch.randn(1, 8, 4, 4))

    def encode(self, x: Tensor) -> Tensor:
        y = self.block(x)
        pooled = nn.functional.adaptive_avg_pool2d(y, 1)
        y = y * torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))
        self.past = 0.5 * self.past + y + self.shift
        return torch.cat([self.past, self.border], 2)

    def decode(self) -> tuple[Tensor, Tensor]:
        shuffled = nn.functional.pixel_shuffle(self.past, 2)
        return self.up(self.past), shuffled.flatten(1)

    def scale(self, x: Tensor) -> Tensor:
        self.shift.mul_(x.mean((1, 2, 3), keepdim=True))
        return self.shift


@pytest.mark.parametrize("input_format", [torch.channels_last, torch.contiguous_format])
def test_dimensions_of_size_one_have_one_layout(
    partitioner: Partitioners, input_format: torch.memory_format
) -> None:
    torch.manual_seed(0)
    model = Mobile().eval().to(memory_format=torch.channels_last)
    x = torch.randn(1, 3, 8, 8).to(memory_format=input_format)
    gray = torch.randn(1, 1, 3, 3).to(memory_format=input_format)
    assert_equals_eager(
        model,
        {
            "encode": EntryPoint(model.encode, (x,)),
            "decode": EntryPoint(model.decode),
            "scale": EntryPoint(model.scale, (gray,)),
        },
        [call("encode", x), call("decode"), call("scale", gray), call("encode", -x)],
        partitioner,
    )


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm3d(2)
        self.register_buffer("past", torch.randn(1, 2, 3, 4, 5))
        self.register_buffer("fixed", torch.randn(1, 2, 1, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        self.past = torch.cat([self.past[:, :, 1:], self.norm(x)[:, :, :1]], 2)
        return torch.cat([self.past, self.fixed], 2).permute(0, 2, 3, 4, 1)

    def smooth(self, x: Tensor) -> Tensor:
        self.past.lerp_(x, 0.25)
        return self.past.mean((2, 3, 4), keepdim=True) * x[:, :, :1, :1, :1]


def test_volumes_may_be_channels_last(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Volume().eval().to(memory_format=torch.channels_last_3d)
    x = torch.randn(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)
    assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (x,)),
            "smooth": EntryPoint(model.smooth, (x,)),
        },
        [call("forward", x), call("smooth", x), call("forward", -x)],
        partitioner,
    )


class Window(nn.Module):
    """A cache of which a call writes or drops as many rows as its input has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("rows", torch.zeros(2, 8, 3))

    def write(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        self.rows[:, :n] = self.linear(x)
        return self.rows[:, :n] * 2

    def write_last(self, x: Tensor) -> Tensor:
        self.rows[:, -x.shape[1] :] = x
        return self.rows

    def shift(self, x: Tensor) -> Tensor:
        self.rows = torch.cat([self.rows[:, x.shape[1] :], self.linear(x)], 1)
        return self.rows.sum(1)

    def mark(self, n: Tensor) -> Tensor:
        mask = torch.arange(8)[None, :, None] < n
        self.rows = torch.where(mask, self.rows + 1, self.rows)
        return mask


def test_slices_of_dynamic_size_are_written(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Window()
    names = ["write", "write_last", "shift"]
    shapes = {"x": {1: Dim("n", min=1, max=6)}}
    x = torch.randn(2, 3, 3)
    assert_equals_eager(
        model,
        {
            **{
                name: EntryPoint(getattr(model, name), (x,), dynamic_shapes=shapes)
                for name in names
            },
            "mark": EntryPoint(model.mark, (torch.tensor(3),)),
        },
        [
            one
            for n in (3, 1, 6, 2)
            for name in names
            for one in (
                call(name, torch.randn(2, n, 3)),
                call("mark", torch.tensor(n)),
            )
        ],
        partitioner,
    )


class Small(nn.Module):
    """State without elements and without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("scale", torch.tensor(1.0))
        self.register_buffer("count", torch.tensor(2))
        self.register_buffer("flag", torch.tensor(True))

    def update(self, x: Tensor) -> tuple[Tensor, ...]:
        self.empty.add_(x)
        self.scale.mul_(x.sum())
        self.count += 1
        self.flag.logical_not_()
        return self.empty, self.scale, self.count * self.scale, self.flag

    def read(self) -> tuple[Tensor, ...]:
        chosen = torch.where(self.flag, self.scale, -self.scale)
        return self.empty + 1, chosen, torch.cat([self.empty, self.empty])


def test_state_may_have_no_elements_or_dimensions(partitioner: Partitioners) -> None:
    model = Small()
    x = torch.ones(3)
    assert_equals_eager(
        model,
        {"update": EntryPoint(model.update, (x,)), "read": EntryPoint(model.read)},
        [call("read"), call("update", x), call("read"), call("update", -x)],
        partitioner,
    )


class Lists(nn.Module):
    """Operators that return lists of tensors, of as many rows as come in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.linear = nn.Linear(4, 12)
        self.register_buffer("sums", torch.zeros(4))

    def chunk(self, x: Tensor) -> Tensor:
        query, key, value = self.linear(x).chunk(3, dim=-1)
        self.sums += key.sum(0)
        return query - value * self.sums

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, rest = x.split([1, 3], dim=1)
        return first * 2, rest + self.sums[1:]

    def unbind(self, x: Tensor) -> Tensor:
        a, b, c, d = x.unbind(1)
        return a * b - c * d + self.sums.sum()


def test_lists_of_tensors_leave_sizes_dynamic(partitioner: Partitioners) -> None:
    model = Lists()
    x = torch.linspace(-1, 1, 20).reshape(5, 4)
    rows = Dim("rows", min=1, max=16)
    names = ("chunk", "split", "unbind")
    entry_points = {
        name: EntryPoint(getattr(model, name), (x,), dynamic_shapes=({0: rows},))
        for name in names
    }
    sizes = [x, x[:1], torch.linspace(0, 2, 64).reshape(16, 4)]
    calls = [call(name, given) for given in sizes for name in names]
    program = assert_equals_eager(model, entry_points, calls, partitioner)
    assert program.context is not None
    for one in program.context.entry_points:
        if not one.generated:
            assert [i.max_sizes for i in one.inputs] == [(16, 4)]
            assert [i.min_sizes for i in one.inputs] == [(1, 4)]
