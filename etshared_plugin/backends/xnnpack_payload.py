"""The payload of an XNNPACK delegate: its operators, values and constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import PartitionError
from ._generated import xnnpack_graph as generated

#: 1.5.1's serialization/xnnpack_graph_serialize.py: the magic "XH00" stands at
#: byte 4, the offset of the flatbuffer at byte 10.
_HEADER_MAGIC = b"XH00"

#: ``XNN_INVALID_VALUE_ID``: an operand that is not there, such as no bias.
_NO_VALUE = 0xFFFFFFFF

_NODE_KINDS = {
    number: name
    for name, number in vars(generated.XNodeUnion).items()
    if name.startswith("XNN")
}
_NODE_TABLES = dict(
    zip(
        range(1, len(_NODE_KINDS) + 1),
        generated.TABLES["XNode"][1][1]["union"],
        strict=True,
    )
)
_QUANTIZATION_TABLES = {
    number: name
    for name, number in vars(generated.XNNQuantParams).items()
    if name.startswith("Per")
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a value is quantized; ``scales`` is a constant's index, or 0."""

    kind: str
    parameters: tuple[tuple[str, object], ...]
    scales: int = 0


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the graph; ``constant`` is its constant's index, or 0."""

    datatype: int
    dims: tuple[int, ...]
    flags: int
    constant: int
    quantization: Quantization | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: what it computes, and the values by the name of their role."""

    kind: str
    parameters: tuple[tuple[str, object], ...]
    operands: Mapping[str, int]


class Payload:
    """Reads what ``preprocess`` of XNNPACK wrote, which is trusted.

    ``values`` are by id; ``keys`` are named-data keys by constant index.
    """

    def __init__(self, processed: bytes) -> None:
        self._processed = processed
        start = 0
        if processed[4:8] == _HEADER_MAGIC:
            start = int.from_bytes(processed[10:14], "little")
        graph = generated.XNNGraph.GetRootAs(processed, start)
        self._graph = graph
        self.values = dict(
            _value(graph.Xvalues(i)) for i in range(graph.XvaluesLength())
        )
        self.nodes = tuple(_node(graph.Xnodes(i)) for i in range(graph.XnodesLength()))
        self.keys = {
            index: key.decode()
            for index in range(1, graph.ConstantDataLength())
            if (key := graph.ConstantData(index).NamedKey())
        }

    def with_keys(self, keys: Mapping[int, str]) -> bytes:
        """Return the payload with other keys, each as long as the one it replaces."""
        changed = bytearray(self._processed)
        for index, key in keys.items():
            entry = self._graph.ConstantData(index)
            table = entry._tab
            start = table.Indirect(table.Pos + table.Offset(8)) + 4
            old = self.keys[index].encode()
            if changed[start : start + len(old)] != old or len(old) != len(key):
                raise PartitionError(
                    f"constant {index} of an XNNPACK delegate has the key"
                    f" '{self.keys[index]}', expected one of {len(key)} characters"
                )
            changed[start : start + len(old)] = key.encode()
        return bytes(changed)


def _value(entry: generated.XValue) -> tuple[int, Value]:
    union = entry.XvalueUnion()
    quantization = None
    table: Any
    if entry.XvalueUnionType() == generated.XValueUnion.XNNQuantizedTensorValue:
        quantized = generated.XNNQuantizedTensorValue()
        quantized.Init(union.Bytes, union.Pos)
        table = quantized.TensorValue()
        quantization = _quantization(quantized)
    else:
        table = generated.XNNTensorValue()
        table.Init(union.Bytes, union.Pos)
    return table.IdOut(), Value(
        table.Datatype(),
        tuple(table.Dims(i) for i in range(table.DimsLength())),
        table.Flags(),
        table.ConstantBufferIdx(),
        quantization,
    )


def _quantization(value: generated.XNNQuantizedTensorValue) -> Quantization | None:
    name = _QUANTIZATION_TABLES.get(value.QuantParamsType())
    if name is None:
        return None
    fields = _fields(name, value.QuantParams())
    scales = fields.pop("scale_buffer_idx", 0)
    assert isinstance(scales, int)
    return Quantization(name, tuple(sorted(fields.items())), scales)


def _node(entry: generated.XNode) -> Node:
    number = entry.XnodeUnionType()
    fields = _fields(_NODE_TABLES[number], entry.XnodeUnion())
    operands = {
        name.removesuffix("_id"): value
        for name, value in fields.items()
        if name.endswith("_id") and value != _NO_VALUE
    }
    parameters = {n: v for n, v in fields.items() if not n.endswith("_id")}
    return Node(_NODE_KINDS[number], tuple(sorted(parameters.items())), operands)  # type: ignore[arg-type]


def _fields(table_name: str, union: Any) -> dict[str, object]:  # noqa: ANN401
    """Read every field of a table through its generated reader."""
    table = getattr(generated, table_name)()
    table.Init(union.Bytes, union.Pos)
    fields: dict[str, object] = {}
    for name, layout in generated.TABLES[table_name]:
        accessor = "".join(part.capitalize() for part in name.split("_"))
        if not hasattr(table, accessor):
            continue  # deprecated, so there is no reader
        if isinstance(layout, list):
            count = getattr(table, f"{accessor}Length")()
            fields[name] = tuple(getattr(table, accessor)(i) for i in range(count))
        else:
            fields[name] = getattr(table, accessor)()
    return fields
