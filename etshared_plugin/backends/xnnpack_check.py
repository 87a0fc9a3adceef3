"""What XNNPACK packs more often than once, as a program's file tells."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..inspection import DelegateReport, Finding, ProgramReport, Severity, WeightReport
from ..pte import PteFile
from ..wording import quoted
from ._generated.xnnpack_graph import XNNDatatype
from .xnnpack_identity import PackedOperand, packed_operands
from .xnnpack_payload import Payload, Value

#: Names that exporting makes up for constants.
_MADE_UP = ("_frozen_param", "_tensor_constant", "_lifted_tensor_constant")


@dataclass(frozen=True, slots=True)
class _Packing:
    """One use of a weight, with all that XNNPACK's packed form may depend on."""

    entry_point: str
    key: str
    constant: int
    identity: str
    datatype: int
    facts: dict[str, object]

    @property
    def packed(self) -> tuple[str, object]:
        """Return what is equal exactly where there is one packed copy."""
        return self.key, self.facts["bias"]


def packing_findings(
    report: ProgramReport, backend_id: str, option: str
) -> Iterator[Finding]:
    """Yield notes on weights that are packed several times.

    Args:
        report: what a program with a record holds.
        backend_id: which delegates are XNNPACK's.
        option: their option that is "true" where packed weights are shared.
    """
    program = PteFile(report.path)
    weights = {key: weight for weight in report.weights for key in weight.keys}
    shared: list[_Packing] = []
    for delegate in report.delegates:
        if delegate.backend_id != backend_id:
            continue
        packings = _packings(delegate, program)
        if delegate.options.get(option) == "true":
            shared += packings
        elif packings:
            yield _unshared(delegate, packings, weights, option)
    yield from _repeated(shared, weights)


def _packings(delegate: DelegateReport, program: PteFile) -> list[_Packing]:
    plan = program.plans[delegate.entry_point]
    if delegate.index >= len(plan.delegates):
        return []
    processed = bytes(program.delegate_payload(plan.delegates[delegate.index]))
    if hashlib.sha256(processed).hexdigest() != delegate.payload_digest:
        return []  # which is an error already
    payload = Payload(processed)
    return [
        _Packing(
            delegate.entry_point,
            payload.keys[operand.constant],
            operand.constant,
            operand.identity,
            payload.values[operand.value].datatype,
            _facts(payload, operand),
        )
        for operand in packed_operands(payload)
    ]


def _facts(payload: Payload, operand: PackedOperand) -> dict[str, object]:
    node = payload.nodes[operand.node]
    facts: dict[str, object] = {
        "operator": node.kind,
        "bias": "",
        **dict(node.parameters),
    }
    for role, index in node.operands.items():
        value = payload.values[index]
        if role == "bias":
            facts["bias"] = payload.keys.get(value.constant, "")
            continue
        facts[f"type of {role}"] = value.datatype
        facts[f"quantization of {role}"] = _quantization(payload, value)
        if role == operand.role:
            facts[f"sizes of {role}"] = value.dims
    return facts


def _quantization(payload: Payload, value: Value) -> object:
    if value.quantization is None:
        return None
    scales = payload.keys.get(value.quantization.scales)
    return value.quantization.kind, value.quantization.parameters, scales


def _unshared(
    delegate: DelegateReport,
    packings: list[_Packing],
    weights: dict[str, WeightReport],
    option: str,
) -> Finding:
    ways = Counter(key for key, _ in {(p.key, p.identity) for p in packings})
    several = [key for key, count in sorted(ways.items()) if count > 1]
    value = delegate.options.get(option)
    why = f"its option '{option}' is " + ("not set" if value is None else f"'{value}'")
    if several:
        differing = set[str]().union(
            *(_differences([p for p in packings if p.key == key]) for key in several)
        )
        why = (
            f"it packs {_names(several, weights)} in several ways, which differ in "
            + ", ".join(sorted(differing))
        )
    elif any(p.datatype == XNNDatatype.xnn_datatype_bf16 for p in packings):
        why = "XNNPACK in ExecuTorch 1.5.1 crashes where it shares bfloat16 weights"
    return Finding(
        Severity.NOTE,
        "not-shared",
        f"{why}, so each session packs all weights of this entry point for itself, "
        f"here {_names(ways, weights)}",
        f"entry point '{delegate.entry_point}', delegate {delegate.index}",
    )


def _repeated(
    packings: Iterable[_Packing], weights: dict[str, WeightReport]
) -> Iterator[Finding]:
    by_bytes: dict[tuple[str, tuple[int, ...]], list[_Packing]] = {}
    for packing in packings:
        weight = weights.get(packing.key)
        if weight is not None:
            sizes = tuple(size for size in weight.sizes if size != 1)
            by_bytes.setdefault((weight.digest, sizes), []).append(packing)
    for same in by_bytes.values():
        keys = sorted({packing.key for packing in same})
        named = {fqn for key in keys for fqn in weights[key].fqns}
        layers = {fqn for fqn in named if not fqn.startswith(_MADE_UP)}
        users: dict[tuple[str, object], set[str]] = {}
        for packing in same:
            users.setdefault(packing.packed, set()).add(packing.entry_point)
        # Layers with equal bytes are packed once each.
        if len(users) <= max(1, len(layers)):
            continue
        of_each = "; ".join(
            sorted(quoted(sorted(entry_points)) for entry_points in users.values())
        )
        yield Finding(
            Severity.NOTE,
            "packed-repeatedly",
            f"its {weights[keys[0]].nbytes} bytes are packed {len(users)} times, for "
            f"entry points {of_each}: they differ in "
            + ", ".join(sorted(_differences(same))),
            f"weight {_names(keys, weights)}",
        )


def _differences(packings: list[_Packing]) -> set[str]:
    """Return the names of facts in which packings of the same bytes differ."""
    return {
        name
        for packing in packings
        for name in packing.facts
        if len({other.facts.get(name) for other in packings}) > 1
    }


def _names(keys: Iterable[str], weights: dict[str, WeightReport]) -> str:
    names = set[str]()
    for key in keys:
        names.update((weights[key].fqns if key in weights else ()) or (key,))
    return quoted(sorted(names))
