"""A plugin of three hooks; torch is imported where it is needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from etshared_plugin.hookspecs import DelegateDescription, hookimpl
from etshared_plugin.inspection import Finding, ProgramReport, Severity

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.lowered_backend_module import LoweredBackendModule

#: Operators for which the delegate is, say, not accurate enough.
UNDELEGATED = frozenset({"aten.tanh.default"})


@hookimpl
def etshared_wrap_partitioner(partitioner: Partitioner) -> Partitioner:
    from .partitioner import UndelegatingPartitioner

    return UndelegatingPartitioner(partitioner, UNDELEGATED)


@hookimpl
def etshared_describe_delegate(
    lowered_module: LoweredBackendModule,
) -> DelegateDescription | None:
    if lowered_module.backend_id != "BackendWithCompilerDemo":
        return None
    operators = re.findall(
        r"op:demo::([\w.]+)", lowered_module.processed_bytes.decode()
    )
    return DelegateDescription(Counter(operators))


@hookimpl
def etshared_check(report: ProgramReport) -> Iterator[Finding]:
    for entry_point in report.entry_points:
        for name in entry_point.kernels:
            if name.startswith("aten::tanh"):
                yield Finding(
                    Severity.NOTE,
                    "example-undelegated",
                    f"'{name}' is not delegated",
                    f"entry point '{entry_point.name}'",
                )
