"""``etshared demo text_embedding``: the whole model, compared with the original's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from demo_runs import assert_recommended_commands_work, cells, run_demo
from text_embedding import measuring
from text_embedding.model import MAX_TOKENS, load_model
from text_embedding.texts import EDGES, NOTES, QUERIES

import etshared_plugin as etshared

# It exports for some minutes.
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text_embedding") / "programs"


@pytest.fixture(scope="module")
def demo_output(demo_directory: Path) -> str:
    return run_demo(demo_directory, "text_embedding")


@pytest.fixture(scope="module")
def path(demo_output: str, demo_directory: Path) -> Path:
    return demo_directory / "minilm.pte"


@pytest.mark.parametrize("name", ["embed", "token_embeddings", "similarity"])
def test_the_demo_finds_each_entry_point_equal_to_the_original(
    demo_output: str, name: str
) -> None:
    rows = [line.split() for line in demo_output.splitlines()]
    difference, allowed = next(
        map(float, row[1:]) for row in rows if row[:1] == [name] and len(row) == 3
    )
    assert 0 <= difference <= allowed == 1e-4


def test_the_demo_compares_texts_of_many_lengths(demo_output: str) -> None:
    rows = re.findall(r"^ *(\d+)  .*  (\S+e-\d+)  +(\S+e-\d+)$", demo_output, re.M)
    assert len(rows) == len(NOTES) + len(EDGES) + len(QUERIES)
    lengths = {int(num_tokens) for num_tokens, *_ in rows}
    assert {2, 3, MAX_TOKENS} < lengths
    assert any(100 < length < MAX_TOKENS for length in lengths)
    assert max(float(value) for _, *values in rows for value in values) <= 1e-4


def test_five_entry_points_take_the_file_of_one(
    demo_output: str, demo_directory: Path, path: Path
) -> None:
    five = path.stat().st_size
    one = (demo_directory / "minilm-embed.pte").stat().st_size
    weights = sum(4 * value.numel() for value in load_model().parameters())
    assert weights < five <= 1.01 * weights
    assert five <= 1.01 * one
    assert cells(demo_output, "file")[1:3] == [f"{five:,} bytes", f"{one:,} bytes"]


def test_the_commands_that_the_demo_recommends_work(
    demo_output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_recommended_commands_work(demo_output, capsys)


def test_each_query_finds_the_note_that_means_the_same(path: Path) -> None:
    session = etshared.load(path).session()
    cosines = measuring.search(session, NOTES, [query for query, _ in QUERIES])
    assert cosines.argmax(1).tolist() == [place for _, place in QUERIES]
    ordered = np.sort(cosines, 1)
    assert (ordered[:, -1] > 1.5 * ordered[:, -2]).all()
