"""Constants have one key exactly where one packed copy may serve them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from eager_comparison import lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import nn

import etshared_plugin as etshared
from etshared_plugin.context import SharedContext, Weight
from etshared_plugin.pte import PteFile


def file_of(
    root: nn.Module, **entry_points: tuple[Callable[..., object], torch.Tensor]
) -> PteFile:
    declared = {n: etshared.EntryPoint(f, (x,)) for n, (f, x) in entry_points.items()}
    return PteFile(lower(root, declared, [XnnpackPartitioner()]))


def context_of(
    root: nn.Module, **entry_points: tuple[Callable[..., object], torch.Tensor]
) -> SharedContext:
    context = file_of(root, **entry_points).shared_context()
    assert context is not None
    return context


def weights_of(context: SharedContext, fqn: str) -> list[Weight]:
    return [weight for weight in context.weights if fqn in weight.fqns]


def users_of(context: SharedContext, weight: Weight) -> list[str]:
    return sorted(
        context.entry_points[context.delegates[delegate].entry_point].name
        for delegate in weight.delegates
    )


class EqualBytes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        numbers = torch.arange(32.0) / 32
        self.wide = nn.Linear(8, 4, bias=False)
        self.tall = nn.Linear(4, 8, bias=False)
        self.point = nn.Conv2d(8, 4, 1, bias=False)
        for layer in (self.wide, self.tall, self.point):
            layer.weight.data = numbers.view_as(layer.weight).clone()

    def in_wide(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x)

    def in_tall(self, x: torch.Tensor) -> torch.Tensor:
        return self.tall(x)

    def in_point(self, x: torch.Tensor) -> torch.Tensor:
        return self.point(x)

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x) + self.wide(2 * x)


def test_equal_bytes_of_other_shapes_and_operators_have_keys_of_their_own() -> None:
    model = EqualBytes().eval()
    context = context_of(
        model,
        in_wide=(model.in_wide, torch.ones(1, 8)),
        in_tall=(model.in_tall, torch.ones(1, 4)),
        in_point=(model.in_point, torch.ones(1, 8, 2, 2)),
    )
    (wide,) = weights_of(context, "wide.weight")
    (tall,) = weights_of(context, "tall.weight")
    (point,) = weights_of(context, "point.weight")
    assert wide.digest == tall.digest
    assert len({wide.keys, tall.keys, point.keys}) == 3


def test_one_layer_has_one_key_in_all_entry_points() -> None:
    model = EqualBytes().eval()
    context = context_of(
        model,
        in_wide=(model.in_wide, torch.ones(1, 8)),
        batch=(lambda x: model.wide(x) + 1, torch.ones(3, 8)),
        twice=(model.twice, torch.ones(1, 8)),
    )
    (wide,) = weights_of(context, "wide.weight")
    assert users_of(context, wide) == ["batch", "in_wide", "twice"]
    assert all(
        dict(delegate.options) == {"weight_cache_enabled": "true"}
        for delegate in context.delegates
        if delegate.weights
    )


def test_bytes_with_several_keys_are_stored_once() -> None:
    model = EqualBytes().eval()
    file = file_of(
        model,
        in_wide=(model.in_wide, torch.ones(1, 8)),
        in_tall=(model.in_tall, torch.ones(1, 4)),
    )
    context = file.shared_context()
    assert context is not None
    segments = {
        file.named_data_segments[key]
        for fqn in ("wide.weight", "tall.weight")
        for weight in weights_of(context, fqn)
        for key in weight.keys
    }
    assert len(segments) == 1


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_shares_with_one_of_the_same_parameters_only(stride: int) -> None:
    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def plain(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x)

        def strided(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv2d(
                x, self.conv.weight, self.conv.bias, stride=stride
            )

    model = Convolutions().eval()
    x = torch.ones(1, 3, 8, 8)
    context = context_of(model, plain=(model.plain, x), strided=(model.strided, x))
    assert len(weights_of(context, "conv.weight")) == stride


class Heads(nn.Module):
    """Layers with equal weights, as new heads that start with zeros have."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.linspace(-1, 1, 64).reshape(8, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 8, bias=i < 2) for i in range(3))
        for i, head in enumerate(self.heads):
            head.weight.data = weight.clone()
            if i < 2:
                head.bias.data = torch.full((8,), 10.0 * (i + 1))

    def low(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads[0](x)

    def high(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads[1](x)

    def bare(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads[2](x)

    def both(self, x: torch.Tensor) -> torch.Tensor:
        return self.heads[0](x) - 2 * self.heads[1](torch.relu(x))


def test_dynamically_quantized_layers_share_with_the_same_bias_only() -> None:
    model, x = Heads().eval(), torch.linspace(-1, 1, 8)[None]
    names = ("low", "high", "bare", "both")
    exported = etshared.export(
        model, {name: etshared.EntryPoint(getattr(model, name), (x,)) for name in names}
    )
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    )
    edge = etshared.to_edge_transform_and_lower(
        etshared.quantize(exported, quantizer), partitioner=[XnnpackPartitioner()]
    )
    data = bytes(edge.to_executorch().buffer)
    shared, alone = (
        etshared.load(data, tensors="torch", packed_weights=packed).session()
        for packed in (True, False)
    )
    for name in names:
        expected = alone[name](x)
        torch.testing.assert_close(expected, getattr(model, name)(x), rtol=0, atol=0.1)
        assert torch.equal(shared[name](x), expected), name
