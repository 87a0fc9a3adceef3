"""XNNPACK as a plugin: what its delegates hold."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..context.scalar_type import ScalarType
from ..hookspecs import (
    DelegateConstant,
    DelegateDescription,
    IdentifiedConstants,
    hookimpl,
)
from ._generated.xnnpack_graph import XNNDatatype as _D
from .xnnpack_identity import packed_operands
from .xnnpack_payload import Payload

if TYPE_CHECKING:
    import torch
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    from ..inspection import Finding, ProgramReport
    from .xnnpack_partitioner import SharedXnnpackPartitioner

__all__ = [
    "SharedXnnpackPartitioner",
    "etshared_check",
    "etshared_describe_delegate",
    "etshared_identify_constants",
    "etshared_wrap_partitioner",
]

_BACKEND_ID = "XnnpackBackend"

#: XNNPACK's option that turns its weight cache on for one load.
_CACHE_OPTION = "weight_cache_enabled"

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


def __getattr__(name: str) -> object:
    # Programs run without torch, which the partitioner needs.
    if name != "SharedXnnpackPartitioner":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from .xnnpack_partitioner import SharedXnnpackPartitioner

    return SharedXnnpackPartitioner


@hookimpl
def etshared_wrap_partitioner(
    partitioner: Partitioner, method_name: str, state: tuple[str, ...]
) -> Partitioner:
    from .xnnpack_constants import ConstantsApartPartitioner

    return ConstantsApartPartitioner(partitioner, state, method_name=method_name)


@hookimpl
def etshared_describe_delegate(
    lowered_module: LoweredBackendModule,
) -> DelegateDescription | None:
    if lowered_module.backend_id != _BACKEND_ID:
        return None
    payload = Payload(lowered_module.processed_bytes)
    constants = {c.key: c for c in _constants(payload, _names(lowered_module))}
    operators = Counter(node.kind.removeprefix("XNN") for node in payload.nodes)
    return DelegateDescription(operators, tuple(constants.values()))


@hookimpl
def etshared_identify_constants(
    lowered_module: LoweredBackendModule,
) -> IdentifiedConstants | None:
    if lowered_module.backend_id != _BACKEND_ID:
        return None
    payload = Payload(lowered_module.processed_bytes)
    identities: dict[int, set[str]] = {}
    operands = list(packed_operands(payload))
    for operand in operands:
        identities.setdefault(operand.constant, set()).add(operand.identity)
    # Where operators pack one constant in two ways, one name would stand for both.
    is_shareable = all(len(several) == 1 for several in identities.values())
    # 1.5.1 with the cache on crashes where it packs bfloat16 weights.
    is_shareable = is_shareable and not any(
        payload.values[operand.value].datatype == _D.xnn_datatype_bf16
        for operand in operands
    )
    changed = {i: min(several) for i, several in identities.items() if is_shareable}
    keys = {**payload.keys, **changed}
    return IdentifiedConstants(
        payload.with_keys(changed),
        {key: payload.keys[index] for index, key in keys.items()},
        {_CACHE_OPTION: "true" if is_shareable else "false"},
    )


@hookimpl
def etshared_check(report: ProgramReport) -> Iterable[Finding]:
    if report.record != "present":
        return ()
    from .xnnpack_check import packing_findings

    return packing_findings(report, _BACKEND_ID, _CACHE_OPTION)


#: By key: names in the module with the sizes that the bytes have there.
_Names = dict[str, set[tuple[str, tuple[int, ...]]]]


def _constants(payload: Payload, names: _Names) -> Iterator[DelegateConstant]:
    for value in payload.values.values():
        if value.constant:
            key = payload.keys[value.constant]
            scalar_type, quantization = _SCALAR_TYPES.get(
                value.datatype, (ScalarType.BYTE, f"XNNPACK type {value.datatype}")
            )
            sizes = _without_ones(value.dims)
            fqns = sorted(fqn for fqn, own in names.get(key, ()) if own == sizes)
            yield DelegateConstant(
                key, scalar_type, value.dims, tuple(fqns), quantization
            )
        if value.quantization is not None and value.quantization.scales:
            blockwise = value.quantization.kind == "PerChannelGroupQuant"
            count = dict(value.quantization.parameters)["num_scales"]
            assert isinstance(count, int)
            yield DelegateConstant(
                payload.keys[value.quantization.scales],
                ScalarType.BFLOAT16 if blockwise else ScalarType.FLOAT,
                (count,),
                quantization="scales",
            )


def _names(lowered_module: LoweredBackendModule) -> _Names:
    """Find constants whose bytes stand in the module.

    XNNPACK stores float32 in the module's layout, or convolution weights with
    the input channels last; what it folds or quantizes has no name there.
    """
    stored = lowered_module.named_data_store_output
    if stored is None:
        return {}
    program = lowered_module.original_module
    by_digest: _Names = {}
    for fqn, tensor in {**program.state_dict, **program.constants}.items():
        for digest, sizes in _layouts(tensor):
            by_digest.setdefault(digest, set()).add((fqn, sizes))
    return {
        key: by_digest.get(
            hashlib.sha256(stored.buffers[entry.buffer_index]).hexdigest(), set()
        )
        for key, entry in stored.pte_data.items()
    }


def _layouts(tensor: torch.Tensor) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the digest and the sizes of each layout that XNNPACK may store."""
    value = tensor.detach()
    layouts = [value.contiguous()]
    if value.dim() in (3, 4):
        layouts.append(value.movedim(1, -1).contiguous())
    for layout in layouts:
        if layout.numel():
            data = layout.flatten().view(_uint8()).numpy().data
            yield hashlib.sha256(data).hexdigest(), _without_ones(tuple(layout.shape))


def _without_ones(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size != 1)


def _uint8() -> torch.dtype:
    import torch

    return torch.uint8
