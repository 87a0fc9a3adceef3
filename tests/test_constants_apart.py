"""Uses of one constant in one delegate do not disturb each other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import assert_equals_eager, call, lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from quantized_models import quantizer
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import etshared_plugin as etshared
from etshared_plugin.backends.xnnpack import SharedXnnpackPartitioner
from etshared_plugin.backends.xnnpack_payload import Payload
from etshared_plugin.pte import PteFile


class Convolutions(nn.Module):
    """One weight that convolutions lay out in several ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.square = nn.Parameter(torch.randn(4, 4, 3, 3))
        self.thin = nn.Parameter(torch.randn(4, 1, 3, 3))
        self.bias = nn.Parameter(torch.randn(4))

    def there_and_back(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(F.conv2d(x, self.square), self.square)

    def by_channel(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.conv2d(x, self.thin, self.bias, groups=4)
        return F.conv_transpose2d(inner, self.thin, groups=4)

    def penalized(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.conv2d(x, self.square), self.square * self.square + self.square

    def pyramid(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [F.conv2d(x, self.square, dilation=size) for size in (1, 2, 3)]


_X = torch.linspace(-1, 1, 256).reshape(1, 4, 8, 8)


def test_one_weight_is_laid_out_as_each_convolution_wants_it() -> None:
    model = Convolutions().eval()
    names = ("there_and_back", "by_channel", "penalized", "pyramid")
    program = assert_equals_eager(
        model,
        {name: etshared.EntryPoint(getattr(model, name), (_X,)) for name in names},
        [call(name, _X) for name in names],
        [XnnpackPartitioner()],
    )
    session = program.session()
    session.load()
    assert all(one.is_shared for one in program.stats().entry_points)


def test_constants_are_apart_in_the_flow_of_executorch_too() -> None:
    class Autoencoder(Convolutions):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.there_and_back(x)

    model = Autoencoder().eval()
    edge = to_edge_transform_and_lower(
        torch.export.export(model, (_X,)), partitioner=[SharedXnnpackPartitioner()]
    )
    program = Runtime.get().load_program(bytes(edge.to_executorch().buffer))
    (result,) = program.load_method("forward").execute([_X])
    torch.testing.assert_close(result, model(_X))


class Twice(nn.Module):
    """One layer for two inputs of different ranges."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        wide = 30 * self.linear(x)
        return [self.linear(wide), self.conv(20 * self.conv(x))]


@pytest.mark.parametrize("way", ["per tensor", "per channel"])
def test_a_bias_is_quantized_for_each_input(way: str) -> None:
    prepared = prepare_pt2e(
        torch.export.export(Twice().eval(), (_X,)).module(), quantizer(way)
    )
    prepared(_X)
    quantized = convert_pt2e(prepared)
    exported = {"forward": torch.export.export(quantized, (_X,))}
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    )
    program = etshared.load(bytes(edge.to_executorch().buffer), tensors="torch")
    session = program.session()
    for actual, expected in zip(session.forward(_X), quantized(_X), strict=True):
        # Both are on one grid; XNNPACK rounds halves in another way.
        step = expected.abs().max() / 127
        assert (actual - expected).abs().max() <= 1.01 * step
    (stats,) = program.stats().entry_points
    assert stats.is_shared and stats.constants_packed == 4


class Alike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.linear(x)))


class Tied(nn.Module):
    """A weight that entry points return and compute with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), self.linear.weight

    def twice(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x) @ self.linear.weight, self.linear.weight


def test_a_weight_of_a_delegate_may_be_a_result() -> None:
    model, x = Tied().eval(), _X.reshape(-1, 8)
    entry_points = {
        "forward": etshared.EntryPoint(model.forward, (x,)),
        "twice": etshared.EntryPoint(model.twice, (x,)),
    }
    calls = [call("forward", x), call("twice", x), call("forward", x)]
    assert_equals_eager(model, entry_points, calls, [XnnpackPartitioner()])


def test_uses_that_want_a_constant_in_one_way_have_one() -> None:
    model = Alike().eval()
    entry_points = {"forward": etshared.EntryPoint(model.forward, (_X,))}
    file = PteFile(lower(model, entry_points, [XnnpackPartitioner()]))
    (delegate,) = file.plans["forward"].delegates
    payload = Payload(bytes(file.delegate_payload(delegate)))
    assert len(payload.keys) == 2
