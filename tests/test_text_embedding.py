"""The text-embedding example: five entry points over real weights do as eager.

All layers but the first are left out, as exporting takes long;
``test_text_embedding_demo.py`` has the whole model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime
from packed_cache_use import assert_loads_agree
from rich.console import Console
from text_embedding import demo, measuring
from text_embedding.measuring import Comparison
from text_embedding.model import CAPACITY, MAX_TOKENS, TextEmbedder, load_model
from text_embedding.texts import NOTES, QUERIES, make_tokenizer, tokenize

import etshared_plugin as etshared
from etshared_plugin.errors import InputError

Text = tuple[torch.Tensor, torch.Tensor]

NUM_LAYERS = 1

ENCODING = ("embed", "remember", "similarity", "token_embeddings")

assert_close: Callable[..., None] = functools.partial(
    torch.testing.assert_close, rtol=0, atol=1e-4
)


@functools.cache
def cut_model() -> TextEmbedder:
    model = load_model()
    model.encoder.layer = model.encoder.layer[:NUM_LAYERS]
    return model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("text_embedding")
    return measuring.export(cut_model(), directory / "minilm.pte")


@pytest.fixture
def session(path: Path) -> etshared.Session:
    return etshared.load(path).session()


@pytest.fixture
def model() -> TextEmbedder:
    model = cut_model()
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
        isinstance(module, torch.nn.Linear) for module in cut_model().modules()
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
    for fqn, parameter in cut_model().named_parameters():
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
