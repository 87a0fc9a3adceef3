"""``etshared inspect``: what a program holds and what its entry points share."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from rich.console import Console

from ..inspection import EntryPointReport, ProgramReport, ValueReport, inspect_program
from .findings import plugin_findings, print_findings
from .printing import (
    human_nbytes,
    number,
    print_json,
    print_table,
    printable,
    stdout_console,
    whole,
)
from .values import tensor_text

#: Rows of a table of weights; ``--json`` has them all.
_SHOWN_WEIGHTS = 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "inspect",
        help="show entry points, state, weights, delegates and memory",
        description="Show what a program holds, and what its entry points share.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a .pte file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    report = inspect_program(arguments.file)
    findings = (*report.findings, *plugin_findings(report))
    report = dataclasses.replace(report, findings=findings)
    if arguments.json:
        print_json(report.to_json())
        return 0
    console = stdout_console()
    console.print(printable(report.path), style="bold")
    console.print(f"{human_nbytes(report.nbytes)}, {_record(report)}")
    _print_entry_points(console, report)
    if any(entry.kernels for entry in report.entry_points):
        _print_kernels(console, report)
    if report.state:
        _print_state(console, report)
    if report.weights:
        _print_weights(console, report)
    if report.delegates:
        _print_delegates(console, report)
    if report.arenas:
        _print_arenas(console, report)
    if report.findings:
        console.print()
        print_findings(console, report.findings)
    return 0


def _record(report: ProgramReport) -> str:
    if report.record == "missing":
        return "no record of what entry points share; from the program's own plans:"
    if report.record == "damaged":
        problem = printable(report.record_problem)
        return f"its record is unusable ({problem}); from the program's own plans:"
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(report.producer.items())
    )
    return f"written by {printable(versions)}"


def _print_entry_points(console: Console, report: ProgramReport) -> None:
    print_table(
        console,
        "Entry points",
        ("name", "inputs", "outputs", number("delegates"), number("activations")),
        (
            (
                f"{entry.name} (generated)" if entry.generated else entry.name,
                _arguments(entry),
                _values(entry.results),
                str(len(entry.delegates)),
                human_nbytes(entry.activation_nbytes),
            )
            for entry in report.entry_points
        ),
    )


def _print_kernels(console: Console, report: ProgramReport) -> None:
    print_table(
        console,
        "Kernels outside of delegates",
        ("entry point", "operators"),
        (
            (entry.name, _counts(entry.kernels))
            for entry in report.entry_points
            if entry.kernels
        ),
    )


def _print_state(console: Console, report: ProgramReport) -> None:
    generated = {entry.name for entry in report.entry_points if entry.generated}
    title = f"Shared state: {human_nbytes(sum(s.nbytes for s in report.state))}"
    given = [state.fqn for state in report.state if state.initial_value == "given"]
    if given:
        title += f"; initial values are zero but for {', '.join(given)}"
    print_table(
        console,
        title,
        (
            "buffer",
            whole("tensor"),
            number("mem_id"),
            number("offset"),
            number("size"),
            "readers",
            "writers",
        ),
        (
            (
                ", ".join((state.fqn, *state.aliases)),
                tensor_text(state.dtype, state.sizes),
                str(state.mem_id),
                str(state.offset),
                human_nbytes(state.nbytes),
                ", ".join(name for name in state.readers if name not in generated),
                ", ".join(name for name in state.writers if name not in generated),
            )
            for state in report.state
        ),
    )


def _print_weights(console: Console, report: ProgramReport) -> None:
    largest_first = sorted(report.weights, key=lambda weight: -weight.nbytes)
    nbytes = human_nbytes(sum(weight.nbytes for weight in report.weights))
    title = f"Weights: {len(largest_first)}, {nbytes}"
    if len(largest_first) > _SHOWN_WEIGHTS:
        title += f"; the {_SHOWN_WEIGHTS} largest"
    print_table(
        console,
        title,
        ("weight", whole("tensor"), number("size"), "entry points"),
        (
            (
                ", ".join(weight.fqns) or _shortened(weight.keys),
                tensor_text(weight.quantization or weight.dtype, weight.sizes),
                human_nbytes(weight.nbytes),
                ", ".join(weight.entry_points),
            )
            for weight in largest_first[:_SHOWN_WEIGHTS]
        ),
    )


def _print_delegates(console: Console, report: ProgramReport) -> None:
    print_table(
        console,
        "Delegates",
        (
            "entry point",
            number("index"),
            "backend",
            number("payload"),
            "operators",
            number("weights"),
        ),
        (
            (
                delegate.entry_point,
                str(delegate.index),
                delegate.backend_id,
                human_nbytes(delegate.payload_nbytes),
                _counts(delegate.operators),
                str(len(delegate.weights)),
            )
            for delegate in report.delegates
        ),
    )


def _print_arenas(console: Console, report: ProgramReport) -> None:
    names = [entry.name for entry in report.entry_points]
    print_table(
        console,
        "Memory: the largest plan of each arena",
        (number("mem_id"), "holds", number("size"), "planned"),
        (
            (
                str(arena.mem_id),
                arena.kind.replace("_", " "),
                human_nbytes(arena.nbytes),
                ", ".join(
                    f"{name} {human_nbytes(arena.planned[name])}" for name in names
                ),
            )
            for arena in report.arenas
        ),
    )


def _arguments(entry: EntryPointReport) -> str:
    symbols = Counter(
        symbol
        for argument in entry.arguments
        for value in argument.values
        for symbol in value.symbols
    )
    # One that stands once ties nothing.
    tied = {symbol for symbol, count in symbols.items() if symbol and count > 1}
    return ", ".join(
        f"{argument.name}: {_values(argument.values, tied)}"
        for argument in entry.arguments
    )


def _values(values: Iterable[ValueReport], tied: Collection[int] = frozenset()) -> str:
    return ", ".join(_value(value, tied) for value in values)


def _value(value: ValueReport, tied: Collection[int]) -> str:
    if not value.dtype:
        return value.kind
    if not value.dynamic or not value.max_sizes:
        at_most = " at most" if value.dynamic else ""
        return tensor_text(value.dtype, value.sizes) + at_most
    return tensor_text(
        value.dtype,
        (
            (f"s{symbol}=" if symbol in tied else "")
            + (str(most) if least == most else f"{least}..{most}")
            for least, most, symbol in zip(
                value.min_sizes, value.max_sizes, value.symbols, strict=True
            )
        ),
    )


def _counts(operators: Mapping[str, int]) -> str:
    """Name operators as in Python: ``aten::add.out`` and its overloads are add."""
    counts = Counter[str]()
    for name, count in operators.items():
        counts[name.removeprefix("aten::").partition(".")[0]] += count
    return ", ".join(
        name if count == 1 else f"{name} ×{count}"
        for name, count in sorted(counts.items())
    )


def _shortened(keys: tuple[str, ...]) -> str:
    return ", ".join(key if len(key) <= 16 else f"{key[:12]}…" for key in keys)
