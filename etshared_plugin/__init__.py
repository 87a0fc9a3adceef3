"""ExecuTorch programs whose entry points share weights and state.

Importing this package imports neither torch nor the native runtime; each name
brings in what it needs on first use. :mod:`.capture`, :mod:`.lifted`,
:mod:`.lowering`, :mod:`.quantization` and :mod:`.testing` work with torch;
:mod:`.context`, :mod:`.pte`, :mod:`.inspection`, :mod:`.cli` and :mod:`.runtime`
do without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import EtsharedError

if TYPE_CHECKING:
    from .backends.xnnpack_partitioner import SharedXnnpackPartitioner
    from .capture.declarations import Bind, EntryPoint
    from .capture.entry_points import ExportedEntryPoints, export
    from .lowering.edge_manager import SharedEdgeProgramManager
    from .lowering.edge_transform import to_edge_transform_and_lower
    from .lowering.partitioner import SharedStatePartitioner
    from .quantization import quantize
    from .runtime import PackedCache, Session, SharedProgram, load

__version__ = "0.1.0"

__all__ = [
    "Bind",
    "EntryPoint",
    "EtsharedError",
    "ExportedEntryPoints",
    "PackedCache",
    "Session",
    "SharedEdgeProgramManager",
    "SharedProgram",
    "SharedStatePartitioner",
    "SharedXnnpackPartitioner",
    "export",
    "load",
    "quantize",
    "to_edge_transform_and_lower",
]

_MODULES = {
    "Bind": "capture.declarations",
    "EntryPoint": "capture.declarations",
    "ExportedEntryPoints": "capture.entry_points",
    "PackedCache": "runtime",
    "Session": "runtime",
    "SharedEdgeProgramManager": "lowering.edge_manager",
    "SharedProgram": "runtime",
    "SharedStatePartitioner": "lowering.partitioner",
    "SharedXnnpackPartitioner": "backends.xnnpack_partitioner",
    "export": "capture.entry_points",
    "load": "runtime",
    "quantize": "quantization",
    "to_edge_transform_and_lower": "lowering.edge_transform",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
