"""Programs whose entry points share packed weights, each exported once per process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from eager_comparison import lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn

import etshared_plugin as etshared

Inputs = dict[str, tuple[torch.Tensor, ...]]


class _Operator(nn.Module):
    """One layer that three entry points use, alone and beside others."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, 3)

    def alone(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.sigmoid(self.layer(2 * x))

    def headed(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.layer(x)))


class _Residual(nn.Module):
    """A linear layer whose bias is used again as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.sigmoid(y - self.linear.bias)


@functools.cache
def three_users(width: int) -> bytes:
    """Three entry points over one weight of width² floats."""
    torch.manual_seed(0)
    layer = nn.Linear(width, width, bias=False).eval()
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "plain": layer,
        "positive": lambda x: torch.relu(layer(x)),
        "doubled": lambda x: layer(x) + layer(x),
    }
    x = torch.ones(1, width)
    return lower(
        layer,
        {name: etshared.EntryPoint(one, (x,)) for name, one in calls.items()},
        [XnnpackPartitioner()],
    )


_IMAGE = torch.Size((1, 4, 6, 6))
_ROWS = torch.Size((3, 8))

#: A layer, the shape of its input, and the last size of its output.
_LAYERS: dict[str, tuple[Callable[[], nn.Module], torch.Size, int]] = {
    "linear": (lambda: nn.Linear(8, 6), _ROWS, 6),
    "linear without bias": (lambda: nn.Linear(8, 6, bias=False), _ROWS, 6),
    "bias used twice": (_Residual, _ROWS, 6),
    "conv": (lambda: nn.Conv2d(4, 5, 3), _IMAGE, 4),
    "pointwise conv": (lambda: nn.Conv2d(4, 5, 1, bias=False), _IMAGE, 6),
    "depthwise conv": (lambda: nn.Conv2d(4, 4, 3, groups=4), _IMAGE, 4),
    "transposed conv": (lambda: nn.ConvTranspose2d(4, 5, 2, stride=2), _IMAGE, 12),
    "prelu": (lambda: nn.PReLU(4), _IMAGE, 6),
}
LAYERS = tuple(_LAYERS)


def _lower(model: nn.Module, inputs: Inputs) -> bytes:
    return lower(
        model,
        {
            name: etshared.EntryPoint(getattr(model, name), x)
            for name, x in inputs.items()
        },
        [XnnpackPartitioner()],
    )


@functools.cache
def one_layer(name: str) -> tuple[bytes, Inputs]:
    make, shape, width = _LAYERS[name]
    torch.manual_seed(3)
    model = _Operator(make(), width).eval()
    if isinstance(model.layer, nn.PReLU):
        model.layer.weight.data = torch.linspace(0.1, 0.9, 4)
    x = torch.randn(shape)
    inputs: Inputs = {"alone": (x,), "twice": (x,), "headed": (x,)}
    return _lower(model, inputs), inputs


class Mixed(nn.Module):
    """Entry points with weights in common, of their own, and none; and state."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.encoder = nn.Linear(width, width)
        self.decoder = nn.Linear(width, width, bias=False)
        self.register_buffer("hidden", torch.full((1, width), 0.5))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.encoder(x))

    def step(self, x: torch.Tensor) -> torch.Tensor:
        sums = torch.cumsum(self.encoder(x), 1)  # XNNPACK has no such operator
        self.hidden.copy_(torch.tanh(self.decoder(sums) + self.hidden))
        return self.hidden * 2

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(x)

    def peek(self) -> torch.Tensor:
        return self.hidden + 1


@functools.cache
def mixed(width: int = 32) -> tuple[bytes, Inputs]:
    x = torch.linspace(-1, 1, width).reshape(1, width)
    inputs: Inputs = {"encode": (x,), "step": (x,), "decode": (x,), "peek": ()}
    return _lower(Mixed(width).eval(), inputs), inputs


class _Confusable(nn.Module):
    """Equal bytes that mean different things."""

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.arange(32.0) / 32
        self.wide = nn.Linear(8, 4, bias=False)
        self.tall = nn.Linear(4, 8, bias=False)
        for layer in (self.wide, self.tall):
            layer.weight.data = numbers.view_as(layer.weight).clone()
        self.down = nn.Linear(8, 2, bias=False)
        self.up = nn.Linear(2, 8, bias=False)
        for layer in (self.down, self.up):
            nn.init.zeros_(layer.weight)

    def in_wide(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x)

    def in_tall(self, x: torch.Tensor) -> torch.Tensor:
        return self.tall(x)

    def both(self, x: torch.Tensor) -> torch.Tensor:
        return self.tall(self.wide(x))

    def adapted(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x + self.up(self.down(x)))


@functools.cache
def confusable() -> tuple[bytes, Inputs]:
    inputs: Inputs = {
        "in_wide": (torch.ones(1, 8),),
        "in_tall": (torch.ones(1, 4),),
        "both": (torch.ones(1, 8),),
        "adapted": (torch.ones(1, 8),),
    }
    return _lower(_Confusable().eval(), inputs), inputs


def arrays(inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    return [x.numpy() for x in inputs]
