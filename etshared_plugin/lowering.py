"""`to_edge_transform_and_lower` for entry points that share state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from executorch import exir
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.passes.quant_fusion_pass import quant_fusion_and_const_prop_pass
from torch.export import ExportedProgram

from .context import encode
from .context.model import CONTEXT_KEY
from .entry_points import ExportedEntryPoints
from .errors import StateError
from .lifted_state import LiftedProgram, anchor, lift, restore
from .memory_planning import (
    MemoryPlanner,
    MethodPlanningPass,
    SharedMemoryPlanner,
    state_nodes,
    without_buffers,
)
from .partitioner import SharedStatePartitioner
from .plain_programs import lift_plain_programs
from .plugins import plugin_manager
from .program_surgery import assemble, clone_operator, copy_graph, inputs_of
from .record import build_context
from .state import RESET_STATE, SharedState, initial_values_program
from .structure import with_serializable_types

Partitioners = Sequence[Partitioner] | Mapping[str, Sequence[Partitioner]]

#: ExecuTorch reads tables of the record in place; keep its scalars aligned.
_RECORD_ALIGNMENT = 16


def to_edge_transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Any = None,  # noqa: ANN401
    partitioner: Partitioners | None = None,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
    *,
    state: Sequence[str] | None = None,
    reset_entry_point: str = RESET_STATE,
) -> SharedEdgeProgramManager:
    """Lower entry points as ``executorch.exir`` does, with their state shared.

    Args:
        programs: what :func:`export` returned, or ExportedPrograms by entry
            point, or one for ``forward``. Plain programs share the buffers that
            are one tensor in all of them; initial values are those of the
            programs. In what passes and partitioners see, state is the first
            user inputs and outputs.
        transform_passes, partitioner, constant_methods, compile_config,
            generate_etrecord: as in ``executorch.exir``.
        state: fqns or globs of the buffers to share; by default those that
            ``programs`` was exported with, or all that any program writes.
        reset_entry_point: name of the generated entry point that writes the
            initial values; there is none where there is no state.

    Raises:
        StateError: the state of the programs does not fit together.
        PartitionError: a partitioner takes shared state into a delegate.
        PluginError: a plugin failed.
    """
    if isinstance(programs, ExportedProgram):
        programs = {"forward": programs}
    if isinstance(programs, ExportedEntryPoints) and state is None:
        shared = programs.state
        lifted = {
            name: lift(one, shared, functional=True) for name, one in programs.items()
        }
    else:
        lifted, shared = lift_plain_programs(programs, state)
    if shared:
        if reset_entry_point in {**lifted, **(constant_methods or {})}:
            raise StateError(
                f"entry point '{reset_entry_point}' has the name of the generated one"
                " that writes the initial values; choose another with"
                " 'reset_entry_point'",
                method_name=reset_entry_point,
            )
        lifted[reset_entry_point] = initial_values_program(shared)
    lifted = {name: anchor(program) for name, program in lifted.items()}
    if partitioner is not None and not isinstance(partitioner, Mapping):
        partitioner = dict.fromkeys(programs, partitioner)
    manager = exir.to_edge_transform_and_lower(
        {name: program.program for name, program in lifted.items()},
        transform_passes,
        {
            name: [_wrap(one, name, lifted) for one in several]
            for name, several in (partitioner or {}).items()
        },
        dict(constant_methods) if constant_methods else None,
        compile_config,
        generate_etrecord,
    )
    generated = reset_entry_point if shared else None
    return SharedEdgeProgramManager._adopt(manager, lifted, shared, generated)


def _wrap(
    partitioner: Partitioner, method_name: str, lifted: Mapping[str, LiftedProgram]
) -> SharedStatePartitioner:
    state = lifted[method_name].inputs if method_name in lifted else ()
    wrapped = plugin_manager().first_result(
        "etshared_wrap_partitioner",
        Partitioner,
        partitioner=partitioner,
        method_name=method_name,
        state=state,
    )
    return SharedStatePartitioner(
        partitioner if wrapped is None else wrapped, state, method_name=method_name
    )


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
        manager = super().transform(passes, compile_config)
        return self._adopt(manager, self._lifted, self._state, self._generated)

    def to_backend(
        self, partitioner: Partitioner | Mapping[str, Partitioner]
    ) -> SharedEdgeProgramManager:
        if not isinstance(partitioner, Mapping):
            partitioner = dict.fromkeys(
                (name for name in self._edge_programs if name != self._generated),
                partitioner,
            )
        manager = super().to_backend(
            {
                name: _wrap(one, name, self._current())
                for name, one in partitioner.items()
            }
        )
        return self._adopt(manager, self._lifted, self._state, self._generated)

    def to_executorch(
        self, config: ExecutorchBackendConfig | None = None
    ) -> ExecutorchProgramManager:
        """Make the ExecuTorch program, with the record of what is shared in it.

        May be called repeatedly. Everything that ``config`` sets is kept; its
        memory-planning passes plan what is not shared.

        Raises:
            MemoryPlanningError: shared state cannot be placed.
            PluginError: a plugin failed.
        """
        config = config or ExecutorchBackendConfig()
        lifted = self._current()
        if config.do_quant_fusion_and_const_prop:
            # On restored programs it would fold state that a method only reads.
            lifted = {
                name: replace(one, program=_folded(one.program))
                for name, one in lifted.items()
            }
        initial_values = {f: buffer.initial_value for f, buffer in self._state.items()}
        edge = copy.copy(self)
        edge._edge_programs = {
            name: restore(
                replace(one, call=with_serializable_types(one.call)),
                initial_values,
                self._lifted[name].result_dtypes(),
            )
            for name, one in lifted.items()
        }
        edge._named_data_store = _copy_named_data(self._named_data_store)
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
                planned,
                self._state,
                self._generated,
                edge._named_data_store,
            )
            edge._named_data_store.add_named_data(
                CONTEXT_KEY, encode(context), alignment=_RECORD_ALIGNMENT
            )

        planning |= {name: MethodPlanningPass(name, planner, finish) for name in lifted}
        config = replace(
            config, memory_planning_pass=planning, do_quant_fusion_and_const_prop=False
        )
        # Without gradients: values of trainable parameters are copied into state.
        with torch.no_grad(), warnings.catch_warnings():
            # The emitter advises to write initial values at every load.
            warnings.filterwarnings("ignore", "Mutation on a buffer in the model")
            return EdgeProgramManager.to_executorch(edge, config)

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
    folded: ExportedProgram = quant_fusion_and_const_prop_pass(_copied(program))
    # 1.5.1 returns constants through a clone that dim-order mode refuses.
    for node in folded.graph.nodes:
        if node.target is exir_ops.edge.aten.clone.default:
            node.target = clone_operator(folded)
    return folded


def _copied(program: ExportedProgram) -> ExportedProgram:
    graph, nodes = copy_graph(program)
    values = graph.output_node().args[0]
    assert isinstance(values, tuple | list)
    return assemble(
        program,
        graph,
        [(nodes[node], spec) for node, spec in inputs_of(program)],
        list(zip(values, program.graph_signature.output_specs, strict=True)),
    )


def _copy_named_data(store: NamedDataStore) -> NamedDataStore:
    copied = NamedDataStore()
    copied.merge_named_data_store(store.get_named_data_store_output())
    return copied
