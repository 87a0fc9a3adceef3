"""Sharing identities of the constants that XNNPACK packs.

XNNPACK's weight cache in ExecuTorch 1.5.1 finds packed weights by the names of
the unpacked weight and bias, which are digests of their bytes: equal bytes of
another shape, scale or operator collide there, and give wrong results. An
identity takes in everything that decides what packing makes of the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from .xnnpack_payload import Node, Payload, Value

#: Names the rules below; whoever changes them must change every identity.
_RULES = "etshared XNNPACK identity 2"

#: How the payload calls the quantization of an input that is quantized at run time.
_DYNAMIC = "PerTokenDynamicQuant"

#: The operand that an operator packs, with the bias in it.
_PACKED_OPERANDS = {
    "XNNFullyConnected": "filter",
    "XNNConv2d": "filter",
    "XNNDepthwiseConv2d": "filter",
    "XNNConvTranspose2d": "filter",
    "XNNBatchMatrixMultiply": "input2",
}


@dataclass(frozen=True, slots=True)
class PackedOperand:
    """A constant that a node packs.

    ``node`` is the node's position, ``role`` what it calls the operand, ``value``
    the operand's id, ``constant`` the constant's index.
    """

    node: int
    role: str
    value: int
    constant: int
    identity: str


def packed_operands(payload: Payload) -> Iterator[PackedOperand]:
    """Yield the constants that nodes pack, with their identities."""
    for position, node in enumerate(payload.nodes):
        role = _PACKED_OPERANDS.get(node.kind)
        if role is None:
            continue
        value = node.operands[role]
        constant = payload.values[value].constant
        if constant:
            facts = (_RULES, payload.keys[constant], _facts(payload, node, role))
            identity = hashlib.sha256(repr(facts).encode()).hexdigest()
            yield PackedOperand(position, role, value, constant, identity)


def _facts(payload: Payload, node: Node, packed: str) -> tuple[object, ...]:
    """Return what decides packing, but for the bytes of weight and bias."""
    operands = [
        (role, _meaning(payload, payload.values[value], with_sizes=role == packed))
        for role, value in sorted(node.operands.items())
        if role != "bias"
    ]
    return node.kind, node.parameters, tuple(operands), _bias_fact(payload, node)


def _bias_fact(payload: Payload, node: Node) -> str:
    """Return which bias is packed, where the name in the cache does not say so.

    The name is that of the weight followed by that of the bias, but operators on
    dynamically quantized inputs look up the weight alone.
    """
    values = [payload.values[value] for value in node.operands.values()]
    bias = node.operands.get("bias")
    if bias is None or not any(
        value.quantization is not None and value.quantization.kind == _DYNAMIC
        for value in values
    ):
        return ""
    key: str = payload.keys.get(payload.values[bias].constant, "")
    return key


def _meaning(payload: Payload, value: Value, *, with_sizes: bool) -> tuple[object, ...]:
    quantization: tuple[object, ...] = ()
    if value.quantization is not None:
        scales = value.quantization.scales
        quantization = (
            value.quantization.kind,
            value.quantization.parameters,
            payload.keys[scales] if scales else "",
        )
    return value.datatype, value.dims if with_sizes else (), quantization
