"""Export Silero VAD with three entry points and stream a recording through it.

Every chunk is compared with the original TorchScript program. Run it with
``etshared demo`` or ``python examples streaming_vad --output DIR``.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import reporting
from rich.console import Console

import etshared_plugin as etshared

if TYPE_CHECKING:
    from .measuring import Round

RECORDING = Path(__file__).with_name("speech.wav")

#: The most that a probability may differ from the original program's.
ALLOWED_DIFFERENCE = 1e-4


def run(output: Path) -> int:
    with reporting.progress("importing torch and ExecuTorch"):
        import numpy as np

        from . import measuring
        from .speech import print_speech, read_chunks
    with reporting.progress("exporting forward, peek and reset"):
        three = measuring.export(output / "vad.pte", ("forward", "peek", "reset"))
    with reporting.progress("exporting forward alone"):
        one = measuring.export(output / "vad-forward.pte", ("forward",))

    program = etshared.load(three)
    session = program.session()
    session.load()
    chunks = read_chunks(RECORDING)
    with reporting.progress("streaming the recording twice"):
        first = measuring.stream(session, chunks)
        session["reset"]()
        second = measuring.stream(session, chunks)
    with reporting.progress("loading both programs a few times"):
        load_seconds = reporting.load_seconds((three, one))
    speech = np.asarray(first.probabilities) > 0.9
    chunk = output / "chunk.npy"
    np.save(chunk, chunks[int(np.argmax(speech))])

    console = reporting.stdout_console()
    print_speech(console, RECORDING.name, first.probabilities)
    is_equal = print_differences(console, (first, second))
    reporting.print_costs(
        console,
        "Three entry points against one",
        ("three", "forward alone"),
        (three, one),
        load_seconds,
    )
    assert program.context is not None
    reporting.print_shared(console, program.context)
    reporting.print_commands(
        console, three, f"--entry forward --input {shlex.quote(str(chunk))}"
    )
    return 0 if is_equal else 1


def print_differences(console: Console, rounds: tuple[Round, Round]) -> bool:
    """Print how far the program is from the original; return if it is near enough."""
    differences = [
        (result.forward_difference, result.peek_difference) for result in rounds
    ]
    reporting.print_table(
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
