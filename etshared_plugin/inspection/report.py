"""What a program holds, as plain data for printing and for JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .findings import Finding

#: Version of what :meth:`ProgramReport.to_json` returns.
REPORT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ValueReport:
    """One leaf of an argument or result; ``dtype`` and ``sizes`` are a tensor's.

    Sizes of a dynamic tensor are the largest that the program plans. An input's
    range is in ``min_sizes`` and ``max_sizes``, by dimension, if it is known; the
    dimensions of an entry point that have one symbol but 0 have one size.
    """

    kind: str
    dtype: str = ""
    sizes: tuple[int, ...] = ()
    dynamic: bool = False
    min_sizes: tuple[int, ...] = ()
    max_sizes: tuple[int, ...] = ()
    symbols: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ArgumentReport:
    name: str
    keyword_only: bool
    values: tuple[ValueReport, ...]


@dataclass(frozen=True, slots=True)
class EntryPointReport:
    """``kernels`` counts the calls of each operator outside of delegates."""

    name: str
    generated: bool
    arguments: tuple[ArgumentReport, ...]
    results: tuple[ValueReport, ...]
    activation_nbytes: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    kernels: dict[str, int]
    delegates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateReport:
    """One piece of shared state; ``initial_value`` is "zero", "given" or unknown."""

    fqn: str
    dtype: str
    sizes: tuple[int, ...]
    mem_id: int
    offset: int
    nbytes: int
    readers: tuple[str, ...]
    writers: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    dim_order: tuple[int, ...] = ()
    initial_value: str | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class WeightReport:
    """One constant and the entry points that use it, also through delegates."""

    identity: str
    digest: str
    nbytes: int
    dtype: str
    sizes: tuple[int, ...]
    fqns: tuple[str, ...]
    keys: tuple[str, ...]
    quantization: str
    delegates: tuple[int, ...]
    entry_points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DelegateReport:
    backend_id: str
    entry_point: str
    index: int
    payload_nbytes: int
    payload_digest: str
    operators: dict[str, int]
    weights: tuple[int, ...]
    options: dict[str, str]


@dataclass(frozen=True, slots=True)
class ArenaReport:
    """``planned`` is what each entry point plans; ``nbytes`` is the largest."""

    mem_id: int
    kind: str
    nbytes: int
    alignment: int | None
    planned: dict[str, int]


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """What a program holds.

    ``record`` is "present", "missing" or "damaged"; without a good one the report
    holds what the program's plans tell, and ``record_problem`` says what is wrong.
    ``findings`` tell what could be shared and is not, as far as the record knows.
    """

    path: str
    nbytes: int
    record: str
    record_problem: str
    producer: dict[str, str]
    entry_points: tuple[EntryPointReport, ...]
    state: tuple[StateReport, ...]
    weights: tuple[WeightReport, ...]
    delegates: tuple[DelegateReport, ...]
    arenas: tuple[ArenaReport, ...]
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report of dicts, lists, strings and numbers."""
        plain = _plain(dataclasses.asdict(self))
        return {"version": REPORT_VERSION, **plain}


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items())}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value
