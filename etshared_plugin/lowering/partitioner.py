"""A partitioner that never lets a delegate keep shared state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec

from ..errors import PartitionError
from ..lifted.computed_weights import separate_computed_weights


class SharedStatePartitioner(Partitioner):  # type: ignore[misc]
    """Shows shared state to ``inner`` as plain inputs, and checks what it did.

    A partitioner takes a buffer that an entry point only reads for a constant
    and freezes it into its delegate, where another entry point's writes do not
    reach it. ``to_edge_transform_and_lower`` of this package puts this class
    around every partitioner; in another flow give the fqns of the state.

    Args:
        inner: any partitioner.
        state: fqns of shared buffers of the programs to be partitioned.
        method_name: for error messages.
    """

    def __init__(
        self,
        inner: Partitioner,
        state: Sequence[str] = (),
        *,
        method_name: str | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.state = tuple(state)
        self.method_name = method_name

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[fx.Node], bool] | None]:
        # The filter runs later, on the same program, with state shown as inputs.
        with self._state_as_inputs(ep):
            operators, keep = self.inner.ops_to_not_decompose(ep)

        def keep_outside_branches(node: fx.Node) -> bool:
            # In a branch every weight is an input, which delegates do not take.
            if node.graph is not ep.graph:
                return False
            with self._state_as_inputs(ep):
                return keep is None or bool(keep(node))

        return operators, keep_outside_branches

    def transform_for_pre_decomposition(self, ep: ExportedProgram) -> ExportedProgram:
        transformed: ExportedProgram = self.inner.transform_for_pre_decomposition(ep)
        return transformed

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        separate_computed_weights(exported_program.graph)
        with self._state_as_inputs(exported_program):
            result = self.inner.partition(exported_program)
        for fqn, node in self._state_nodes(result.tagged_exported_program):
            if "delegation_tag" in node.meta:
                method = (
                    f"entry point '{self.method_name}': " if self.method_name else ""
                )
                raise PartitionError(
                    f"{method}{type(self.inner).__name__} moves shared buffer '{fqn}'"
                    " into a delegate, where other entry points cannot see it; tell it"
                    " to leave mutable buffers alone",
                    method_name=self.method_name,
                    fqn=fqn,
                )
        return result

    @contextmanager
    def _state_as_inputs(self, program: ExportedProgram) -> Iterator[None]:
        specs = program.graph_signature.input_specs
        shown = [
            InputSpec(InputKind.USER_INPUT, spec.arg, None)
            if spec.kind is InputKind.BUFFER and spec.target in self.state
            else spec
            for spec in specs
        ]
        program.graph_signature.input_specs = shown
        try:
            yield
        finally:
            program.graph_signature.input_specs = specs

    def _state_nodes(self, program: ExportedProgram) -> Iterator[tuple[str, fx.Node]]:
        """Pair state with its placeholders, be it buffers or leading inputs."""
        specs = program.graph_signature.input_specs
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        buffers = {
            str(spec.target): node
            for node, spec in zip(nodes, specs, strict=True)
            if spec.kind is InputKind.BUFFER and spec.target in self.state
        }
        inputs = [
            node
            for node, spec in zip(nodes, specs, strict=True)
            if spec.kind is InputKind.USER_INPUT
        ]
        yield from (buffers or dict(zip(self.state, inputs, strict=False))).items()
