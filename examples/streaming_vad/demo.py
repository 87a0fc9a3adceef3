"""Export Silero VAD with three entry points and stream a recording through it.

Every chunk is compared with the original TorchScript program. Run it with
``etshared demo`` or ``python demo.py --output DIR``.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

import etshared_plugin as etshared
from etshared_plugin.context import Access, SharedContext

if TYPE_CHECKING:
    from measuring import Round

RECORDING = Path(__file__).with_name("speech.wav")

#: The most that a probability may differ from the original program's.
ALLOWED_DIFFERENCE = 1e-4

LOADS = 15


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--output", type=Path, default=Path("etshared-demo"), metavar="DIR"
    )
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    # What torch and torchao say about themselves while they are imported and trace.
    logging.disable(logging.WARNING)
    for category in (DeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", category)

    with progress("importing torch and ExecuTorch"):
        import measuring
        import numpy as np
        from speech import print_speech, read_chunks
    with progress("exporting forward, peek and reset"):
        three = measuring.export(output / "vad.pte", ("forward", "peek", "reset"))
    with progress("exporting forward alone"):
        one = measuring.export(output / "vad-forward.pte", ("forward",))

    program = etshared.load(three)
    session = program.session()
    session.load()
    chunks = read_chunks(RECORDING)
    with progress("streaming the recording twice"):
        first = measuring.stream(session, chunks)
        session["reset"]()
        second = measuring.stream(session, chunks)
    with progress("loading both programs a few times"):
        load_seconds = measuring.load_seconds((three, one), LOADS)
    speech = np.asarray(first.probabilities) > 0.9
    np.save(output / "chunk.npy", chunks[int(np.argmax(speech))])

    console = Console(markup=False, emoji=False, highlight=False)
    print_speech(console, RECORDING.name, first.probabilities)
    is_equal = print_differences(console, (first, second))
    print_costs(console, (three, one), load_seconds)
    assert program.context is not None
    print_shared(console, program.context)
    print_next(console, three, output / "chunk.npy")
    return 0 if is_equal else 1


@contextmanager
def progress(task: str) -> Iterator[None]:
    """Show on stderr what takes a while, and then how long it took."""
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    started = time.perf_counter()
    with console.status(task):
        yield
    console.print(f"{task}: {time.perf_counter() - started:.1f} s", style="dim")


def print_differences(console: Console, rounds: tuple[Round, Round]) -> bool:
    """Print how far the program is from the original; return if it is near enough."""
    differences = [
        (result.forward_difference, result.peek_difference) for result in rounds
    ]
    print_table(
        console,
        "Largest difference to the original TorchScript program, over all chunks",
        ("", ">forward", ">peek", ">allowed"),
        [
            (name, *(f"{value:.1e}" for value in (*values, ALLOWED_DIFFERENCE)))
            for name, values in zip(
                ("from the start", "again, after reset"), differences, strict=True
            )
        ],
    )
    is_equal = all(max(values) <= ALLOWED_DIFFERENCE for values in differences)
    if not is_equal:
        console.print("The program differs from the original.", style="bold red")
    return is_equal


def print_costs(
    console: Console, paths: tuple[Path, Path], load_seconds: Sequence[float]
) -> None:
    nbytes = [path.stat().st_size for path in paths]
    print_table(
        console,
        "Three entry points against one",
        ("", ">three", ">forward alone", ">ratio"),
        [
            (
                "file",
                *(f"{size:,} bytes" for size in nbytes),
                f"{nbytes[0] / nbytes[1]:.3f}",
            ),
            (
                f"load, median of {LOADS}",
                *(f"{seconds * 1e3:.1f} ms" for seconds in load_seconds),
                f"{load_seconds[0] / load_seconds[1]:.2f}",
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
    names = " and ".join(context.entry_points[index].name for index in sorted(users))
    console.print()
    console.print(
        f"{len(context.weights)} weights, stored once: "
        f"{sum(weight.nbytes for weight in context.weights):,} bytes, "
        f"used by {names}",
    )


def print_next(console: Console, program: Path, chunk: Path) -> None:
    file, input_file = (shlex.quote(str(path)) for path in (program, chunk))
    console.print()
    console.print(f"Wrote {program}. Look at it, check it, call it:", style="bold")
    for command in (
        f"inspect {file}",
        f"verify {file}",
        f"run {file} --entry forward --input {input_file}",
    ):
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


if __name__ == "__main__":
    sys.exit(main())
