"""Refusals of writes whose results depend on the order of elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import StateError
from ..lifted.graph_surgery import aliased_inputs, memory_owners
from ..lifted.lifted_state import LiftedProgram

_INDEXED = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("index_add_", "index_copy_", "index_put_", "scatter_", "scatter_add_")
)


def refuse_overlaps(name: str, lifted: LiftedProgram) -> None:
    """Refuse writes to state from a part of it that they change on the way.

    Eager finds that in tensors without gaps only, and refuses it too; see
    ``at::get_overlap_status`` in ATen/MemoryOverlap.cpp. In others it reads what it
    has written before, where the program reads what was there at first.

    Raises:
        StateError: for such a write.
    """
    graph = lifted.program.graph
    owners = memory_owners(graph)
    fqns = {
        clone: fqn
        for fqn, placeholder in lifted.state_placeholders().items()
        for clone in placeholder.users
    }
    for node in graph.nodes:
        inputs = node.all_input_nodes
        for written in {one for one, is_write in aliased_inputs(node) if is_write}:
            for read in inputs:
                shared = owners[written] & owners[read] & fqns.keys()
                if read is written or not shared:
                    continue
                if _depends_on_order(node, written.meta["val"], read.meta["val"]):
                    fqn = min(fqns[clone] for clone in shared)
                    raise StateError(
                        f"entry point '{name}' writes part of '{fqn}' from another"
                        f" part that overlaps it ({node.target}), which depends on"
                        " the order of elements; write a clone() of what is read",
                        method_name=name,
                        fqn=fqn,
                    )


def _depends_on_order(node: fx.Node, written: torch.Tensor, read: torch.Tensor) -> bool:
    if _storage(written) != _storage(read):
        return False  # `contiguous` and `reshape` have made a copy.
    sizes = (*written.shape, *written.stride(), *read.shape, *read.stride())
    start, read_start = written.storage_offset(), read.storage_offset()
    # What is not known before may or may not overlap.
    if not all(isinstance(one, int) for one in (*sizes, start, read_start)):
        return False
    if 0 in (*written.shape, *read.shape):
        return False
    if written.shape == read.shape and written.stride() == read.stride():
        is_indexed = getattr(node.target, "overloadpacket", None) in _INDEXED
        # From front to back, what moves to the front is read before it is written.
        if start == read_start or (start < read_start and not is_indexed):
            return False
    memory = np.empty(written.untyped_storage().nbytes(), np.uint8)
    return np.shares_memory(_elements(written, memory), _elements(read, memory))


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _elements(tensor: torch.Tensor, memory: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Return an array that lies in ``memory`` as a tensor does in its own."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    offset = tensor.storage_offset() * size
    elements: npt.NDArray[Any] = np.ndarray(
        tuple(tensor.shape), f"V{size}", memory, offset, strides
    )
    return elements
