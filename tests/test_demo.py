"""The demo finds the speech, equals the original, and its advice works."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_runs import assert_recommended_commands_work, cells, run_demo
from packed_cache_use import assert_loads_agree
from rich.console import Console
from streaming_vad import demo, measuring, speech
from streaming_vad.measuring import Round

import etshared_plugin as etshared
from etshared_plugin.cli import main

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "programs"


@pytest.fixture(scope="module")
def demo_output(demo_directory: Path) -> str:
    return run_demo(demo_directory)


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
    assert_recommended_commands_work(demo_output, capsys)


def test_packed_weights_change_no_bit(
    demo_output: str, demo_directory: Path, tmp_path: Path
) -> None:
    recording = EXAMPLES / "streaming_vad" / "speech.wav"
    chunks = torch.from_numpy(speech.read_chunks(recording)[50:90])

    def run(session: etshared.Session) -> list[torch.Tensor]:
        return [f(x) for x in chunks for f in (session.peek, session.forward)]

    assert_loads_agree(demo_directory / "vad.pte", tmp_path, run)


def test_exporting_again_gives_the_same_bytes(
    demo_output: str, demo_directory: Path, tmp_path: Path
) -> None:
    again = measuring.export(tmp_path / "vad.pte", ("forward", "peek", "reset"))
    assert again.read_bytes() == (demo_directory / "vad.pte").read_bytes()


def test_a_difference_makes_the_demo_fail() -> None:
    console = Console(quiet=True)
    good, bad = Round([], 1e-4, 1e-4), Round([], 0.0, 1.1e-4)
    assert demo.print_differences(console, (good, good))
    assert not demo.print_differences(console, (good, bad))


def test_speech_ends_only_after_a_pause() -> None:
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


def test_all_examples_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    examples = sorted(path.parent.name for path in EXAMPLES.glob("*/demo.py"))
    assert examples
    assert main(["demo", "nothing"]) == 2
    offered = re.search(r"\(choose from (.*)\)", capsys.readouterr().err)
    assert offered and sorted(re.findall(r"\w+", offered[1])) == examples
