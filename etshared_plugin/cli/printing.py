"""How commands write: tables and units for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table

#: Version of what ``--json`` prints; it changes when a field changes its meaning.
JSON_VERSION = 1


def stdout_console() -> Console:
    """Return a console that takes every string literally, names from files too."""
    return Console(markup=False, emoji=False, highlight=False)


def printable(text: str) -> str:
    """Return ``text`` with characters that could act on a terminal escaped."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def human_nbytes(nbytes: int) -> str:
    """Return a size as people read it: ``16 B``, ``1.2 KiB``, ``3.4 MiB``."""
    if nbytes < 1024:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        # 1023.95 would be rounded to 1024.0.
        if size < 1023.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Return a duration as people read it: ``12 µs``, ``3.4 ms``, ``1.2 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s"


def whole(header: str) -> Column:
    """Return a column whose values are not broken into lines."""
    return Column(header, no_wrap=True)


def number(header: str) -> Column:
    """Return a column of numbers with their units."""
    return Column(header, no_wrap=True, justify="right")


def print_table(
    console: Console,
    title: str,
    columns: Iterable[Column | str],
    rows: Iterable[Sequence[str]],
) -> None:
    """Print a table; strings are headers of columns that may be broken into lines."""
    table = Table(
        *(
            Column(column, min_width=len(column), overflow="fold")
            if isinstance(column, str)
            else column
            for column in columns
        ),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for row in rows:
        table.add_row(*map(printable, row))
    console.print()
    console.print(printable(title), style="bold")
    console.print(table)


def print_json(report: dict[str, object]) -> None:
    """Print a report as one sorted JSON object with its version."""
    json.dump(
        {"version": JSON_VERSION, **report},
        sys.stdout,
        allow_nan=False,
        indent=2,
        sort_keys=True,
    )
    sys.stdout.write("\n")
