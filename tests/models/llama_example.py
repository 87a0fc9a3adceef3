"""ExecuTorch's own example of Llama, with its caches."""

from __future__ import annotations

import random
from typing import Any

import torch
from executorch.examples.models.llama.llama_transformer import (
    Transformer,
    construct_transformer,
)
from executorch.examples.models.llama.model_args import ModelArgs
from executorch.examples.models.llama.source_transformation.custom_kv_cache import (
    replace_kv_cache_with_custom_kv_cache,
    replace_kv_cache_with_quantized_kv_cache,
)
from executorch.examples.models.llama.source_transformation.sdpa import (
    replace_sdpa_with_custom_op,
)
from torch import nn
from torch.export import Dim

from etshared_plugin import EntryPoint

from .case import ModelCase

MAX_CONTEXT = 24


def _transformer(**options: Any) -> Transformer:  # noqa: ANN401
    torch.manual_seed(0)
    return construct_transformer(
        ModelArgs(
            dim=32,
            n_heads=4,
            n_kv_heads=2,
            vocab_size=48,
            hidden_dim=40,
            max_seq_len=12,
            max_context_len=MAX_CONTEXT,
            use_kv_cache=True,
            **options,
        )
    ).eval()


def build() -> ModelCase:
    """Prompts of any length, whose first position is an input."""
    return _prompted(_transformer(n_layers=1, enable_dynamic_shape=True))


def build_custom_operators() -> ModelCase:
    """Attention and caches in operators of ExecuTorch's own, as its recipes have."""
    model = _transformer(n_layers=2, enable_dynamic_shape=True)
    replace_sdpa_with_custom_op(model)
    return _prompted(replace_kv_cache_with_custom_kv_cache(model))


def build_quantized_cache() -> ModelCase:
    """The same with a cache of eight bits."""
    model = _transformer(n_layers=1, enable_dynamic_shape=True)
    replace_sdpa_with_custom_op(model)
    return _prompted(replace_kv_cache_with_quantized_kv_cache(model))


def _prompted(model: nn.Module) -> ModelCase:
    def inputs(length: int, start: int, generator: random.Random) -> tuple[Any, ...]:
        tokens = torch.tensor([[generator.randrange(48) for _ in range(length)]])
        return tokens, {"input_pos": torch.tensor([start])}

    def prompt(generator: random.Random) -> tuple[Any, ...]:
        length = generator.randint(2, 12)
        return inputs(length, generator.randint(0, MAX_CONTEXT - length), generator)

    def token(generator: random.Random) -> tuple[Any, ...]:
        return inputs(1, generator.randrange(MAX_CONTEXT), generator)

    return ModelCase(
        model,
        {
            "prefill": EntryPoint(
                model.forward,
                prompt(random.Random(0)),
                dynamic_shapes={
                    "tokens": {1: Dim("length", min=2, max=12)},
                    "attn_options": {"input_pos": None},
                },
            ),
            "decode": EntryPoint(model.forward, token(random.Random(0))),
        },
        inputs={"prefill": prompt, "decode": token},
    )


def build_hybrid() -> ModelCase:
    """Short convolutions and experts beside attention, a token at a time."""
    model = _transformer(
        n_layers=2,
        layer_types=["conv", "full_attention"],
        moe=True,
        num_experts=3,
        num_activated_experts=2,
        use_qk_norm=True,
        qk_norm_before_rope=True,
        use_hf_rope=True,
    )

    def token(generator: random.Random) -> tuple[Any, ...]:
        tokens = torch.tensor([[generator.randrange(48)]])
        position = torch.tensor([generator.randrange(MAX_CONTEXT)])
        return tokens, {"input_pos": position}

    return ModelCase(
        model,
        {
            "decode": EntryPoint(model.forward, token(random.Random(0))),
            "reset_conv": EntryPoint(model.layers[0].reset_cache),
        },
        inputs={"decode": token},
    )
