"""Take back what another partitioner has chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch import fx
from torch.export import ExportedProgram


class UndelegatingPartitioner(Partitioner):
    """Leaves the partitions of ``inner`` that hold one of ``operators`` undelegated.

    A partition goes as a whole: without a node in its middle, a delegate might
    need its own result.
    """

    def __init__(self, inner: Partitioner, operators: Collection[str]) -> None:
        super().__init__()
        self.inner = inner
        self.operators = operators

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[fx.Node], bool] | None]:
        return self.inner.ops_to_not_decompose(ep)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        result = self.inner.partition(exported_program)
        nodes = [
            node
            for node in result.tagged_exported_program.graph.nodes
            if "delegation_tag" in node.meta
        ]
        dropped = {
            node.meta["delegation_tag"]
            for node in nodes
            if getattr(node.target, "__name__", "") in self.operators
        }
        for node in nodes:
            if node.meta["delegation_tag"] in dropped:
                del node.meta["delegation_tag"]
        return PartitionResult(
            result.tagged_exported_program,
            {t: s for t, s in result.partition_tags.items() if t not in dropped},
        )
