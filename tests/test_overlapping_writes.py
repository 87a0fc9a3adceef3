"""Parts of state that are written from other parts of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import StateError


class History(nn.Module):
    """Columns of ``table`` have gaps between them, so eager looks for no overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))
        self.register_buffer("newest", self.table[:, 1:])
        self.register_buffer("none", torch.zeros(0, 3))

    def forwards(self, x: Tensor) -> Tensor:
        self.table[:, :-1] = self.table[:, 1:]
        self.table[:, -1] = x
        return self.table + 1

    def halves(self, x: Tensor) -> Tensor:
        self.table[:, 2:].copy_(self.table[:, :2])
        self.table[:, ::2] -= self.table[:, 1::2]
        self.table[:, 1:].mul_(self.table[:, :1])
        self.table.add_(self.table)
        return self.newest * x[:, None]

    def of_a_copy(self, x: Tensor) -> Tensor:
        self.table[:, 1:] = self.table[:, :-1].clone()
        self.table[:, 0] = x
        return self.newest + 1

    def of_other_copies(self, x: Tensor) -> Tensor:
        self.table[:, 1:] = self.table[:, :-1].contiguous()
        self.table[:, :3].copy_(self.table.T.reshape(3, 4)[:, 1:])
        self.none[:, 1:] = self.none[:, :-1]
        return self.newest * x[:, None]

    def backwards(self, i: Tensor) -> Tensor:
        self.table[:, 1:] = self.table[:, :-1]
        return self.table + i[0]

    def to_a_view(self, i: Tensor) -> Tensor:
        self.newest.copy_(self.table[:, :3])
        return self.table + i[0]

    def sums(self, i: Tensor) -> Tensor:
        self.table[:, 1:] += self.table[:, :-1]
        return self.table + i[0]

    def of_its_first(self, i: Tensor) -> Tensor:
        self.table.sub_(self.table[:, :1])
        return self.table + i[0]

    def indexed(self, i: Tensor) -> Tensor:
        self.table[:, i] = self.table[:, :3]
        return self.table + 1

    def scattered(self, i: Tensor) -> Tensor:
        self.table[:, :3].scatter_add_(1, i.expand(3, 3), self.table[:, 1:])
        return self.table + 1


def test_parts_are_written_from_others(partitioner: Sequence[Partitioner]) -> None:
    model, x = History(), torch.tensor([0.5, -1.0, 2.0])
    names = ("forwards", "halves", "of_a_copy", "of_other_copies")
    assert_equals_eager(
        model,
        {name: EntryPoint(getattr(model, name), (x,)) for name in names},
        [call(name, sign * x) for sign in (1, -2) for name in names],
        partitioner,
    )


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("backwards", "copy_"),
        ("to_a_view", "copy_"),
        ("sums", "add_"),
        ("of_its_first", "sub_"),
        ("indexed", "index_put_"),
        ("scattered", "scatter_add_"),
    ],
)
def test_writes_that_depend_on_the_order_are_refused(name: str, operator: str) -> None:
    model = History()
    entry_point = EntryPoint(getattr(model, name), (torch.tensor([1, 2, 0]),))
    problem = f"'{name}' writes part of 'table' .*{operator}.*clone"
    with pytest.raises(StateError, match=problem):
        etshared.export(model, {name: entry_point})
