"""Partitioners and passes as a caller gives them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.backend.partitioner import Partitioner
from torch.utils import _pytree as pytree

from ..errors import (
    EntryPointError,
    LoweringError,
    MemoryPlanningError,
    PartitionError,
)
from ..lifted.lifted_state import LiftedProgram
from ..plugins import plugin_manager
from ..wording import kind_of, quoted
from .partitioner import SharedStatePartitioner

OneOrSeveral: TypeAlias = Partitioner | Sequence[Partitioner]
Partitioners: TypeAlias = OneOrSeveral | Mapping[str, OneOrSeveral]


def wrapped_partitioners(
    given: Partitioners | None,
    names: Iterable[str],
    lifted: Mapping[str, LiftedProgram],
) -> dict[str, list[SharedStatePartitioner]]:
    """Wrap partitioners so that they respect shared state.

    Args:
        given: one or several for all entry points, or for each by name.
        names: the entry points that there are.
        lifted: their programs.

    Raises:
        PartitionError: one is for no entry point, or is no partitioner.
        PluginError: a plugin failed.
    """
    return {
        name: [_wrapped(one, name, lifted) for one in several]
        for name, several in _by_method(given, list(names)).items()
    }


def _wrapped(
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


def _by_method(
    given: Partitioners | None, names: Sequence[str]
) -> dict[str, Sequence[Partitioner]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = dict.fromkeys(names, given)
    by_method: dict[str, Sequence[Any]] = {}
    for name, several in given.items():
        if name not in names:
            raise PartitionError(
                f"partitioner is for entry point '{name}', expected one of"
                f" {quoted(names)}",
                method_name=name,
            )
        by_method[name] = several if isinstance(several, (list, tuple)) else [several]
        for one in by_method[name]:
            if not isinstance(one, Partitioner):
                example = one if isinstance(one, type) else Partitioner
                raise PartitionError(
                    f"partitioner of entry point '{name}' is {kind_of(one)}, expected"
                    f" a Partitioner or a list of them, such as {example.__name__}()",
                    method_name=name,
                )
    return by_method


def check_options(
    names: Collection[str], constant_methods: object, compile_config: object
) -> None:
    """Refuse what ExecuTorch would complain of without a word of what it is.

    Raises:
        LoweringError: it is something else.
        EntryPointError: a constant method has the name of an entry point.
    """
    if not isinstance(compile_config, EdgeCompileConfig | None):
        raise LoweringError(
            f"compile_config is {kind_of(compile_config)}, expected an"
            " EdgeCompileConfig"
        )
    if not isinstance(constant_methods, Mapping | None):
        raise LoweringError(
            f"constant_methods is {kind_of(constant_methods)}, expected a dict of"
            " values by name"
        )
    for name in constant_methods or {}:
        if name in names:
            raise EntryPointError(
                f"constant method '{name}' has the name of an entry point; rename one"
                " of them",
                method_name=name,
            )


def check_planning(config: object, names: Collection[str]) -> None:
    """Refuse what is no config, or has planning passes for no entry point.

    It may have some for those of other programs.

    Raises:
        LoweringError, MemoryPlanningError: it is or has.
    """
    if not isinstance(config, ExecutorchBackendConfig):
        raise LoweringError(
            f"config is {kind_of(config)}, expected an ExecutorchBackendConfig"
        )
    passes = config.memory_planning_pass
    if isinstance(passes, Mapping) and passes and not passes.keys() & set(names):
        raise MemoryPlanningError(
            "memory_planning_pass has passes for entry points"
            f" {quoted(passes)}, expected some of {quoted(names)}"
        )


def check_passes(passes: object, names: Iterable[str]) -> None:
    """Refuse what are no passes, or passes for an entry point that is not there.

    Raises:
        PartitionError: there is a partitioner among them.
        LoweringError: something else is wrong.
    """
    for one in pytree.tree_leaves(passes or [], is_leaf=callable):
        if isinstance(one, Partitioner):
            raise PartitionError(
                f"transform_passes is or has {kind_of(one)}; pass it as 'partitioner'"
            )
        if not callable(one) or isinstance(one, type):
            raise LoweringError(
                f"transform_passes is or has {kind_of(one)}, expected passes: a list,"
                " a dict of lists by entry point, or a pass manager"
            )
    for name in passes if isinstance(passes, Mapping) else ():
        if name not in names:
            raise LoweringError(
                f"transform_passes has passes for entry point '{name}', expected one of"
                f" {quoted(names)}",
                method_name=name,
            )
