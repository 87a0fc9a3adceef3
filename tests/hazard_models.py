"""Models whose layers hold every kind of constant that XNNPACK packs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class OneWeight(nn.Module):
    """One square weight, used in every way that a square weight can be."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))
        self.b = nn.Parameter(torch.randn(8))
        self.c = nn.Parameter(torch.randn(8))
        self.point = nn.Parameter(self.w.detach().clone().view(8, 8, 1, 1))
        self.batch = nn.Parameter(self.w.detach().clone().view(1, 8, 8))
        self.wide = nn.Parameter(self.w.detach().clone().view(4, 16))
        self.tall = nn.Parameter(self.w.detach().clone().view(16, 4))

    def linear(self, x: torch.Tensor) -> list[torch.Tensor]:
        bare = F.linear(x, self.w)
        return [
            bare,
            F.linear(bare, self.w, self.b),
            F.linear(x, self.w, self.c),
            torch.relu(F.linear(x, self.w, self.b)),
        ]

    def matrix(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x @ self.w, torch.addmm(self.b, x, self.w), F.linear(x, self.w.t())]

    def pointwise(self, x: torch.Tensor) -> list[torch.Tensor]:
        image = x.reshape(3, 8, 1, 1)
        return [
            F.conv2d(image, self.point),
            F.conv2d(image, self.w.view(8, 8, 1, 1), self.b),
            torch.bmm(x[None], self.batch),
            torch.bmm(self.batch, x.t()[None]),
        ]

    def reshaped(self, x: torch.Tensor) -> list[torch.Tensor]:
        four = F.linear(x.repeat(1, 2), self.wide)
        return [four, F.linear(four, self.tall), F.linear(x, self.w)]

    def mixed(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [*self.linear(x), *self.matrix(x), *self.pointwise(x)]


class Convolutions(nn.Module):
    """Convolutions, each weight with other parameters and as another operator too."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(4, 6, 3, bias=False)
        self.plain = nn.Conv2d(4, 6, 3, bias=False)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2, bias=False)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.doubling = nn.Conv2d(4, 8, 3, groups=4, bias=False)
        self.up = nn.ConvTranspose2d(4, 5, 2, stride=2)
        self.grouped_up = nn.ConvTranspose2d(
            4, 6, 3, stride=2, groups=2, output_padding=1, bias=False
        )
        self.square = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.columns = nn.Parameter(torch.randn(4, 1, 3, 3))
        self.norm = nn.BatchNorm2d(6)
        self.norm.running_mean = torch.randn(6)
        self.norm.running_var = torch.rand(6) + 0.5

    def raw(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            self.one(x[:, :, 0]),
            self.plain(x),
            self.grouped(x),
            self.depthwise(x),
            self.doubling(x),
            self.up(x),
            self.grouped_up(x),
            F.conv2d(x, self.square),
            F.conv2d(x, self.columns, groups=4),
        ]

    def normed(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.norm(self.plain(x)), self.plain(2 * x), self.doubling(x)]

    def otherwise(self, x: torch.Tensor) -> list[torch.Tensor]:
        depthwise, up = self.depthwise, self.up
        return [
            F.conv1d(x[:, :, 0], self.one.weight, dilation=2),
            F.conv2d(x, self.plain.weight, dilation=2),
            F.conv2d(x, self.grouped.weight, groups=2, padding=1),
            F.conv2d(x, depthwise.weight, depthwise.bias, stride=2, groups=4),
            torch.relu(self.doubling(x)),
            F.conv_transpose2d(x, up.weight, up.bias),
            F.conv_transpose2d(x, self.grouped_up.weight, groups=2, dilation=2),
            F.conv_transpose2d(x, self.square),
            F.conv_transpose2d(x, self.columns, groups=4),
        ]

    def mixed(self, x: torch.Tensor) -> list[torch.Tensor]:
        bias = self.depthwise.bias
        return [
            self.plain(x),
            F.conv2d(x, self.plain.weight, padding=1),
            F.conv_transpose2d(F.conv2d(x, self.square, bias), self.square, bias),
            F.conv_transpose2d(x, self.columns, groups=4),
            F.conv2d(x, self.columns, bias, groups=4) * self.columns[0, 0, 0, 0],
            F.conv2d(x[:, :1], self.columns, bias) + bias.view(1, 4, 1, 1),
        ]


class Elementwise(nn.Module):
    """Constants that XNNPACK reads as they are, beside ones that it packs."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.PReLU(64)
        self.slopes.weight.data = torch.linspace(0.1, 0.9, 64)
        self.column = nn.Parameter(torch.randn(1, 64, 1, 1))
        self.map = nn.Parameter(torch.randn(1, 64, 6, 6))
        self.matrices = nn.Parameter(torch.randn(64, 6, 6))
        self.point = nn.Conv2d(64, 64, 1)

    def prelu(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.slopes(x), self.point(x)]

    def twice(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.slopes(x) + self.slopes(2 * x), self.point(self.slopes(x))]

    def scaled(self, x: torch.Tensor) -> list[torch.Tensor]:
        first = self.slopes(x * self.column) - self.column
        return [first, x + self.map, torch.cat([x, self.map], 1), self.point(x)]

    def multiplied(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.bmm(x[0], self.matrices) + self.matrices,
            torch.bmm(self.matrices, x[0]),
            torch.matmul(x, self.matrices),
            torch.maximum(x, self.column) / (self.column * self.column + 1),
        ]


class Layers(nn.Module):
    """Layers of every kind that may be quantized or have fewer bits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.bare = nn.Linear(8, 8, bias=False)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2, bias=False)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.one = nn.Conv1d(4, 4, 3)
        self.other = nn.Parameter(torch.randn(8))
        self.map = nn.Parameter(torch.randn(1, 4, 8, 8))

    def linears(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.linear(x), self.bare(x), torch.relu(self.linear(2 * x))]

    def biases(self, x: torch.Tensor) -> list[torch.Tensor]:
        weight = self.linear.weight
        return [F.linear(x, weight, self.other), F.linear(x, weight)]

    def both(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.bare(x), *self.biases(x), self.linear(5 * x)]

    def convs(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            self.conv(x),
            self.grouped(x),
            self.depthwise(x),
            self.up(x),
            self.one(x[:, :, 0]),
        ]

    def deep(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            self.conv(self.conv(x)),
            self.depthwise(5 * x),
            self.up(x) * 2,
            x + self.map,
        ]


class EqualIntegers(nn.Module):
    """Two layers whose weights, one four times the other, quantize to one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(8, 8, bias=False)
        self.large = nn.Linear(8, 8, bias=False)
        self.large.weight.data = 4 * self.small.weight.data

    def one(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.small(x)]

    def four(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.large(x)]

    def both(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.small(x), self.large(x)]


class OtherScales(EqualIntegers):
    """The same with the scales the other way round, in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = self.large, self.small


class Adapters(nn.Module):
    """Low-rank adapters as they are before training: with zeros of equal bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16)
        self.head = nn.Linear(16, 8, bias=False)
        self.base_a = nn.Linear(16, 2, bias=False)
        self.base_b = nn.Linear(2, 16, bias=False)
        self.head_a = nn.Linear(16, 4, bias=False)
        self.head_b = nn.Linear(4, 8, bias=False)
        nn.init.zeros_(self.base_b.weight)
        nn.init.zeros_(self.head_b.weight)

    def plain(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.base(x), self.head(x)]

    def in_base(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.base(x) + self.base_b(self.base_a(x)), self.head(x)]

    def in_both(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            self.base(x) + self.base_b(self.base_a(x)),
            self.head(x) + self.head_b(self.head_a(x)),
        ]


class FewBits(nn.Module):
    """Linear layers with wide enough rows for groups of weights with one scale."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(64, 32)
        self.large = nn.Linear(64, 32)
        self.bare = nn.Linear(64, 32, bias=False)
        self.large.weight.data = 4 * self.small.weight.data
        self.bare.weight.data = self.small.weight.data.clone()

    def one(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.small(x), torch.relu(self.small(2 * x))]

    def four(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.large(x), self.bare(x)]

    def both(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.small(x), self.large(x), self.bare(x)]
