"""Findings of plugins, and how commands print findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console

from ..errors import PluginError
from ..inspection import Finding, ProgramReport, Severity
from ..plugins import plugin_manager
from .printing import printable

_STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.NOTE: "dim",
}


def plugin_findings(report: ProgramReport) -> Iterator[Finding]:
    """Yield what plugins find; one that fails is an error among the findings."""
    for _, found in plugin_manager().items_by_plugin(
        "etshared_check", Finding, report=report
    ):
        if isinstance(found, PluginError):
            yield Finding(Severity.ERROR, "plugin", str(found))
        else:
            yield from found


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    for finding in findings:
        place = f"{finding.place}: " if finding.place else ""
        console.print(
            f"{finding.severity.value} [{finding.code}] "
            + printable(f"{place}{finding.message}"),
            style=_STYLES[finding.severity],
            soft_wrap=True,
        )
