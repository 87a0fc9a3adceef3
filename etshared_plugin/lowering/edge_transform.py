"""`to_edge_transform_and_lower` for entry points that share state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executorch import exir
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from torch.export import ExportedProgram

from ..capture.arguments import programs_of
from ..capture.entry_points import ExportedEntryPoints
from ..capture.plain_programs import lift_declared, lift_plain_programs
from ..errors import StateError
from ..lifted.layouts import use_contiguous_layouts
from ..lifted.lifted_state import LiftedProgram, anchor
from ..lifted.normalization import use_live_statistics
from ..lifted.separate_branches import separate_constants, separate_operands
from ..lifted.sizes import forget_pending_sizes
from ..state import RESET_STATE, grouped_as, initial_values_program, with_groups
from .adjusted_executorch import adjusted_executorch
from .arguments import Partitioners, check_options, check_passes, wrapped_partitioners
from .edge_manager import SharedEdgeProgramManager, lowering_errors
from .operator_errors import named_failures


def to_edge_transform_and_lower(
    programs: ExportedProgram | Mapping[str, ExportedProgram],
    transform_passes: Any = None,  # noqa: ANN401
    partitioner: Partitioners | None = None,
    constant_methods: Mapping[str, Any] | None = None,
    compile_config: EdgeCompileConfig | None = None,
    generate_etrecord: bool = False,
    *,
    state: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
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
        groups: as for :func:`export`; other groups that it made stay.
        reset_entry_point: name of the generated entry point that writes the
            initial values; there is none where there is no state.

    Raises:
        StateError: the state of the programs does not fit together.
        EntryPointError: ``programs`` is something else.
        PartitionError: a partitioner takes shared state into a delegate, is for an
            entry point that is not there, or is none.
        LoweringError: ExecuTorch refuses a program; its error is the cause. Or
            ``transform_passes`` has what is no pass, or is for an entry point that is
            not there.
        PluginError: a plugin failed.
    """
    programs = programs_of(programs)
    check_options(programs, constant_methods, compile_config)
    if isinstance(programs, ExportedEntryPoints) and state is None:
        shared = programs.state
        lifted = lift_declared(programs, shared)
    else:
        lifted, shared = lift_plain_programs(programs, state)
        if isinstance(programs, ExportedEntryPoints):
            shared = grouped_as(programs.state, shared)
    shared = with_groups(shared, groups)
    if shared:
        if reset_entry_point in {**lifted, **(constant_methods or {})}:
            raise StateError(
                f"entry point '{reset_entry_point}' has the name of the generated one"
                " that writes the initial values; choose another with"
                " 'reset_entry_point'",
                method_name=reset_entry_point,
            )
        lifted[reset_entry_point] = initial_values_program(shared)
    check_passes(transform_passes, lifted)
    lifted = {name: _lowerable(program) for name, program in lifted.items()}
    partitioners = wrapped_partitioners(partitioner, programs, lifted)

    def lower(some: Mapping[str, LiftedProgram]) -> EdgeProgramManager:
        for one in some.values():
            forget_pending_sizes(one.program)
        return exir.to_edge_transform_and_lower(
            {name: one.program for name, one in some.items()},
            transform_passes,
            {name: partitioners[name] for name in some if name in partitioners},
            dict(constant_methods) if constant_methods else None,
            compile_config,
            generate_etrecord,
        )

    with (
        lowering_errors("lower the entry points"),
        adjusted_executorch(),
        named_failures(lower, lifted),
    ):
        manager = lower(lifted)
    generated = reset_entry_point if shared else None
    return SharedEdgeProgramManager._adopt(manager, lifted, shared, generated)


def _lowerable(lifted: LiftedProgram) -> LiftedProgram:
    lifted = use_live_statistics(use_contiguous_layouts(lifted))
    return anchor(
        replace(lifted, program=separate_constants(separate_operands(lifted.program)))
    )
