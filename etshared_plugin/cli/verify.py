"""``etshared verify``: is the record of what is shared true?"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..context import SharedContext
from ..inspection import Finding, Severity, inspect_program, verify_program
from ..pte import PteFile
from .findings import plugin_findings, print_findings
from .printing import print_json, printable, stdout_console


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="check the record of what is shared against the program",
        description="Check a program's record of what is shared against the "
        "program's own plans and data. Exits with 1 if there is an error.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a .pte file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    def plugins_check(
        program: PteFile, context: SharedContext | None
    ) -> Iterator[Finding]:
        yield from plugin_findings(inspect_program(arguments.file))

    findings = verify_program(arguments.file, checks=[plugins_check])
    is_sound = all(finding.severity is not Severity.ERROR for finding in findings)
    if arguments.json:
        print_json(
            {
                "path": str(arguments.file),
                "is_sound": is_sound,
                "findings": [finding.to_json() for finding in findings],
            }
        )
    else:
        _print(arguments.file, findings, is_sound)
    return 0 if is_sound else 1


def _print(path: Path, findings: Iterable[Finding], is_sound: bool) -> None:
    console = stdout_console()
    print_findings(console, findings)
    verdict = "sound" if is_sound else "not sound"
    console.print(f"{printable(str(path))}: {verdict}", soft_wrap=True)
