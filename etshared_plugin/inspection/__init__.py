"""Reports on programs and their verification; free of torch, printing nothing."""

from .findings import Finding, Severity
from .inspector import inspect_program
from .report import (
    REPORT_VERSION,
    ArenaReport,
    ArgumentReport,
    DelegateReport,
    EntryPointReport,
    ProgramReport,
    StateReport,
    ValueReport,
    WeightReport,
)
from .verification import Check, verify_program

__all__ = [
    "REPORT_VERSION",
    "ArenaReport",
    "ArgumentReport",
    "Check",
    "DelegateReport",
    "EntryPointReport",
    "Finding",
    "ProgramReport",
    "Severity",
    "StateReport",
    "ValueReport",
    "WeightReport",
    "inspect_program",
    "verify_program",
]
