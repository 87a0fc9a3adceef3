"""XNNPACK as a plugin: what its delegates hold."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..context.scalar_type import ScalarType
from ..hookspecs import DelegateConstant, DelegateDescription, hookimpl
from ._generated import xnnpack_graph as generated

if TYPE_CHECKING:
    import torch
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    from .xnnpack_partitioner import SharedXnnpackPartitioner

__all__ = ["SharedXnnpackPartitioner", "etshared_describe_delegate"]

_BACKEND_ID = "XnnpackBackend"

#: 1.5.1's serialization/xnnpack_graph_serialize.py: the magic "XH00" stands at
#: byte 4, the offset and the size of the flatbuffer at bytes 10 and 14.
_HEADER_MAGIC = b"XH00"

_D = generated.XNNDatatype
_SCALAR_TYPES = {
    _D.xnn_datatype_fp32: (ScalarType.FLOAT, ""),
    _D.xnn_datatype_fp16: (ScalarType.HALF, ""),
    _D.xnn_datatype_bf16: (ScalarType.BFLOAT16, ""),
    _D.xnn_datatype_int32: (ScalarType.INT, ""),
    _D.xnn_datatype_qint8: (ScalarType.CHAR, "per-tensor int8"),
    _D.xnn_datatype_quint8: (ScalarType.BYTE, "per-tensor uint8"),
    _D.xnn_datatype_qint32: (ScalarType.INT, "per-tensor int32"),
    _D.xnn_datatype_qcint8: (ScalarType.CHAR, "per-channel int8"),
    _D.xnn_datatype_qcint32: (ScalarType.INT, "per-channel int32"),
    _D.xnn_datatype_qcint4: (ScalarType.BYTE, "per-channel int4"),
    _D.xnn_datatype_qbint4: (ScalarType.BYTE, "blockwise int4"),
}

_OPERATOR_NAMES = {
    value: name.removeprefix("XNN")
    for name, value in vars(generated.XNodeUnion).items()
    if name.startswith("XNN")
}


def __getattr__(name: str) -> object:
    # Programs run without torch, which the partitioner needs.
    if name != "SharedXnnpackPartitioner":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from .xnnpack_partitioner import SharedXnnpackPartitioner

    return SharedXnnpackPartitioner


@hookimpl
def etshared_describe_delegate(
    lowered_module: LoweredBackendModule,
) -> DelegateDescription | None:
    if lowered_module.backend_id != _BACKEND_ID:
        return None
    graph = _graph(lowered_module.processed_bytes)
    fqns = _fqns_by_digest(lowered_module.original_module)
    operators = Counter(
        _OPERATOR_NAMES[graph.Xnodes(i).XnodeUnionType()]
        for i in range(graph.XnodesLength())
    )
    constants = {c.key: c for c in _constants(graph, fqns)}
    return DelegateDescription(operators, tuple(constants.values()))


def _graph(payload: bytes) -> generated.XNNGraph:
    start = 0
    if payload[4:8] == _HEADER_MAGIC:
        start = int.from_bytes(payload[10:14], "little")
    return generated.XNNGraph.GetRootAs(payload, start)


def _constants(
    graph: generated.XNNGraph, fqns: dict[str, tuple[str, ...]]
) -> Iterator[DelegateConstant]:
    for i in range(graph.XvaluesLength()):
        union = graph.Xvalues(i)
        table = union.XvalueUnion()
        value: Any
        scales: Any = None
        if union.XvalueUnionType() == generated.XValueUnion.XNNQuantizedTensorValue:
            quantized = generated.XNNQuantizedTensorValue()
            quantized.Init(table.Bytes, table.Pos)
            value = quantized.TensorValue()
            scales = _scales(quantized)
        else:
            value = generated.XNNTensorValue()
            value.Init(table.Bytes, table.Pos)
        index = value.ConstantBufferIdx()
        if index:
            key = graph.ConstantData(index).NamedKey().decode()
            scalar_type, quantization = _SCALAR_TYPES[value.Datatype()]
            sizes = tuple(value.Dims(d) for d in range(value.DimsLength()))
            yield DelegateConstant(
                key, scalar_type, sizes, fqns.get(key, ()), quantization
            )
        if scales is not None and scales.ScaleBufferIdx():
            key = graph.ConstantData(scales.ScaleBufferIdx()).NamedKey().decode()
            blockwise = isinstance(scales, generated.PerChannelGroupQuant)
            yield DelegateConstant(
                key,
                ScalarType.BFLOAT16 if blockwise else ScalarType.FLOAT,
                (scales.NumScales(),),
                quantization="scales",
            )


def _scales(
    value: generated.XNNQuantizedTensorValue,
) -> generated.PerChannelQuant | generated.PerChannelGroupQuant | None:
    kinds = {
        generated.XNNQuantParams.PerChannelQuant: generated.PerChannelQuant,
        generated.XNNQuantParams.PerChannelGroupQuant: generated.PerChannelGroupQuant,
    }
    kind = kinds.get(value.QuantParamsType())
    if kind is None:
        return None
    table = value.QuantParams()
    scales = kind()
    scales.Init(table.Bytes, table.Pos)
    return scales


def _fqns_by_digest(program: Any) -> dict[str, tuple[str, ...]]:  # noqa: ANN401
    """Return the fqns of each constant by the SHA-256 of what XNNPACK stores.

    It stores float32 in the module's layout, or convolution weights with the
    input channels last; what it folds or quantizes has no name in the module.
    """
    names: dict[str, set[str]] = {}
    for fqn, tensor in {**program.state_dict, **program.constants}.items():
        for digest in _digests(tensor):
            names.setdefault(digest, set()).add(fqn)
    return {digest: tuple(sorted(fqns)) for digest, fqns in names.items()}


def _digests(tensor: torch.Tensor) -> set[str]:
    value = tensor.detach().contiguous()
    layouts = [value]
    if value.dim() in (3, 4):
        layouts.append(value.movedim(1, -1).contiguous())
    return {
        hashlib.sha256(layout.flatten().view(_uint8()).numpy().data).hexdigest()
        for layout in layouts
        if layout.numel()
    }


def _uint8() -> torch.dtype:
    import torch

    return torch.uint8
