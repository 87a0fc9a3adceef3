"""State in every role that operators of delegates have for a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from eager_comparison import assert_equals_eager, call
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

from etshared_plugin import EntryPoint

Partitioners = Sequence[Partitioner]


class Roles(nn.Module):
    """Buffers of which each entry point makes another use; ``update`` writes all."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.linear = nn.Linear(4, 4)
        self.layer_norm = nn.LayerNorm(4)
        self.prelu = nn.PReLU(2)
        self.register_buffer("slope", torch.tensor([0.2, 0.3]))
        self.register_buffer("matrix", torch.randn(4, 4))
        self.register_buffer("vector", torch.rand(4) + 0.5)
        self.register_buffer("kernel", torch.randn(2, 2, 2, 2))
        self.register_buffer("factor", torch.tensor(0.5))
        self.register_buffer("index", torch.tensor([2, 0]))
        self.register_buffer("mask", torch.tensor([True, False, True, False]))

    def weights(self, x: Tensor) -> list[Tensor]:
        rows = F.linear(x[0, 0], self.matrix, self.vector)
        return [
            torch.relu(F.conv_transpose2d(x, self.kernel, stride=2)),
            F.linear(rows, self.linear.weight, self.vector),
            F.conv2d(x, self.kernel, self.slope),
            F.conv2d(x, self.conv.weight, self.slope, padding=1),
            F.prelu(self.conv(x), self.slope),
            F.embedding(self.index, self.matrix),
        ]

    def norms(self, x: Tensor) -> list[Tensor]:
        y = self.conv(x)
        return [
            F.layer_norm(x, [4], self.vector, self.layer_norm.bias),
            F.group_norm(x, 1, self.slope, None),
            F.batch_norm(y, self.slope, self.slope + 1, self.slope, self.conv.bias),
            F.rms_norm(x, [4], self.vector),
        ]

    def activations(self, x: Tensor) -> list[Tensor]:
        y = self.linear(x)
        return [
            (y + self.vector) * self.factor - self.matrix,
            torch.sigmoid(self.matrix) @ self.linear(self.matrix),
            torch.maximum(y, self.vector).clamp(max=1) / self.vector,
            torch.cat([y[0, 0], self.matrix]).transpose(0, 1),
            self.factor.abs() ** self.prelu(x).sigmoid(),
        ]

    def choices(self, x: Tensor) -> list[Tensor]:
        y = self.linear(x)
        return [
            torch.where(self.mask, y, -y),
            y.masked_fill(~self.mask, -1.0),
            y.index_select(-1, self.index),
            y[0, 0][self.index],
            y.gather(3, self.index.expand(1, 2, 4, 2)),
            F.scaled_dot_product_attention(y, y, y, attn_mask=self.mask[None]),
            F.scaled_dot_product_attention(y, y + self.matrix, y, self.matrix),
        ]

    def update(self, x: Tensor) -> None:
        self.slope.mul_(-1)
        self.matrix.copy_(x[0, 0])
        self.vector = self.vector + 0.5
        self.kernel.add_(self.factor)
        self.factor.mul_(2)
        self.index = (self.index + 1) % 4
        self.mask.logical_not_()


def test_state_stays_live_in_every_role(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Roles()
    x = torch.randn(1, 2, 4, 4)
    readers = ["weights", "norms", "activations", "choices"]
    assert_equals_eager(
        model,
        {n: EntryPoint(getattr(model, n), (x,)) for n in (*readers, "update")},
        [
            call(name, step * x)
            for step in (1, 2, 3)
            for name in (*readers, "update", *readers)
        ],
        partitioner,
    )
