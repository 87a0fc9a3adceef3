"""Measure loading, memory and threads, side by side with stock ExecuTorch.

    python tests/benchmarks/run.py [--rounds 7] [--json]

Each figure is the median of several rounds; a round measures each system once, in
a fresh process, one after another, so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from measurements import (
    Figures,
    Setting,
    measure_loads,
    measure_threads,
    measure_two_processes,
)
from models import write_programs
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stock_programs import build  # noqa: E402

_LAYERS, _WIDTH = 8, 2048
_THREAD_LAYERS, _THREAD_WIDTH, _THREAD_ROWS = 4, 1024, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = _measure(Path(name), arguments.rounds)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures)


def _measure(directory: Path, rounds: int) -> dict[str, Figures]:
    stock_cpp = build("measure_module", directory / "build")
    warm_up = write_programs(directory, "small", 1, 16)["all"]

    def setting(layers: int, width: int, rows: int) -> Setting:
        return Setting(
            directory,
            write_programs(directory, f"linears_{width}", layers, width, rows),
            warm_up,
            [f"method_{i}" for i in range(layers)],
            (rows, width),
            stock_cpp,
        )

    wide = setting(_LAYERS, _WIDTH, 1)
    loads = measure_loads(wide, rounds)
    sizes = {key: {"size": float(p.stat().st_size)} for key, p in wide.paths.items()}
    processes = {
        key: {"Pss": value} for key, value in measure_two_processes(wide).items()
    }
    threads = measure_threads(
        setting(_THREAD_LAYERS, _THREAD_WIDTH, _THREAD_ROWS), rounds, seconds=1.0
    )
    return {"load": loads, "file": sizes, "processes": processes, "threads": threads}


def _print(figures: dict[str, Figures]) -> None:
    console = Console()
    nbytes = _LAYERS * _WIDTH * _WIDTH * 4
    table = Table(title=f"Load of {_LAYERS} entry points over {nbytes / 1e6:.0f} MB")
    for column in ("system", "time", "of 'all'", "anonymous", "Pss"):
        table.add_column(column, justify="left" if column == "system" else "right")
    whole = figures["load"]["all"]["seconds"]
    for name, one in figures["load"].items():
        table.add_row(
            name,
            f"{one['seconds'] * 1e3:.1f} ms",
            f"{one['seconds'] / whole:.3f}",
            f"{one['Anonymous'] / 1e6:.1f} MB",
            f"{one['Pss'] / 1e6:.1f} MB",
        )
    console.print(table)
    second = figures["load"]["all, two sessions"]["last_session"]
    console.print(
        f"A second session: {second * 1e3:.2f} ms, {second / whole:.4f} of 'all'"
    )
    size = {name: one["size"] for name, one in figures["file"].items()}
    console.print(
        f"File of all entry points: {size['all'] / size['one']:.4f} × that of one, "
        f"{size['all'] / size['stock']:.4f} × what stock ExecuTorch writes"
    )
    pss = {name: one["Pss"] for name, one in figures["processes"].items()}
    console.print(
        f"Two processes with the packed file: {pss['two'] / pss['one']:.3f} × the "
        f"proportional memory of one ({pss['one'] / 1e6:.1f} MB)"
    )
    for name, one in figures["threads"].items():
        console.print(f"Two threads, {name}: {one['ratio']:.2f} × the calls of one")


if __name__ == "__main__":
    main()
