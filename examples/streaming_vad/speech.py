"""The recording, the segments of speech in it, and how both are shown."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from .model import CHUNK_SAMPLES, SAMPLE_RATE

CHUNK_SECONDS = CHUNK_SAMPLES / SAMPLE_RATE

#: Speech begins at the first probability, and ends when no chunk of this many has
#: reached the second: Silero's own hysteresis.
SPEECH_BEGINS = 0.5
SPEECH_ENDS = 0.35
PAUSE_CHUNKS = 4

_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.-:=+*#"


@dataclass(frozen=True)
class Segment:
    """Speech from ``start`` to ``end``, in seconds."""

    start: float
    end: float


def read_chunks(path: Path) -> npt.NDArray[np.float32]:
    """Return a 16 kHz mono recording as an array of shape ``(chunks, 1, samples)``.

    The last chunk is filled up with silence.
    """
    with wave.open(str(path)) as recording:
        form = (
            recording.getframerate(),
            recording.getnchannels(),
            recording.getsampwidth(),
        )
        if form != (SAMPLE_RATE, 1, 2):
            raise ValueError(f"'{path}' is not 16 kHz, mono, 16 bit")
        frames = recording.readframes(recording.getnframes())
    samples = np.frombuffer(frames, "<i2").astype(np.float32) / 32768
    samples = np.pad(samples, (0, -len(samples) % CHUNK_SAMPLES))
    return samples.reshape(-1, 1, CHUNK_SAMPLES)


def find_segments(probabilities: Sequence[float]) -> list[Segment]:
    """Return the stretches of speech that the probabilities show."""
    segments = []
    start: int | None = None
    end = 0
    for index, probability in enumerate(probabilities):
        if start is None:
            if probability >= SPEECH_BEGINS:
                start, end = index, index + 1
        elif probability >= SPEECH_ENDS:
            end = index + 1
        elif index - end + 1 >= PAUSE_CHUNKS:
            segments.append(Segment(start * CHUNK_SECONDS, end * CHUNK_SECONDS))
            start = None
    if start is not None:
        segments.append(Segment(start * CHUNK_SECONDS, end * CHUNK_SECONDS))
    return segments


def print_speech(console: Console, name: str, probabilities: Sequence[float]) -> None:
    """Print the timeline of a recording and its segments."""
    seconds = len(probabilities) * CHUNK_SECONDS
    console.print()
    console.print(
        f"Speech in {name} ({seconds:.1f} s, {len(probabilities)} chunks)", style="bold"
    )
    _print_timeline(console, probabilities)
    console.print()
    for number, segment in enumerate(find_segments(probabilities), 1):
        console.print(
            f"  segment {number}  {segment.start:6.2f} s to {segment.end:6.2f} s"
            f"  ({segment.end - segment.start:.2f} s)"
        )


def _print_timeline(console: Console, probabilities: Sequence[float]) -> None:
    """Draw probabilities, segments and seconds over the console's width."""
    label_width = len("probability  ")
    width = max(20, min(console.width, 100) - label_width - 1)
    duration = len(probabilities) * CHUNK_SECONDS
    ascii_only = console.options.ascii_only
    levels = _ASCII_LEVELS if ascii_only else _LEVELS

    bars = Text()
    for column in np.array_split(np.asarray(probabilities), width):
        mean = float(column.mean()) if len(column) else 0.0
        level = levels[min(int(mean * len(levels)), len(levels) - 1)]
        bars.append(level, "green" if mean >= SPEECH_BEGINS else "dim")

    line = [" "] * width
    for segment in find_segments(probabilities):
        first, last = (
            round(second / duration * (width - 1))
            for second in (segment.start, segment.end)
        )
        line[first : last + 1] = ("=" if ascii_only else "━") * (last + 1 - first)

    ruler = [" "] * width
    for second in range(0, int(duration) + 1, 5):
        mark = f"{second} s"
        first = min(round(second / duration * width), width - len(mark))
        ruler[first : first + len(mark)] = mark

    for label, content in (
        ("probability", bars),
        ("speech", Text("".join(line), "green")),
        ("", Text("".join(ruler), "dim")),
    ):
        console.print(Text(f"{label:<{label_width}}").append(content), no_wrap=True)
