"""The text-embedding example: real weights, five entry points, the original's results.

Exporting takes about a minute, so one run of the demo serves all tests.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_runs import assert_recommended_commands_work, cells, run_demo
from executorch.runtime import Runtime
from packed_cache_use import assert_loads_agree
from rich.console import Console
from text_embedding import demo, measuring
from text_embedding.measuring import Comparison
from text_embedding.model import CAPACITY, MAX_TOKENS, TextEmbedder, load_model
from text_embedding.texts import EDGES, NOTES, QUERIES, make_tokenizer, tokenize

import etshared_plugin as etshared
from etshared_plugin.errors import InputError

Text = tuple[torch.Tensor, torch.Tensor]

ENCODING = ("embed", "remember", "similarity", "token_embeddings")

assert_close: Callable[..., None] = functools.partial(
    torch.testing.assert_close, rtol=0, atol=1e-4
)


@pytest.fixture(scope="module")
def demo_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text_embedding") / "programs"


@pytest.fixture(scope="module")
def demo_output(demo_directory: Path) -> str:
    return run_demo(demo_directory, "text_embedding")


@pytest.fixture(scope="module")
def path(demo_output: str, demo_directory: Path) -> Path:
    return demo_directory / "minilm.pte"


@pytest.fixture
def session(path: Path) -> etshared.Session:
    return etshared.load(path).session()


@functools.cache
def original_model() -> TextEmbedder:
    return load_model()


@pytest.fixture
def model() -> TextEmbedder:
    model = original_model()
    model.memory.zero_()
    model.remembered.zero_()
    return model


def drawn_text(num_tokens: int, num_padding: int = 0) -> Text:
    """Return words at random, and as many more that the mask hides."""
    count = num_tokens + num_padding
    random = torch.Generator().manual_seed(num_tokens)
    mask = torch.ones(1, count, dtype=torch.int64)
    mask[:, num_tokens:] = 0
    return torch.randint(1000, 30_000, (1, count), generator=random), mask


@functools.cache
def tokens_of(text: str) -> Text:
    return tokenize(make_tokenizer(), text)


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
    weights = sum(4 * value.numel() for value in original_model().parameters())
    assert weights < five <= 1.01 * weights
    assert five <= 1.01 * one
    assert cells(demo_output, "file")[1:3] == [f"{five:,} bytes", f"{one:,} bytes"]


def test_the_commands_that_the_demo_recommends_work(
    demo_output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_recommended_commands_work(demo_output, capsys)


def test_a_difference_makes_the_demo_fail() -> None:
    console = Console(quiet=True)
    good, bad = Comparison("", 2, 1e-4, 1e-4), Comparison("", 2, 0.0, 1.1e-4)
    assert demo.print_differences(console, [good], 1e-4, 1e-4)
    assert not demo.print_differences(console, [good, bad], 0.0, 0.0)
    assert not demo.print_differences(console, [good], 1.1e-4, 0.0)
    assert not demo.print_differences(console, [good], 0.0, 1.1e-4)


@pytest.mark.parametrize("num_tokens", [2, 3, 31, 100, MAX_TOKENS])
def test_any_length_gives_what_eager_gives(
    session: etshared.Session, model: TextEmbedder, num_tokens: int
) -> None:
    text, other = drawn_text(num_tokens), drawn_text(17)
    with torch.no_grad():
        assert_close(session.embed(*text), model.embed(*text))
        assert_close(session.token_embeddings(*text), model.token_embeddings(*text))
        expected = model.similarity(*text, *other)
        assert_close(session.similarity(*text, *other), expected)
        assert_close(session.similarity(*other, *text), expected)


@pytest.mark.parametrize("num_tokens", [1, MAX_TOKENS + 1])
def test_a_length_that_export_did_not_allow_is_refused(
    session: etshared.Session, num_tokens: int
) -> None:
    with pytest.raises(InputError, match="ids"):
        session.embed(*drawn_text(num_tokens))


def test_padding_changes_nothing(session: etshared.Session) -> None:
    ids, mask = drawn_text(20, num_padding=44)
    text = ids[:, :20].contiguous(), mask[:, :20].contiguous()
    assert_close(session.embed(ids, mask), session.embed(*text))
    assert_close(session.similarity(ids, mask, *text), torch.ones(1))
    assert_close(
        session.token_embeddings(ids, mask)[:, :20], session.token_embeddings(*text)
    )


def test_the_memory_is_a_ring_that_search_sees(
    session: etshared.Session, model: TextEmbedder
) -> None:
    texts = [*QUERIES, *((note, 0) for note in NOTES)]
    assert CAPACITY < len(texts) < 2 * CAPACITY
    query = session.embed(*tokens_of("a delay on the railway"))
    assert torch.equal(session.search(query), torch.zeros(1, CAPACITY))
    with torch.no_grad():
        for position, (text, _) in enumerate(texts):
            place = session.remember(*tokens_of(text))
            assert torch.equal(place, model.remember(*tokens_of(text)))
            assert place.item() == position % CAPACITY
            assert_close(session.search(query), model.search(query))
    assert_close(session.state["memory"], model.memory)
    assert session.state["remembered"].tolist() == [len(texts)]
    session.reset()
    assert torch.equal(session.search(query), torch.zeros(1, CAPACITY))


def test_each_query_finds_the_note_that_means_the_same(
    session: etshared.Session,
) -> None:
    cosines = measuring.search(session, NOTES, [query for query, _ in QUERIES])
    assert cosines.argmax(1).tolist() == [place for _, place in QUERIES]
    ordered = np.sort(cosines, 1)
    assert (ordered[:, -1] > 1.5 * ordered[:, -2]).all()


def test_sessions_remember_apart(path: Path) -> None:
    program = etshared.load(path)
    one, other = program.session(), program.session()
    one.remember(*tokens_of("cat"))
    assert one.state["remembered"].tolist() == [1]
    assert other.state["remembered"].tolist() == [0]
    assert not other.state["memory"].any()


def test_every_entry_point_uses_the_weights_that_were_packed_once(path: Path) -> None:
    program = etshared.load(path)
    program.session().load()
    packing = [one for one in program.stats().entry_points if one.name in ENCODING]
    assert all(one.is_shared for one in packing)
    num_linear = sum(
        isinstance(module, torch.nn.Linear) for module in original_model().modules()
    )
    assert sum(one.constants_packed for one in packing) == num_linear
    for one in packing:
        assert one.constants_packed + one.constants_reused == num_linear


def test_each_parameter_is_stored_once_also_for_kernels_outside_of_delegates(
    path: Path,
) -> None:
    context = etshared.load(path).context
    assert context is not None
    sizes: dict[str, list[tuple[int, ...]]] = {}
    for weight in context.weights:
        for fqn in weight.fqns:
            sizes.setdefault(fqn, []).append(weight.sizes)
    for fqn, parameter in original_model().named_parameters():
        assert sizes[fqn] == [tuple(parameter.shape)], fqn


def results(session: etshared.Session) -> list[torch.Tensor]:
    """Return the outputs of some calls of every entry point."""
    text, other = tokens_of(NOTES[-1]), tokens_of(NOTES[0])
    embedding = session.embed(*text)
    return [
        embedding,
        session.remember(*other),
        session.token_embeddings(*other),
        session.remember(*text),
        session.similarity(*text, *other),
        session.search(embedding),
    ]


def test_packed_weights_change_no_bit(path: Path, tmp_path: Path) -> None:
    assert_loads_agree(path, tmp_path, results)


def test_unmodified_executorch_gives_the_same(
    session: etshared.Session, path: Path
) -> None:
    program = Runtime.get().load_program(path)
    program.load_method("reset_state").execute([])

    def run(name: str, *inputs: torch.Tensor) -> torch.Tensor:
        return program.load_method(name).execute(list(inputs))[0].clone()

    text, other = tokens_of(NOTES[-1]), tokens_of(NOTES[0])
    embedding = run("embed", *text)
    stock = [
        embedding,
        run("remember", *other),
        run("token_embeddings", *other),
        run("remember", *text),
        run("similarity", *text, *other),
        run("search", embedding),
    ]
    for one, expected in zip(results(session), stock, strict=True):
        assert torch.equal(one, expected)
