"""The demo finds the speech, equals the original, and its advice works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from etshared_plugin.cli import main

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "streaming_vad"


@pytest.fixture(scope="module")
def demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "programs"


@pytest.fixture(scope="module")
def demo_output(demo_directory: Path) -> str:
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from etshared_plugin.cli import main; sys.exit(main())",
            "demo",
            "--output",
            demo_directory,
        ],
        cwd=demo_directory.parent,  # a checkout has no native module
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def cells(output: str, name: str) -> list[str]:
    line = next(line for line in output.splitlines() if line.startswith(name))
    return re.split(" {2,}", line.strip())


def test_five_sentences_are_found(demo_output: str) -> None:
    segments = re.findall(r"segment \d +([\d.]+) s to +([\d.]+) s", demo_output)
    times = np.array(segments, dtype=float)
    sentences = [(1.0, 2.5), (4.0, 9.0), (10.4, 12.7), (14.0, 16.5), (16.6, 18.6)]
    assert times.shape == (5, 2)
    assert np.abs(times - sentences).max() < 0.2


@pytest.mark.parametrize("round_name", ["from the start", "again, after reset"])
def test_every_chunk_equals_the_original(demo_output: str, round_name: str) -> None:
    _, forward, peek, allowed = cells(demo_output, round_name)
    assert float(allowed) == 1e-4
    assert float(forward) <= 1e-4
    assert float(peek) <= 1e-4


def test_three_entry_points_take_the_file_of_one(
    demo_output: str, demo_directory: Path
) -> None:
    three = (demo_directory / "vad.pte").stat().st_size
    one = (demo_directory / "vad-forward.pte").stat().st_size
    assert three <= 1.02 * one
    assert cells(demo_output, "file")[1:3] == [f"{three:,} bytes", f"{one:,} bytes"]


def test_the_shared_state_is_listed_with_its_users(demo_output: str) -> None:
    for name in ("context", "state"):
        readers, writers = cells(demo_output, f"{name} ")[4:]
        assert readers.startswith("forward, peek")
        assert writers == "forward, reset"


def test_the_commands_that_the_demo_recommends_work(
    demo_output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = re.findall(r"^  etshared (.*)$", demo_output, re.M)
    assert [command.split()[0] for command in commands] == ["inspect", "verify", "run"]
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr().err


def test_exporting_again_gives_the_same_bytes(
    demo_output: str,
    demo_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    import measuring

    again = measuring.export(tmp_path / "vad.pte", ("forward", "peek", "reset"))
    assert again.read_bytes() == (demo_directory / "vad.pte").read_bytes()


def test_a_difference_makes_the_demo_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    import demo
    from measuring import Round

    console = Console(quiet=True)
    good, bad = Round([], 1e-4, 1e-4), Round([], 0.0, 1.1e-4)
    assert demo.print_differences(console, (good, good))
    assert not demo.print_differences(console, (good, bad))


def test_speech_ends_only_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    import speech

    def chunks(text: str) -> list[float]:
        return [{"#": 0.9, "-": 0.4, ".": 0.1}[character] for character in text]

    def found(text: str) -> list[tuple[int, int]]:
        return [
            (
                round(segment.start / speech.CHUNK_SECONDS),
                round(segment.end / speech.CHUNK_SECONDS),
            )
            for segment in speech.find_segments(chunks(text))
        ]

    assert found("..##...##..") == [(2, 9)]
    assert found("..##....##....") == [(2, 4), (8, 10)]
    assert found("--##--....-") == [(2, 6)]
    assert found("....") == []
