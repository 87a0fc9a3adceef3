"""The hooks that plugins may implement; this file is their reference.

A plugin is an object (usually a module) with functions marked by ``hookimpl``,
announced by an entry point of the group ``etshared``. Every argument is passed
by keyword; an implementation takes those that it needs. Arguments are only
ever added.

Plugins are asked one after another: the last by name first, built-in ones at
the end; ``hookimpl(tryfirst=True)`` and ``trylast`` change that. Hook wrappers
are not accepted. Plugins are imported where programs are only run, too, perhaps
without torch: import it inside the hooks that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

from .context.scalar_type import ScalarType

if TYPE_CHECKING:
    from .inspection import Finding, ProgramReport
    from .lowering.memory_planning import MemoryPlanner
    from .state import SharedState

hookspec = pluggy.HookspecMarker("etshared")
hookimpl = pluggy.HookimplMarker("etshared")


@dataclass(frozen=True, slots=True)
class DelegateConstant:
    """A constant of a lowered module.

    ``key`` is its key in the named data. ``fqns`` are its names in the module,
    where they are known; ``quantization`` is a summary for people.
    """

    key: str
    scalar_type: ScalarType
    sizes: tuple[int, ...]
    fqns: tuple[str, ...] = ()
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class DelegateDescription:
    """What a lowered module holds: operators by name with counts, constants."""

    operators: Mapping[str, int]
    constants: tuple[DelegateConstant, ...] = ()


@dataclass(frozen=True, slots=True)
class IdentifiedConstants:
    """A lowered module's payload with sharing identities as named-data keys.

    ``keys`` has every key of the new payload, with the one that the module uses
    for the same bytes now. ``options`` are the backend's load-time options that
    are right with these keys, as text: ``true`` or ``false``, a number, a string.
    """

    processed_bytes: bytes
    keys: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)


@hookspec(firstresult=True)
def etshared_wrap_partitioner(
    partitioner: Any,  # noqa: ANN401
    method_name: str,
    state: tuple[str, ...],
) -> Any:  # noqa: ANN401
    """Replace a partitioner by one that respects shared state.

    Called by ``to_edge_transform_and_lower`` and ``to_backend`` for each
    partitioner of each entry point. Stops at the first result that is not None.

    :param partitioner: the ``Partitioner`` that the caller gave.
    :param method_name: the entry point that it will partition.
    :param state: fqns of the shared state that this entry point uses; the
        program shows them as its first user inputs, in this order.
    :return: a ``Partitioner``, or None to leave it to the next plugin; in the
        end ``SharedStatePartitioner`` is put around it.

    .. versionadded:: 0.1
    """


@hookspec(firstresult=True)
def etshared_make_memory_planner(
    passes: Mapping[str, Any], state: SharedState
) -> MemoryPlanner | None:
    """Make the planner that places activations and shared state.

    Called by ``to_executorch`` once. Stops at the first result that is not None.

    :param passes: by entry point, the memory-planning pass of the caller's
        ``ExecutorchBackendConfig``, copied and told to leave buffers alone.
    :param state: the shared state by fqn.
    :return: a planner, or None for ``SharedMemoryPlanner``.

    .. versionadded:: 0.1
    """


@hookspec(firstresult=True)
def etshared_describe_delegate(
    lowered_module: Any,  # noqa: ANN401
    method_name: str,
) -> DelegateDescription | None:
    """Say which operators and constants a lowered module holds.

    Called by ``to_executorch`` for each delegate. Stops at the first result
    that is not None. The module must not be changed.

    :param lowered_module: the ``LoweredBackendModule``.
    :param method_name: the entry point that it belongs to.
    :return: a description, or None where the backend is another's; without any
        the operators are read from the lowered module's original graph.

    .. versionadded:: 0.1
    """


@hookspec(firstresult=True)
def etshared_identify_constants(
    lowered_module: Any,  # noqa: ANN401
    method_name: str,
) -> IdentifiedConstants | None:
    """Name constants so that keys are equal exactly where sharing is right.

    Called by ``to_executorch`` for each delegate outside of control flow, before
    ``etshared_describe_delegate`` sees the module with its new keys. Stops at the
    first result that is not None. The module must not be changed.

    :param lowered_module: the ``LoweredBackendModule``.
    :param method_name: the entry point that it belongs to.
    :return: the payload with its new keys, or None where the backend is another's
        or shares nothing at run time.

    .. versionadded:: 0.1
    """


@hookspec
def etshared_native_libraries() -> Iterable[str] | None:
    """Name shared libraries with kernels or backends that programs need.

    Called once per process, before the first program is loaded; each library is
    loaded in the order given. One that cannot be loaded is warned of.

    :return: paths of shared libraries, or None.

    .. versionadded:: 0.1
    """


@hookspec
def etshared_check(report: ProgramReport) -> Iterable[Finding] | None:
    """Look for faults in a program that only this plugin can see.

    Called by ``verify`` after its own checks, and by ``inspect``, for files that
    can be read. One that raises becomes an error among the findings.

    :param report: what the file holds.
    :return: findings, in the order to print them, or None.

    .. versionadded:: 0.1
    """
