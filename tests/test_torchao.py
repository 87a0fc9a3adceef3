"""Weights that torchao has quantized, and integers that XNNPACK does not compute."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import quantized_models as models
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import nn
from torchao.core.config import AOBaseConfig
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.quantization.pt2e import HistogramObserver
from torchao.quantization.pt2e.quantizer import QuantizationSpec
from torchao.quantization.quant_primitives import MappingType

import etshared_plugin as etshared
from etshared_plugin.errors import LoweringError
from etshared_plugin.testing import (
    assert_program_matches,
    assert_stock_runtime_matches,
    call,
    eager_outcomes,
    exported_outcomes,
)


@functools.cache
def _torchao(way: str) -> tuple[models.Streamer, dict[str, etshared.EntryPoint]]:
    configs = {
        "8da4w": Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
        "w8": Int8WeightOnlyConfig(),
    }
    model, entry_points = models.streamer()
    quantize_(model, configs[way])
    return model, entry_points


@functools.cache
def _torchao_lowered(way: str) -> bytes:
    exported = etshared.export(*_torchao(way))
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    )
    return bytes(edge.to_executorch().buffer)


@pytest.mark.parametrize(
    ("way", "atol", "decibels"),
    # XNNPACK has the scales of groups as bfloat16, which is worth 1/256 of a weight.
    [("8da4w", 0.01, 18), ("w8", 1e-5, 38)],
)
def test_weights_that_torchao_has_quantized_equal_eager(
    way: str, atol: float, decibels: float
) -> None:
    calls = models.calls(seed=5)
    outcomes = eager_outcomes(*_torchao(way), calls)
    data = _torchao_lowered(way)
    program = etshared.load(data, tensors="torch")
    assert_program_matches(program, outcomes, atol=atol)
    assert_stock_runtime_matches(data, outcomes, atol=atol)
    session = program.session()
    results = [session[one.name](*one.args) for one in calls]
    expected = eager_outcomes(*models.streamer(), calls)
    assert models.signal_to_noise(results, expected) > decibels


@pytest.mark.parametrize(("way", "bits"), [("8da4w", 4), ("w8", 8)])
def test_weights_that_torchao_has_quantized_are_stored_once(
    way: str, bits: int
) -> None:
    weights = models.context_of(_torchao_lowered(way)).weights
    nbytes = models.WIDTH**2 * bits // 8
    stored = [weight for weight in weights if weight.nbytes >= nbytes]
    assert [weight.nbytes for weight in stored] == [nbytes] * 3
    assert sum(weight.nbytes for weight in weights) < 3.7 * nbytes
    program = etshared.load(_torchao_lowered(way))
    program.session().load()
    # Layers with quantized activations are packed, and a float convolution.
    layers = 4 if way != "w8" else 1
    uses = sum(map(len, models.LAYERS.values())) if way != "w8" else 2
    assert program.stats().constants_packed == layers
    assert program.stats().constants_reused == uses - layers


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
            r"torchao.dequantize_affine.* of '0\..*no kernel for",
        ),
        *(
            (
                # XNNPACK would leave zero points out, without an error.
                Int8DynamicActivationIntxWeightConfig(
                    weight_dtype=dtype,
                    weight_granularity=granularity,
                    weight_mapping_type=MappingType.ASYMMETRIC,
                ),
                r"weights '0\..*' with zero points.*MappingType.SYMMETRIC",
            )
            for dtype, granularity in (
                (torch.int4, PerGroup(32)),
                (torch.int8, PerAxis(0)),
            )
        ),
        (
            Int8DynamicActivationIntxWeightConfig(
                weight_dtype=torch.int8, weight_granularity=PerGroup(32)
            ),
            r"weights '0\..*' with groups of 8 bits.*PerAxis\(0\)",
        ),
    ],
)
def test_weights_that_nothing_computes_with_are_refused(
    config: AOBaseConfig, problem: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 4)).eval()
    quantize_(model, config)
    exported = etshared.export(
        model, {"forward": etshared.EntryPoint(model.forward, (torch.ones(1, 64),))}
    )
    with pytest.raises(LoweringError, match=f"'forward' has {problem}"):
        etshared.to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()]
        ).to_executorch()


def test_weights_of_8_bits_in_float16_are_refused() -> None:
    model = nn.Sequential(nn.Linear(64, 4)).half().eval()
    x = torch.ones(1, 64, dtype=torch.float16)
    quantize_(
        model,
        Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int8, weight_granularity=PerAxis(0)
        ),
    )
    exported = etshared.export(
        model, {"forward": etshared.EntryPoint(model.forward, (x,))}
    )
    with pytest.raises(LoweringError, match=r"'forward'.* '0\..* 8 bits in float16"):
        etshared.to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()]
        )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_activations_of_other_integers_are_left_to_kernels(dtype: torch.dtype) -> None:
    """XNNPACK's lowering takes them for int8."""
    limits = torch.iinfo(dtype)
    spec = QuantizationSpec(
        dtype,
        HistogramObserver,
        limits.min,
        limits.max,
        torch.per_tensor_affine,
    )
    config = dataclasses.replace(
        get_symmetric_quantization_config(is_per_channel=True),
        input_activation=spec,
        output_activation=spec,
    )
    torch.manual_seed(0)
    model = nn.Linear(16, 8).eval()
    calls = [call("forward", torch.randn(3, 16)) for _ in range(4)]
    quantized = etshared.quantize(
        etshared.export(
            model, {"forward": etshared.EntryPoint(model.forward, calls[0].args)}
        ),
        XNNPACKQuantizer().set_global(config),
        calls,
    )
    edge = etshared.to_edge_transform_and_lower(
        quantized, partitioner=[XnnpackPartitioner()]
    )
    data = bytes(edge.to_executorch().buffer)
    outcomes = exported_outcomes(quantized, calls)
    assert_program_matches(etshared.load(data, tensors="torch"), outcomes)


class _Branches(nn.Module):
    """Has a weight of integers in one branch only."""

    def __init__(self) -> None:
        super().__init__()
        integers = torch.arange(-16, 16, dtype=torch.int8).reshape(1, 32)
        self.register_buffer("integers", integers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def dequantized(x: torch.Tensor) -> torch.Tensor:
            weight: torch.Tensor = torch.ops.torchao.dequantize_affine(
                self.integers, (1, 32), torch.ones(1, 1), None, torch.int8
            )
            return x * weight

        result: torch.Tensor = torch.cond(x.sum() > 0, dequantized, torch.neg, (x,))
        return result


def test_weights_that_nothing_computes_with_are_refused_in_branches() -> None:
    model = _Branches().eval()
    exported = etshared.export(
        model, {"forward": etshared.EntryPoint(model.forward, (torch.ones(1, 32),))}
    )
    edge = etshared.to_edge_transform_and_lower(exported)
    with pytest.raises(
        LoweringError, match="'forward' has torchao.dequantize_affine.*no kernel for"
    ):
        edge.to_executorch()
