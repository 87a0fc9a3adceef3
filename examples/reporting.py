"""What every example measures and prints."""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import etshared_plugin as etshared
from etshared_plugin.context import Access, SharedContext
from etshared_plugin.runtime import ProgramStats

LOADS = 15


def stdout_console() -> Console:
    return Console(markup=False, emoji=False, highlight=False)


@contextmanager
def progress(task: str) -> Iterator[None]:
    """Show on stderr what takes a while, and then how long it took."""
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    started = time.perf_counter()
    with console.status(task):
        yield
    console.print(f"{task}: {time.perf_counter() - started:.1f} s", style="dim")


def load_seconds(paths: Sequence[Path]) -> list[float]:
    """Return the median time to load each program with all its entry points."""
    seconds: dict[Path, list[float]] = {path: [] for path in paths}
    for _ in range(LOADS):
        for path in paths:
            started = time.perf_counter()
            etshared.load(path).session().load()
            seconds[path].append(time.perf_counter() - started)
    return [statistics.median(seconds[path]) for path in paths]


def print_costs(
    console: Console,
    title: str,
    columns: tuple[str, str],
    paths: tuple[Path, Path],
    seconds: Sequence[float],
) -> None:
    """Print what a program with several entry points costs against one with one."""
    nbytes = [path.stat().st_size for path in paths]
    print_table(
        console,
        title,
        ("", *(f">{column}" for column in columns), ">ratio"),
        [
            (
                "file",
                *(f"{size:,} bytes" for size in nbytes),
                f"{nbytes[0] / nbytes[1]:.3f}",
            ),
            (
                f"load, median of {LOADS}",
                *(f"{one * 1e3:.1f} ms" for one in seconds),
                f"{seconds[0] / seconds[1]:.2f}",
            ),
        ],
    )


def print_shared(console: Console, context: SharedContext) -> None:
    """Print where state lies, who uses it, and what the weights take."""
    rows = []
    for index, buffer in enumerate(context.buffers):
        readers, writers = (
            ", ".join(
                entry.name
                for entry in context.entry_points
                for use in entry.buffers
                if use.buffer == index and use.access & access and not entry.generated
            )
            for access in (Access.READ, Access.WRITE)
        )
        shape = "x".join(map(str, buffer.sizes))
        rows.append(
            (
                buffer.fqn,
                shape,
                f"{buffer.offset}",
                f"{buffer.nbytes}",
                readers,
                writers,
            )
        )
    print_table(
        console,
        "Shared state, once in memory",
        ("buffer", "shape", ">offset", ">bytes", "read by", "written by"),
        rows,
    )
    users = {
        context.delegates[i].entry_point for w in context.weights for i in w.delegates
    }
    *names, last = [context.entry_points[index].name for index in sorted(users)]
    console.print()
    console.print(
        f"{len(context.weights)} weights, stored once: "
        f"{sum(weight.nbytes for weight in context.weights):,} bytes, "
        f"used by {' and '.join(filter(None, (', '.join(names), last)))}",
    )


def print_packed(console: Console, stats: ProgramStats) -> None:
    """Print how many weights XNNPACK packed, and for whom."""
    print_table(
        console,
        "Weights in the form that XNNPACK computes with, once in memory",
        ("", ">packed", ">bytes", ">reused", ">bytes"),
        [
            (
                one.name,
                f"{one.constants_packed}",
                f"{one.packed_nbytes:,}",
                f"{one.constants_reused}",
                f"{one.reused_nbytes:,}",
            )
            for one in stats.entry_points
        ],
    )


def print_commands(console: Console, program: Path, run_arguments: str) -> None:
    """Print what can be done with a program in the shell."""
    file = shlex.quote(str(program))
    console.print()
    console.print(f"Wrote {program}. Look at it, check it, call it:", style="bold")
    for command in (f"inspect {file}", f"verify {file}", f"run {file} {run_arguments}"):
        console.print(f"  etshared {command}", soft_wrap=True)


def print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> None:
    """Print a table; a column whose name starts with ``>`` is aligned right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        is_right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if is_right else "left"
        )
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(title, style="bold")
    console.print(table)
