"""Give shared state one place in memory, the same for every entry point."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch.exir.tensor import ALIGNMENT, TensorSpec
from torch import fx
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.passes.infra.pass_base import PassResult

from ..errors import MemoryPlanningError
from ..state import SharedState

#: Where shared state lies unless a caller's own plan uses that memory.
STATE_MEM_ID = 2

#: XNNPACK may read this far past the end of its inputs (``XNN_EXTRA_BYTES``).
_READ_AHEAD_NBYTES = 64


@runtime_checkable
class MemoryPlanner(Protocol):
    """Plans all entry points of one program."""

    def plan_method(
        self,
        method_name: str,
        graph_module: fx.GraphModule,
        graph_signature: ExportGraphSignature,
    ) -> PassResult:
        """Place everything of one entry point but shared state."""

    def plan_shared(self) -> None:
        """Place shared state; called once, after every ``plan_method``."""


class SharedMemoryPlanner:
    """Leaves activations to the caller's passes and places state beside them.

    Args:
        passes: by entry point, a pass that leaves buffers unplanned.
        state: the shared state. Offsets follow from names only, so that the same
            model gives the same bytes.
        alignment: of each piece of state, in bytes.
    """

    def __init__(
        self,
        passes: Mapping[str, Any],
        state: SharedState,
        *,
        alignment: int = ALIGNMENT,
    ) -> None:
        self._passes = passes
        self._state = state
        self._alignment = alignment
        self._planned: list[tuple[fx.GraphModule, ExportGraphSignature]] = []

    def plan_method(
        self,
        method_name: str,
        graph_module: fx.GraphModule,
        graph_signature: ExportGraphSignature,
    ) -> PassResult:
        inner = self._passes[method_name]
        try:
            result: PassResult = (
                inner.run(graph_module, graph_signature)
                if hasattr(inner, "run")
                else inner(graph_module)
            )
        except AssertionError as error:
            # The last step of 1.5.1's pass knows no method without tensor results.
            if str(error) != "graph_output_allocated not set":
                raise
            result = PassResult(graph_module, True)
        self._planned.append((result.graph_module, graph_signature))
        return result

    def plan_shared(self) -> None:
        if not self._state:
            return
        sizes = [module.meta["non_const_buffer_sizes"] for module, _ in self._planned]
        mem_id = max(STATE_MEM_ID, *map(len, sizes))
        offsets: dict[str, int] = {}
        end = 0
        for buffer in sorted(self._state.values(), key=lambda b: (b.group, b.fqn)):
            offsets[buffer.fqn] = end
            end += -(-buffer.initial_value.nbytes // self._alignment) * self._alignment
        for module, signature in self._planned:
            for fqn, spec in state_specs(module, signature, self._state):
                spec.mem_id = mem_id
                spec.realign(self._alignment)
                spec.mem_offset = offsets[fqn]
        for planned in sizes:
            planned.extend([0] * (mem_id - len(planned)))
            planned.append(end + _READ_AHEAD_NBYTES)


def state_nodes(
    graph_module: fx.GraphModule,
    graph_signature: ExportGraphSignature,
    state: SharedState,
) -> list[tuple[str, fx.Node]]:
    """Return the placeholder of each piece of shared state that a method uses."""
    fqns = graph_signature.inputs_to_buffers
    return [
        (fqns[node.target], node)
        for node in graph_module.graph.nodes
        if node.op == "placeholder" and fqns.get(node.target) in state
    ]


def state_specs(
    graph_module: fx.GraphModule,
    graph_signature: ExportGraphSignature,
    state: SharedState,
) -> list[tuple[str, TensorSpec]]:
    """Return the spec of each piece of shared state that a method uses."""
    nodes = state_nodes(graph_module, graph_signature, state)
    return [(fqn, node.meta["spec"]) for fqn, node in nodes]


class MethodPlanningPass:
    """What ExecuTorch takes for one entry point's memory-planning pass.

    1.5.1 calls ``run_multimethod()`` of every entry point's pass after all have
    run; the first call plans what is shared and ``finish`` does the rest.
    """

    def __init__(
        self, method_name: str, planner: MemoryPlanner, finish: Callable[[], None]
    ) -> None:
        self._method_name = method_name
        self._planner = planner
        self._finish = finish
        self.planned: tuple[fx.GraphModule, ExportGraphSignature] | None = None

    def run(
        self, graph_module: fx.GraphModule, graph_signature: ExportGraphSignature
    ) -> PassResult:
        result = self._planner.plan_method(
            self._method_name, graph_module, graph_signature
        )
        self.planned = (result.graph_module, graph_signature)
        for node in result.graph_module.graph.nodes:
            # 1.5.1 asks for it where a config has emit_stacktrace.
            node.meta.setdefault("stack_trace", "")
        return result

    def run_multimethod(self) -> None:
        self._finish()


def without_buffers(
    memory_planning_pass: Any,  # noqa: ANN401
    method_name: str,
    enable_non_cpu_memory_planning: bool,
) -> Any:  # noqa: ANN401
    """Copy a caller's pass and tell it to leave mutable buffers unplanned."""
    inner = copy.copy(memory_planning_pass)
    if isinstance(inner, MemoryPlanningPass):
        inner.alloc_mutable_buffers = False
        inner.share_mutable_buffers = False
        inner.enable_non_cpu_memory_planning = enable_non_cpu_memory_planning
    elif not callable(inner) and not hasattr(inner, "run"):
        raise MemoryPlanningError(
            f"memory_planning_pass of entry point '{method_name}' is a"
            f" {type(inner).__name__}, expected a pass",
            method_name=method_name,
        )
    return inner
