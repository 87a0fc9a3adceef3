"""Find each distinct constant of a program and everything that uses it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import scalar_type_enum
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind

from ..context import ScalarType, Weight
from ..hookspecs import DelegateConstant, DelegateDescription
from ..lifted.program_surgery import buffer_tensor


@dataclass(slots=True)
class _Uses:
    """One distinct constant while its uses are collected."""

    digest: bytes
    nbytes: int
    constant: DelegateConstant
    keys: set[str] = field(default_factory=set)
    fqns: set[str] = field(default_factory=set)
    delegates: set[int] = field(default_factory=set)
    entry_points: set[int] = field(default_factory=set)
    external: bool = False


class WeightTable:
    """Collects constants by their sharing identity.

    Args:
        named_data: what the delegates of all methods stored.
    """

    def __init__(self, named_data: NamedDataStore) -> None:
        self._stored = named_data.get_named_data_store_output()
        self._entries = dict(self._stored.pte_data)
        for entries in self._stored.external_data.values():
            self._entries.update(entries)
        self._uses: dict[str, _Uses] = {}

    def add_delegate(
        self,
        lowered_module: LoweredBackendModule,
        description: DelegateDescription,
        delegate: int,
    ) -> None:
        """Add what a delegate keeps in the program's named data, or in data files."""
        own = lowered_module.named_data_store_output
        if own is None:
            return
        described = {constant.key: constant for constant in description.constants}
        outside = {key for keys in own.external_data.values() for key in keys}
        for key in (*own.pte_data, *outside):
            data = self._stored.buffers[self._entries[key].buffer_index]
            constant = described.get(key) or DelegateConstant(
                key, ScalarType.BYTE, (len(data),)
            )
            uses = self._add(memoryview(data), constant)
            uses.keys.add(key)
            uses.fqns.update(constant.fqns)
            uses.delegates.add(delegate)
            uses.external = key in outside

    def add_kernels(
        self,
        program: ExportedProgram,
        planned: tuple[fx.GraphModule, ExportGraphSignature],
        entry_point: int,
    ) -> None:
        """Add the constants that an entry point's own kernels use."""
        graph_module, signature = planned
        nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(nodes, signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:  # which may be a number
                continue
            is_planned = node.meta["spec"].mem_id is not None
            is_external = node.meta.get("constant_tag") is not None
            if is_planned or is_external:
                continue
            tensor = buffer_tensor(program, str(spec.target)).detach()
            scalar_type = ScalarType(int(scalar_type_enum(tensor.dtype)))
            uses = self._add(
                _stored_bytes(tensor),
                DelegateConstant("", scalar_type, tuple(tensor.shape)),
            )
            uses.fqns.add(str(spec.target))
            uses.entry_points.add(entry_point)

    def weights(self) -> tuple[Weight, ...]:
        """Return every constant, in an order that follows from what it is."""
        return tuple(
            Weight(
                identity,
                uses.digest,
                uses.nbytes,
                uses.constant.scalar_type,
                uses.constant.sizes,
                tuple(sorted(uses.keys)),
                tuple(sorted(uses.fqns)),
                uses.constant.quantization,
                tuple(sorted(uses.delegates)),
                tuple(sorted(uses.entry_points)),
                uses.external,
            )
            for identity, uses in sorted(self._uses.items())
        )

    def _add(self, data: memoryview, constant: DelegateConstant) -> _Uses:
        digest = hashlib.sha256(data).digest()
        # A backend shares what has one key; kernels share what is stored once.
        identity = (
            constant.key
            or hashlib.sha256(
                repr((digest.hex(), int(constant.scalar_type), constant.sizes)).encode()
            ).hexdigest()
        )
        return self._uses.setdefault(identity, _Uses(digest, data.nbytes, constant))


def _stored_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes as the emitter stores them: dense, in the tensor's layout."""
    if not (
        tensor.is_contiguous()
        or (
            tensor.dim() == 4
            and tensor.is_contiguous(memory_format=torch.channels_last)
        )
    ):
        tensor = tensor.contiguous()
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: -strides[d])
    dense = tensor.permute(order).contiguous().flatten()
    return dense.view(torch.uint8).numpy().data
