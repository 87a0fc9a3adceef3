"""A decoder-only language model with a static cache, rotary embeddings and GQA."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, register_dataclass

from etshared_plugin import EntryPoint

from .case import ModelCase


@dataclass
class Config:
    vocab_size: int = 48
    hidden_size: int = 32
    intermediate_size: int = 40
    num_layers: int = 2
    num_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 8
    max_length: int = 24
    rope_theta: float = 10000.0


@dataclass
class CausalLMOutput:
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


register_dataclass(CausalLMOutput, serialized_type_name="tests.CausalLMOutput")


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class RotaryEmbedding(nn.Module):
    inv_freq: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float()
        inv_freq = 1.0 / config.rope_theta ** (exponents / config.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        expanded = self.inv_freq[None, :, None].float()
        expanded = expanded.expand(position_ids.shape[0], -1, 1)
        freqs = (expanded @ position_ids[:, None, :].float()).transpose(1, 2)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos.unsqueeze(1) + rotate_half(x) * sin.unsqueeze(1)


def repeat_kv(hidden_states: Tensor, n_rep: int) -> Tensor:
    batch, heads, length, head_dim = hidden_states.shape
    hidden_states = hidden_states[:, :, None, :, :].expand(
        batch, heads, n_rep, length, head_dim
    )
    return hidden_states.reshape(batch, heads * n_rep, length, head_dim)


class StaticCache(nn.Module):
    """Keys are written by assignment, values with index_copy_."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        shape = (1, config.num_key_value_heads, config.max_length, config.head_dim)
        for i in range(config.num_layers):
            self.register_buffer(f"key_cache_{i}", torch.zeros(shape), persistent=False)
            self.register_buffer(f"value_cache_{i}", torch.zeros(shape))

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, cache_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        k_out = getattr(self, f"key_cache_{layer_idx}")
        v_out = getattr(self, f"value_cache_{layer_idx}")
        k_out[:, :, cache_position] = keys
        v_out.index_copy_(2, cache_position, values)
        return k_out, v_out

    def get_seq_length(self) -> Tensor:
        return (self.key_cache_0[0, 0].any(dim=-1)).sum()

    def reset(self) -> None:
        for buffer in self.buffers():
            buffer.zero_()


class Attention(nn.Module):
    def __init__(self, config: Config, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.num_key_value_groups = config.num_heads // config.num_key_value_heads
        size, kv_size = (
            heads * config.head_dim
            for heads in (config.num_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(config.hidden_size, size, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=True)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=True)
        self.o_proj = nn.Linear(size, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor,
        cache: StaticCache,
        cache_position: Tensor,
    ) -> Tensor:
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)
        query = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        key = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        cos, sin = position_embeddings
        query, key = apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        key, value = cache.update(key, value, self.layer_idx, cache_position)
        output = F.scaled_dot_product_attention(
            query,
            repeat_kv(key, self.num_key_value_groups),
            repeat_kv(value, self.num_key_value_groups),
            attn_mask=attention_mask,
        )
        output = output.transpose(1, 2).contiguous()
        return self.o_proj(output.reshape(*input_shape, -1))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(
            config.hidden_size, config.intermediate_size, bias=False
        )
        self.up_proj = nn.Linear(
            config.hidden_size, config.intermediate_size, bias=False
        )
        self.down_proj = nn.Linear(
            config.intermediate_size, config.hidden_size, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: Config, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer_idx)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:  # noqa: ANN401
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = residual + self.self_attn(hidden_states, **kwargs)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        return residual + self.mlp(hidden_states)


class CausalLM(nn.Module):
    """Its output layer has the weight of its embeddings."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i) for i in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size)
        self.rotary_emb = RotaryEmbedding(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        self.cache = StaticCache(config)

    def _update_causal_mask(self, embeds: Tensor, cache_position: Tensor) -> Tensor:
        length, target = embeds.shape[1], self.config.max_length
        mask = torch.full((length, target), torch.finfo(embeds.dtype).min)
        mask = torch.triu(mask, diagonal=1)
        mask *= torch.arange(target) > cache_position.reshape(-1, 1)
        return mask[None, None, :, :]

    def forward(self, input_ids: Tensor, cache_position: Tensor) -> CausalLMOutput:
        hidden_states = self.embed_tokens(input_ids)
        mask = self._update_causal_mask(hidden_states, cache_position)
        embeddings = self.rotary_emb(hidden_states, cache_position.unsqueeze(0))
        all_hidden_states: tuple[Tensor, ...] = ()
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states,
                position_embeddings=embeddings,
                attention_mask=mask,
                cache=self.cache,
                cache_position=cache_position,
            )
            all_hidden_states += (hidden_states,)
        logits = self.lm_head(self.norm(hidden_states)[:, -1:, :])
        return CausalLMOutput(logits=logits.float(), hidden_states=all_hidden_states)


def build() -> ModelCase:
    torch.manual_seed(0)
    config = Config()
    model = CausalLM(config).eval()

    def prompt(generator: random.Random) -> tuple[Tensor, Tensor]:
        length = generator.randint(2, 12)
        start = generator.randint(0, config.max_length - length)
        tokens = torch.tensor([[generator.randrange(48) for _ in range(length)]])
        return tokens, torch.arange(start, start + length)

    def token(generator: random.Random) -> tuple[Tensor, Tensor]:
        position = generator.randrange(config.max_length)
        return torch.tensor([[generator.randrange(48)]]), torch.tensor([position])

    length = Dim("length", min=2, max=12)
    return ModelCase(
        model,
        {
            "prefill": EntryPoint(
                model.forward,
                prompt(random.Random(1)),
                dynamic_shapes={
                    "input_ids": {1: length},
                    "cache_position": {0: length},
                },
            ),
            "decode": EntryPoint(model.forward, token(random.Random(2))),
            "cached": EntryPoint(model.cache.get_seq_length),
            "clear": EntryPoint(model.cache.reset),
        },
        inputs={"prefill": prompt, "decode": token},
        types=(CausalLMOutput,),
    )
