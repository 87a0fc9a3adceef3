"""Give delegates' constants keys that are equal exactly where sharing is right."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from executorch.exir._serialize._named_data_store import (
    NamedDataStore,
    NamedDataStoreOutput,
)
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.program._program import (
    collect_named_data_store_from_exported_program,
)
from torch.export import ExportedProgram

from ..hookspecs import IdentifiedConstants
from ..plugins import plugin_manager

#: Load-time options of delegates, by the identity of the lowered module.
Options = Mapping[int, Mapping[str, str]]


def identify_constants(program: ExportedProgram, method_name: str) -> Options:
    """Replace the lowered modules of ``program`` by ones with identities as keys.

    The modules themselves are not changed. Delegates inside of control flow keep
    their keys, and so do those whose plugin has nothing to say.

    Returns:
        The backend options that are right with the new keys.

    Raises:
        PluginError: a plugin failed or returned something else.
    """
    graph_module = program.graph_module
    options: dict[int, Mapping[str, str]] = {}
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is not executorch_call_delegate:
            continue
        attribute = node.args[0].target
        lowered_module = getattr(graph_module, attribute)
        identified: IdentifiedConstants | None = plugin_manager().first_result(
            "etshared_identify_constants",
            IdentifiedConstants,
            lowered_module=lowered_module,
            method_name=method_name,
        )
        if identified is not None:
            rekeyed = _with_keys(lowered_module, identified)
            setattr(graph_module, attribute, rekeyed)
            options[id(rekeyed)] = identified.options
    return options


def _with_keys(
    lowered_module: LoweredBackendModule, identified: IdentifiedConstants
) -> LoweredBackendModule:
    changed = copy.copy(lowered_module)
    changed._processed_bytes = identified.processed_bytes
    old = lowered_module.named_data_store_output
    if old is not None:
        changed._named_data_store_output = NamedDataStoreOutput(
            buffers=old.buffers,
            pte_data=_rekeyed(old.pte_data, identified.keys),
            external_data={
                tag: _rekeyed(data, identified.keys)
                for tag, data in old.external_data.items()
            },
        )
    return changed


def _rekeyed(
    entries: Mapping[str, DataEntry], keys: Mapping[str, str]
) -> dict[str, DataEntry]:
    return {new: entries[old] for new, old in keys.items() if old in entries}


def named_data_of(programs: Mapping[str, ExportedProgram]) -> NamedDataStore:
    """Collect what the delegates of all programs store; equal bytes once."""
    store = NamedDataStore()
    for program in programs.values():
        collect_named_data_store_from_exported_program(program, store)
    return store
