"""Speech to text: an encoder, and a decoder that caches keys and values of both."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etshared_plugin import EntryPoint

from .case import ModelCase


@dataclass
class Dimensions:
    n_mels: int = 8
    n_audio_ctx: int = 10
    n_state: int = 16
    n_head: int = 2
    n_vocab: int = 32
    n_text_ctx: int = 12


def sinusoids(length: int, channels: int, max_timescale: float = 10000.0) -> Tensor:
    increment = math.log(max_timescale) / (channels // 2 - 1)
    inv_timescales = torch.exp(-increment * torch.arange(channels // 2))
    scaled = torch.arange(length)[:, None] * inv_timescales[None, :]
    return torch.cat([scaled.sin(), scaled.cos()], dim=1)


def relative_position_bucket(relative: Tensor, buckets: int, most: int) -> Tensor:
    """Give small distances a bucket each, and larger ones logarithmic buckets."""
    distance = -torch.min(relative, torch.zeros_like(relative))
    max_exact = buckets // 2
    is_small = distance < max_exact
    ratio = torch.log(distance.float() / max_exact) / math.log(most / max_exact)
    if_large = max_exact + (ratio * (buckets - max_exact)).to(torch.long)
    if_large = torch.min(if_large, torch.full_like(if_large, buckets - 1))
    return torch.where(is_small, distance, if_large)


class MultiHeadAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_head, -1)).permute(0, 2, 1, 3)

    def attend(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q = self.split(self.query(x))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.permute(0, 2, 1, 3).flatten(start_dim=2))


class CachedSelfAttention(MultiHeadAttention):
    def __init__(self, n_state: int, n_head: int, n_ctx: int) -> None:
        super().__init__(n_state, n_head)
        shape = (1, n_head, n_ctx, n_state // n_head)
        self.register_buffer("k_cache", torch.zeros(shape))
        self.register_buffer("v_cache", torch.zeros(shape))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        self.k_cache.index_copy_(2, position, self.split(self.key(x)))
        self.v_cache.index_copy_(2, position, self.split(self.value(x)))
        return self.attend(x, self.k_cache, self.v_cache, mask)


class CachedCrossAttention(MultiHeadAttention):
    """Replaces its caches by assignment."""

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, n_state: int, n_head: int, n_ctx: int) -> None:
        super().__init__(n_state, n_head)
        shape = (1, n_head, n_ctx, n_state // n_head)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def remember(self, audio: Tensor) -> None:
        self.k_cache = self.split(self.key(audio))
        self.v_cache = self.split(self.value(audio))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, self.k_cache, self.v_cache, None)


class Encoder(nn.Module):
    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        n_state = dims.n_state
        self.conv1 = nn.Conv1d(dims.n_mels, n_state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(n_state, n_state, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positions", sinusoids(dims.n_audio_ctx, n_state))
        self.attn = MultiHeadAttention(n_state, dims.n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(
            nn.Linear(n_state, 2 * n_state), nn.GELU(), nn.Linear(2 * n_state, n_state)
        )
        self.mlp_ln = nn.LayerNorm(n_state)
        self.ln_post = nn.LayerNorm(n_state)

    def forward(self, mel: Tensor) -> Tensor:
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x))
        x = x.permute(0, 2, 1)
        assert x.shape[1:] == self.positions.shape, "incorrect audio shape"
        x = (x + self.positions).to(x.dtype)
        y = self.attn_ln(x)
        keys, values = self.attn.key(y), self.attn.value(y)
        x = x + self.attn.attend(
            y, self.attn.split(keys), self.attn.split(values), None
        )
        x = x + self.mlp(self.mlp_ln(x))
        return self.ln_post(x)


class DecoderBlock(nn.Module):
    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        n_state, n_head = dims.n_state, dims.n_head
        self.attn = CachedSelfAttention(n_state, n_head, dims.n_text_ctx)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = CachedCrossAttention(n_state, n_head, dims.n_audio_ctx)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(
            nn.Linear(n_state, 2 * n_state), nn.GELU(), nn.Linear(2 * n_state, n_state)
        )
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x), position, mask)
        x = x + self.cross_attn(self.cross_attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class Decoder(nn.Module):
    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.n_ctx = dims.n_text_ctx
        self.token_embedding = nn.Embedding(dims.n_vocab, dims.n_state)
        self.relative_attention_bias = nn.Embedding(8, dims.n_head)
        self.blocks = nn.ModuleList([DecoderBlock(dims)])
        self.ln = nn.LayerNorm(dims.n_state)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        keys = torch.arange(self.n_ctx, device=tokens.device)
        relative = keys[None, :] - position[:, None]
        bias = self.relative_attention_bias(relative_position_bucket(relative, 8, 10))
        mask = bias.permute(2, 0, 1).unsqueeze(0)
        mask = mask.masked_fill(relative > 0, float("-inf"))
        x = self.token_embedding(tokens)
        for block in self.blocks:
            x = block(x, position, mask)
        x = self.ln(x)
        return x @ torch.transpose(self.token_embedding.weight, 0, 1)


class SpeechToText(nn.Module):
    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.encoder = Encoder(dims)
        self.decoder = Decoder(dims)
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def encode(self, mel: Tensor) -> Tensor:
        features = self.encoder(mel)
        for block in self.decoder.blocks:
            block.cross_attn.remember(features)
        self.position.zero_()
        return features

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> dict[str, Tensor]:
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.decoder(tokens, (self.position + steps) % self.decoder.n_ctx)
        self.position += tokens.shape[1]
        probabilities = logits[:, -1].softmax(dim=-1)
        return {"logits": logits, "next": probabilities.argmax(dim=-1)}

    def reset(self) -> None:
        self.position = torch.zeros_like(self.position)
        for block in self.decoder.blocks:
            block.attn.k_cache.zero_()
            block.attn.v_cache.fill_(0.0)


def build() -> ModelCase:
    torch.manual_seed(0)
    dims = Dimensions()
    model = SpeechToText(dims).eval()

    def token(generator: random.Random) -> tuple[Tensor]:
        return (torch.tensor([[generator.randrange(32)]]),)

    return ModelCase(
        model,
        {
            "encode": EntryPoint(model.encode, (torch.randn(1, 8, 20),)),
            "decode": EntryPoint(model.decode, (torch.tensor([[5]]),)),
            "reset": EntryPoint(model.reset),
        },
        inputs={"decode": token},
    )
