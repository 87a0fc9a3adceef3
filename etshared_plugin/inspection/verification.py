"""Check a program against its own record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..context import SharedContext
from ..errors import ContextFormatError, ProgramFormatError
from ..pte import PteFile
from .agreement import (
    Problem,
    arena_problems,
    method_problems,
    overflow_problems,
    signature_problems,
    state_problems,
    unread_problems,
)
from .findings import Finding, Severity
from .kernel_notes import kernel_notes
from .stored_data import delegate_problems, repeated_data, weight_problems
from .stored_twice import weights_stored_twice

#: A further check, for example a plugin's; the record is None where there is none.
Check = Callable[[PteFile, SharedContext | None], Iterable[Finding]]


def verify_program(
    path: str | Path, *, checks: Iterable[Check] = ()
) -> tuple[Finding, ...]:
    """Return everything that is wrong with a program, errors first.

    Args:
        path: a ``.pte`` file; damage of any kind is a finding.
        checks: called after the built-in checks, if the program can be read.

    Raises:
        ProgramFormatError: if the file cannot be read.
    """
    try:
        program = PteFile(path)
    except ProgramFormatError as cause:
        if isinstance(cause.__cause__, OSError):
            raise
        return (Finding(Severity.ERROR, "program-damaged", cause.message),)
    found = list(_errors("arena-overflow", overflow_problems(program)))
    context = None
    try:
        context = program.shared_context()
    except ContextFormatError as cause:
        found.append(Finding(Severity.ERROR, "record-invalid", cause.message))
    else:
        found += _record_findings(context, program)
    found += _repetitions(context, program)
    found += kernel_notes(program)
    for check in checks:
        found += check(program, context)
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


_ORDER = {severity: index for index, severity in enumerate(Severity)}


def _repetitions(context: SharedContext | None, program: PteFile) -> Iterator[Finding]:
    weights = [] if context is None else weights_stored_twice(context, program)
    yield from (weight.finding for weight in weights)
    digests = [weight.digest for weight in weights]
    for place, message in repeated_data(program, digests):
        yield Finding(Severity.NOTE, "stored-twice", message, place)


def _record_findings(
    context: SharedContext | None, program: PteFile
) -> Iterator[Finding]:
    if context is None:
        yield Finding(
            Severity.NOTE, "record-missing", "no record of what entry points share"
        )
        return
    yield from _errors("method-unknown", method_problems(context, program))
    yield from _errors("signature", signature_problems(context, program))
    yield from _errors("arena-size", arena_problems(context, program))
    yield from _errors("state", state_problems(context, program))
    yield from _errors("delegate", delegate_problems(context, program))
    yield from _errors("weight", weight_problems(context, program))
    for place, message in unread_problems(context, program):
        yield Finding(Severity.WARNING, "state-unused", message, place)


def _errors(code: str, problems: Iterable[Problem]) -> Iterator[Finding]:
    for place, message in problems:
        yield Finding(Severity.ERROR, code, message, place)
