"""How ``--stats`` shows what loading took, and which packed weights are shared."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from .printing import human_nbytes, human_seconds, number, print_table, printable, whole

if TYPE_CHECKING:
    from ..runtime import PackedFileUse, ProgramStats


def stats_json(stats: ProgramStats) -> dict[str, object]:
    return {
        "entry_points": [asdict(one) for one in stats.entry_points],
        "load_seconds": stats.load_seconds,
        "pack_seconds": stats.pack_seconds,
        "constants_packed": stats.constants_packed,
        "constants_from_disk": stats.constants_from_disk,
        "constants_reused": stats.constants_reused,
        "packed_nbytes": stats.packed_nbytes,
        "from_disk_nbytes": stats.from_disk_nbytes,
        "reused_nbytes": stats.reused_nbytes,
        "packed_file": None
        if stats.packed_file is None
        else {
            "path": None
            if stats.packed_file.path is None
            else str(stats.packed_file.path),
            "origin": stats.packed_file.origin,
            "not_used": stats.packed_file.not_used,
        },
    }


def print_stats(console: Console, stats: ProgramStats) -> None:
    rows = [
        (
            one.name,
            human_seconds(one.load_seconds),
            human_seconds(one.pack_seconds),
            _constants(one.constants_packed, one.packed_nbytes),
            _constants(one.constants_from_disk, one.from_disk_nbytes),
            _constants(one.constants_reused, one.reused_nbytes),
        )
        for one in stats.entry_points
    ]
    rows.append(
        (
            "total",
            human_seconds(stats.load_seconds),
            human_seconds(stats.pack_seconds),
            _constants(stats.constants_packed, stats.packed_nbytes),
            _constants(stats.constants_from_disk, stats.from_disk_nbytes),
            _constants(stats.constants_reused, stats.reused_nbytes),
        )
    )
    print_table(
        console,
        "Loading",
        (
            whole("entry point"),
            number("load"),
            number("pack"),
            number("packed for it"),
            number("from disk"),
            number("reused"),
        ),
        rows,
    )
    if stats.packed_file is not None:
        console.print()
        console.print(printable(_packed_file_text(stats.packed_file)), soft_wrap=True)
    alone = [one for one in stats.entry_points if not one.is_shared]
    if alone:
        console.print()
    for one in alone:
        console.print(
            printable(f"'{one.name}' shares no packed weights: {one.not_shared}")
        )


_ORIGINS = {
    "written": "written",
    "verified": "verified in full",
    "unchanged": "unchanged since it was verified",
}


def _packed_file_text(packed_file: PackedFileUse) -> str:
    if packed_file.origin is None:
        return f"no packed file: {packed_file.not_used}"
    return f"packed file '{packed_file.path}': {_ORIGINS[packed_file.origin]}"


def _constants(count: int, nbytes: int) -> str:
    return f"{count}, {human_nbytes(nbytes)}" if count else "none"
