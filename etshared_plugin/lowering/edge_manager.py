"""An edge program manager whose entry points share state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.passes.quant_fusion_pass import quant_fusion_and_const_prop_pass
from executorch.exir.passes.reinplace import DEFAULT_INPLACEABLE_OPS, reinplace_pass
from torch import fx
from torch.export import ExportedProgram

from ..context import encode
from ..context.model import CONTEXT_KEY
from ..errors import EtsharedError, LoweringError
from ..lifted.lifted_state import LiftedProgram
from ..lifted.program_surgery import clone_operator, copied_program
from ..lifted.restored_state import restore
from ..plugins import plugin_manager
from ..state import SharedState
from .adjusted_executorch import adjusted_executorch
from .arguments import Partitioners, check_passes, check_planning, wrapped_partitioners
from .faithful_kernels import with_faithful_kernels
from .memory_planning import (
    MemoryPlanner,
    MethodPlanningPass,
    SharedMemoryPlanner,
    state_nodes,
    without_buffers,
)
from .operator_errors import named_failures, named_out_variants, reason_of
from .record import build_context
from .sharing_identity import identify_constants, named_data_of
from .stored_once import store_once
from .structure import with_serializable_types
from .undelegated import prepare_kernels, refuse_missing_kernels

#: ExecuTorch reads tables of the record in place; keep its scalars aligned.
_RECORD_ALIGNMENT = 16


@contextmanager
def lowering_errors(action: str) -> Iterator[None]:
    """Turn whatever ExecuTorch raises into a LoweringError with the cause."""
    try:
        yield
    except EtsharedError:
        raise
    except Exception as error:
        raise LoweringError(
            f"ExecuTorch cannot {action}: {reason_of(error)}"
        ) from error


class SharedEdgeProgramManager(EdgeProgramManager):  # type: ignore[misc]
    """An EdgeProgramManager whose entry points share state.

    Its edge programs have the state as their first user inputs and outputs; in
    the program that ``to_executorch`` makes it is mutable buffers again.
    """

    _lifted: Mapping[str, LiftedProgram]
    _state: SharedState
    _generated: str | None

    @classmethod
    def _adopt(
        cls,
        manager: EdgeProgramManager,
        lifted: Mapping[str, LiftedProgram],
        state: SharedState,
        generated: str | None,
    ) -> SharedEdgeProgramManager:
        # The attributes of a manager are all that it is; constructing another
        # would verify and merge named data once more.
        shared = cls.__new__(cls)
        shared.__dict__.update(manager.__dict__)
        shared._lifted = lifted
        shared._state = state
        shared._generated = generated
        return shared

    def transform(
        self,
        passes: Any,  # noqa: ANN401
        compile_config: EdgeCompileConfig | None = None,
    ) -> SharedEdgeProgramManager:
        check_passes(passes, self._edge_programs)
        with lowering_errors("transform the entry points"), adjusted_executorch():
            manager = super().transform(passes, compile_config)
        return self._adopt(manager, self._lifted, self._state, self._generated)

    def to_backend(self, partitioner: Partitioners) -> SharedEdgeProgramManager:
        """Let delegates take more of the programs.

        Args:
            partitioner: as for :func:`to_edge_transform_and_lower`; several for one
                entry point take their parts in turn.

        Raises:
            PartitionError, LoweringError, PluginError: as there.
        """
        names = [name for name in self._edge_programs if name != self._generated]
        wrapped = wrapped_partitioners(partitioner, names, self._current())
        manager: EdgeProgramManager = self
        with (
            lowering_errors("delegate parts of the entry points"),
            adjusted_executorch(),
        ):
            for turn in range(max(map(len, wrapped.values()), default=0)):
                now = {n: some[turn] for n, some in wrapped.items() if turn < len(some)}
                lower = partial(EdgeProgramManager.to_backend, manager)
                with named_failures(lower, now):
                    manager = lower(now)
        return self._adopt(manager, self._lifted, self._state, self._generated)

    @adjusted_executorch()
    def to_executorch(
        self, config: ExecutorchBackendConfig | None = None
    ) -> ExecutorchProgramManager:
        """Make the ExecuTorch program, with the record of what is shared in it.

        May be called repeatedly. Everything that ``config`` sets is kept; its
        memory-planning passes plan what is not shared.

        Raises:
            LoweringError: ExecuTorch refuses an operator, or has no kernel for it.
            MemoryPlanningError: shared state cannot be placed.
            PluginError: a plugin failed.
        """
        config = ExecutorchBackendConfig() if config is None else config
        check_planning(config, self._edge_programs)
        lifted = self._current()
        if config.do_quant_fusion_and_const_prop:
            # On restored programs it would fold state that a method only reads.
            lifted = {
                name: replace(one, program=_folded(one.program))
                for name, one in lifted.items()
            }
        lifted = {
            name: replace(one, program=with_faithful_kernels(one.program))
            for name, one in lifted.items()
        }
        initial_values = {f: buffer.initial_value for f, buffer in self._state.items()}
        edge = copy.copy(self)
        edge._edge_programs = {
            name: restore(
                replace(one, call=with_serializable_types(one.call)),
                initial_values,
                self._lifted[name],
            )
            for name, one in lifted.items()
        }
        if config.run_reinplace_pass or config.reinplace_extra_ops:
            edge._edge_programs = {
                name: _reinplaced(one, config)
                for name, one in edge._edge_programs.items()
            }
        options: dict[int, Mapping[str, str]] = {}
        for name, program in edge._edge_programs.items():
            prepare_kernels(name, program)
            options.update(identify_constants(program, name))
        edge._named_data_store = named_data_of(edge._edge_programs)
        passes = {
            name: without_buffers(
                _for_method(config.memory_planning_pass, name),
                name,
                config.enable_non_cpu_memory_planning,
            )
            for name in lifted
        }
        planner = plugin_manager().first_result(
            "etshared_make_memory_planner",
            MemoryPlanner,
            passes=passes,
            state=self._state,
        ) or SharedMemoryPlanner(passes, self._state)
        planning: dict[str, MethodPlanningPass] = {}

        def finish() -> None:
            if CONTEXT_KEY in edge._named_data_store.key_to_buffer_idx:
                return
            planner.plan_shared()
            planned = {n: one.planned for n, one in planning.items() if one.planned}
            for method in planned.values():
                for _, node in state_nodes(*method, self._state):
                    # 1.5.1 takes state that a method only reads for a constant.
                    node.meta.pop("constant_tag", None)
            context = build_context(
                lifted,
                self._lifted,
                planned,
                self._state,
                self._generated,
                edge._named_data_store,
                self._config_methods,
                options,
            )
            edge._named_data_store.add_named_data(
                CONTEXT_KEY, encode(context), alignment=_RECORD_ALIGNMENT
            )

        planning |= {name: MethodPlanningPass(name, planner, finish) for name in lifted}
        config = replace(
            config,
            memory_planning_pass=planning,
            do_quant_fusion_and_const_prop=False,
            run_reinplace_pass=False,
            reinplace_extra_ops=None,
        )
        # Without gradients: values of trainable parameters are copied into state.
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            lowering_errors("make the program"),
            named_out_variants(edge._edge_programs),
        ):
            # The emitter advises to write initial values at every load.
            warnings.filterwarnings("ignore", "Mutation on a buffer in the model")
            manager = EdgeProgramManager.to_executorch(edge, config)
            refuse_missing_kernels(manager.executorch_program.execution_plan)
            store_once(manager, edge._named_data_store, config.segment_alignment)
        return manager

    def _current(self) -> dict[str, LiftedProgram]:
        return {
            name: replace(self._lifted[name], program=program)
            for name, program in self._edge_programs.items()
        }


def _for_method(setting: Any, method_name: str) -> Any:  # noqa: ANN401
    """Resolve a setting of ExecutorchBackendConfig that may be a dict by method."""
    if isinstance(setting, dict):
        return setting.get(method_name, ExecutorchBackendConfig().memory_planning_pass)
    return setting


def _folded(program: ExportedProgram) -> ExportedProgram:
    folded: ExportedProgram = quant_fusion_and_const_prop_pass(copied_program(program))
    # 1.5.1 returns constants through a clone that dim-order mode refuses.
    for node in folded.graph.nodes:
        if node.target is exir_ops.edge.aten.clone.default:
            node.target = clone_operator(folded)
    return folded


def _reinplaced(
    program: ExportedProgram, config: ExecutorchBackendConfig
) -> ExportedProgram:
    """Write in place as ``config`` says, except where 1.5.1's kernel cannot."""
    operators = set(config.reinplace_extra_ops or ())
    if config.run_reinplace_pass:
        operators |= DEFAULT_INPLACEABLE_OPS
    index_put = exir_ops.edge.aten.index_put.default
    if not all(
        _fits_in_place(node) for node in program.graph.nodes if node.target is index_put
    ):
        operators.discard(index_put)
    rewritten: ExportedProgram = reinplace_pass(program, ops_to_inplace=operators)
    return rewritten


def _fits_in_place(index_put: fx.Node) -> bool:
    """Tell whether ``index_put_`` of 1.5.1 takes these arguments.

    It wants one index of one dimension, and values that are not broadcast;
    behind a None index, as in ``cache[:, i] = x``, it aborts the process.
    """
    old, indices, values, *accumulate = index_put.args
    assert isinstance(old, fx.Node) and isinstance(values, fx.Node)
    assert isinstance(indices, list | tuple)
    if any(accumulate) or not isinstance(indices[0], fx.Node) or len(indices) > 1:
        return False
    index = indices[0].meta["val"]
    expected = (*index.shape, *old.meta["val"].shape[1:])
    return index.dim() == 1 and tuple(values.meta["val"].shape) == expected
