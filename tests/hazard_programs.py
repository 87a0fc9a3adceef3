"""Programs with every kind of constant that XNNPACK packs, several uses of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import quantized_models
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackFloatingPointPartitioner,
    XnnpackPartitioner,
)
from executorch.exir.backend.partitioner import Partitioner
from hazard_models import (
    Adapters,
    Convolutions,
    Elementwise,
    EqualIntegers,
    FewBits,
    Layers,
    OneWeight,
    OtherScales,
)
from torch import nn
from torch.export import ExportedProgram
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import etshared_plugin as etshared

Results = dict[str, list[torch.Tensor]]


@dataclass(frozen=True)
class HazardProgram:
    """A program whose entry points take ``x`` and return several tensors.

    ``eager`` is what they return in eager mode, or what the quantized programs do.
    """

    data: bytes
    x: torch.Tensor
    eager: Results


def _program(
    model: nn.Module,
    x: torch.Tensor,
    names: Sequence[str],
    partitioner: Sequence[Partitioner],
    quantize: Callable[
        [etshared.ExportedEntryPoints], Mapping[str, ExportedProgram]
    ] = lambda exported: exported,
) -> HazardProgram:
    model = model.eval()
    exported = etshared.export(
        model, {name: etshared.EntryPoint(getattr(model, name), (x,)) for name in names}
    )
    programs = quantize(exported)
    with torch.no_grad():
        eager = {name: list(programs[name].module()(x)) for name in names}
    edge = etshared.to_edge_transform_and_lower(programs, partitioner=partitioner)
    return HazardProgram(bytes(edge.to_executorch().buffer), x, eager)


def _float(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    names: Sequence[str],
    partitioner: Callable[[], Partitioner] = XnnpackPartitioner,
) -> HazardProgram:
    torch.manual_seed(0)
    return _program(make(), x, names, [partitioner()])


def _quantized(
    way: str,
    make: Callable[[], nn.Module] = Layers,
    names: Sequence[str] = ("linears", "both", "convs"),
    partitioner: Sequence[Callable[[], Partitioner]] = (XnnpackPartitioner,),
    x: torch.Tensor | None = None,
) -> HazardProgram:
    torch.manual_seed(0)
    model = make()
    value = torch.randn(1, 4, 8, 8) if x is None else x

    def quantize(
        exported: etshared.ExportedEntryPoints,
    ) -> etshared.ExportedEntryPoints:
        calibration = [] if way == "dynamic" else [(n, (value,)) for n in names]
        return etshared.quantize(exported, quantized_models.quantizer(way), calibration)

    return _program(model, value, names, [one() for one in partitioner], quantize)


def _quantized_alone() -> HazardProgram:
    """Each entry point with ranges of its own, as if quantized by itself."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, 8, 8)

    def quantize(
        exported: etshared.ExportedEntryPoints,
    ) -> Mapping[str, ExportedProgram]:
        programs = {}
        for index, (name, one) in enumerate(exported.items()):
            quantizer = quantized_models.quantizer("per channel")
            prepared = prepare_pt2e(one.module(), quantizer)
            prepared((index + 1) * x)
            programs[name] = torch.export.export(convert_pt2e(prepared), (x,))
        return programs

    names = ("linears", "both")
    return _program(Layers(), x, names, [XnnpackPartitioner()], quantize)


def _few_bits(group: int | None, names: Sequence[str]) -> HazardProgram:
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        PerAxis,
        PerGroup,
        quantize_,
    )

    torch.manual_seed(0)
    model = FewBits()
    granularity = PerAxis(0) if group is None else PerGroup(group)
    quantize_(
        model,
        Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=granularity
        ),
    )
    x = torch.randn(3, 64)
    return _program(model, x, names, [XnnpackPartitioner()])


_IMAGE = (1, 4, 8, 8)
_ROW = torch.linspace(-1, 1, 8)[None]
_LAYERS = ("linears", "biases", "convs")
_WAYS_OF_ONE_WEIGHT = ("linear", "matrix", "pointwise", "reshaped", "mixed")

_BUILDERS: dict[str, Callable[[], HazardProgram]] = {
    "one weight": lambda: _float(OneWeight, torch.randn(3, 8), _WAYS_OF_ONE_WEIGHT),
    "convolutions": lambda: _float(
        Convolutions, torch.randn(_IMAGE), ("raw", "normed", "otherwise", "mixed")
    ),
    "elementwise": lambda: _float(
        Elementwise,
        torch.full((1, 64, 6, 6), -1.0),
        ("prelu", "twice", "scaled", "multiplied"),
    ),
    "adapters": lambda: _float(
        Adapters, torch.randn(1, 16), ("plain", "in_base", "in_both")
    ),
    "fp16": lambda: _float(
        lambda: Layers().half(), torch.randn(_IMAGE).half(), _LAYERS
    ),
    "bf16": lambda: _float(
        lambda: Layers().bfloat16(),
        torch.randn(_IMAGE).bfloat16(),
        ("linears", "biases"),
        lambda: XnnpackPartitioner(enable_bf16=True),
    ),
    "one operator a delegate": lambda: _float(
        Layers,
        torch.randn(_IMAGE),
        _LAYERS,
        lambda: XnnpackPartitioner(per_op_mode=True),
    ),
    "linear weights as inputs": lambda: _float(
        Layers,
        torch.randn(_IMAGE),
        # With this option 1.5.1 takes biases of convolutions for inputs too.
        ("linears", "biases"),
        lambda: XnnpackPartitioner(force_non_static_weights_for_f32_linear=True),
    ),
    "static per tensor": lambda: _quantized("per tensor", names=("linears", "convs")),
    "static per channel": lambda: _quantized(
        "per channel", names=("linears", "both", "convs", "deep")
    ),
    "static with other ranges": _quantized_alone,
    "dynamic": lambda: _quantized("dynamic"),
    "dynamic, then float": lambda: _quantized(
        "dynamic",
        names=("both", "convs"),
        partitioner=(
            XnnpackDynamicallyQuantizedPartitioner,
            XnnpackFloatingPointPartitioner,
        ),
    ),
    "four bits per group": lambda: _few_bits(32, ("one", "four", "both")),
    "four bits per channel": lambda: _few_bits(None, ("one", "four")),
    **{
        f"equal integers, {way}": functools.partial(
            _quantized, way, EqualIntegers, ("one", "four", "both"), x=_ROW
        )
        for way in ("per channel", "dynamic")
    },
    "equal integers, other scales": lambda: _quantized(
        "dynamic", OtherScales, ("one", "four"), x=_ROW
    ),
}
PROGRAMS = tuple(_BUILDERS)


@functools.cache
def program(name: str) -> HazardProgram:
    torch.manual_seed(0)
    return _BUILDERS[name]()
