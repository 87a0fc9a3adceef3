"""State written along diagonals, through `as_strided`, and where a tensor says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from eager_comparison import (
    assert_equals_eager,
    assert_program_equals,
    call,
    eager_outcomes,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

from etshared_plugin import EntryPoint, export, to_edge_transform_and_lower
from etshared_plugin.errors import EntryPointError

Partitioners = Sequence[Partitioner]

X = torch.tensor([[1.0, 2.0, -3.0, 0.5]])


class Indexed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("square", torch.arange(16.0).reshape(4, 4))
        self.register_buffer("m", torch.arange(48.0).reshape(4, 3, 4))
        self.register_buffer("row", torch.tensor(1))
        self.register_buffer("line", torch.zeros(1, 4))

    def diagonals(self, x: Tensor) -> Tensor:
        self.square.diagonal().fill_(2.5)
        self.square.diagonal(1)[:2].mul_(2).add_(x[0, :2])
        self.square.diagonal(-2).copy_(x[0, 2:])
        self.m.diagonal(1, 0, 2).add_(x[0, :3])
        return self.square * 2

    def scattered(self, x: Tensor) -> Tensor:
        self.square = torch.diagonal_scatter(self.square, x[0])
        self.square = torch.diagonal_scatter(self.square, x[0, :3], 1, 1, 0)
        self.square.as_strided((2, 2), (5, 2), 1).copy_(x[0, :2] + 1)
        return self.square.diagonal() + 1

    def filled(self, x: Tensor) -> Tensor:
        self.square.fill_diagonal_(3.0)
        self.m[:, :, 0].fill_diagonal_(2.0)
        self.m.view(12, 4).fill_diagonal_(1.5, wrap=True)
        self.m.view(-1)[:27].view(3, 3, 3).fill_diagonal_(4.0)
        self.line.t().copy_(x.t().flip(0))
        self.line.index_fill_(-1, self.row, 0.5)
        return self.m * x + self.line

    def read_last(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.square.add_(x)
        last = self.square[self.row]
        chosen = self.square[1:, self.row]
        self.row.add_(1).remainder_(3)
        return last * 2 + chosen.sum(), self.square[self.row]

    def rows(self, x: Tensor) -> Tensor:
        i = self.row
        self.m[i] = 2.5
        self.m[i - 3, ..., 2] = x[0, :3]
        self.m[..., i, 1:3] = x[:, :2]
        self.m[2, i] = x
        self.m[1:, 1, i.int()] = x[0, :3].double()
        self.m[:, None, i] = x
        self.square[i, i] = 7
        self.m[i].add_(x)
        self.row = (i + 1) % 3
        return self.m + self.m[i, 0] + self.m[:, :1, i.item(), None]


def test_state_is_written_where_indices_say(partitioner: Partitioners) -> None:
    model = Indexed()
    names = ["diagonals", "rows", "read_last", "filled", "scattered"]
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (X,)) for name in names},
        [call(name, step * X) for step in (1, -2, 3) for name in names],
        partitioner,
    )


class Typed(nn.Module):
    """Holds a position in a tensor of one dimension, and takes others."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def step(self, x: Tensor) -> Tensor:
        row = self.table[self.position.item()]
        self.table[self.position.item()] = x[0]
        self.position += 1
        self.position %= 3
        return row.unsqueeze(1) + row * self.table[:, self.position.item()].sum()

    def read(self, i: Tensor) -> Tensor:
        return self.table[i.item()] * self.table[0, i.item()]

    def write(self, i: Tensor) -> Tensor:
        self.table[i] = 9.0
        self.table[1, i] = -9.0
        return self.table.sum(0)


_MASKED = ("use", "revive")


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.register_buffer("used", torch.zeros(4))
        self.register_buffer("codes", torch.randn(4, 4))

    def use(self, x: Tensor) -> Tensor:
        self.used += x[0]
        nearest: Tensor = self.proj(x) @ self.codes.T
        return nearest

    def revive(self, x: Tensor) -> Tensor:
        unused = self.used < 1
        self.codes[unused] = x.expand(4, 4)[unused]
        return unused.sum()


def test_masked_writes_are_lowered_as_often_as_wanted() -> None:
    model = _Masked().eval()
    entry_points = {name: EntryPoint(getattr(model, name), (X,)) for name in _MASKED}
    calls = [call(name, X * factor) for factor in (1, 2, -1) for name in _MASKED]
    outcomes = eager_outcomes(model, entry_points, calls)
    exported = export(model, entry_points)
    for partitioner in ([], [XnnpackPartitioner()], []):
        manager = to_edge_transform_and_lower(exported, partitioner=partitioner)
        assert_program_equals(bytes(manager.to_executorch().buffer), outcomes)


def test_positions_are_integers_of_any_type() -> None:
    model = Typed()
    narrow = {
        str(t)[6:]: t for t in (torch.uint8, torch.int8, torch.int16, torch.int32)
    }
    i = torch.tensor(1)
    reads = {f"read_{n}": EntryPoint(model.read, (i.to(t),)) for n, t in narrow.items()}
    writes = {
        f"write_{n}": EntryPoint(model.write, (i.to(t),))
        for n, t in narrow.items()
        if t.is_signed
    }
    calls = [call(n, (2 * i).to(one.args[0].dtype)) for n, one in reads.items()]
    calls += [call(n, (0 * i).to(one.args[0].dtype)) for n, one in writes.items()]
    steps = [call("step", k * X) for k in (1, 2, 3, 4)]
    entry_points = {"step": EntryPoint(model.step, (X,)), **reads, **writes}
    assert_equals_eager(model, entry_points, [*steps, *calls, *steps])


class Unexportable(Indexed):
    def beside_list(self, x: Tensor) -> Tensor:
        self.square[[0, 1], self.row] = 5.0
        return x

    def beside_bool(self, x: Tensor) -> Tensor:
        self.square[True, self.row] = 5.0
        return x

    def mask(self, x: Tensor) -> Tensor:
        self.square[self.row.to(torch.uint8)] = 5.0
        return x

    def python_branch(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.row.add_(1)
        return x

    def python_loop(self, x: Tensor) -> Tensor:
        while x.sum() < 10:
            x = x * 2
        return x

    def python_size(self, x: Tensor) -> Tensor:
        return x[:, : int(self.row)] + self.m[0, 0, : int(x.sum())]


@pytest.mark.parametrize(
    "name",
    [
        *("python_branch", "python_loop", "python_size"),
        *("beside_list", "beside_bool", "mask"),
    ],
)
def test_values_that_python_reads_are_refused(name: str) -> None:
    model = Unexportable()
    message = f"'{name}' uses the value of a tensor as a Python number.*; use torch.con"
    with pytest.raises(EntryPointError, match=message):
        export(model, {name: EntryPoint(getattr(model, name), (X,))})
