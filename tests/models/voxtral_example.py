"""ExecuTorch's own example of Voxtral Realtime: it hears while it speaks."""

from __future__ import annotations

import random
from typing import Any

import torch
from executorch.examples.models.voxtral_realtime.model import (
    StreamingAudioEncoderExport,
    VoxtralRealtimeConfig,
    VoxtralRealtimeModel,
)
from torch import Tensor, nn

from etshared_plugin import EntryPoint

from .case import ModelCase


class Voxtral(nn.Module):
    """What the example exports as programs of their own."""

    def __init__(self, config: VoxtralRealtimeConfig) -> None:
        super().__init__()
        self.model = VoxtralRealtimeModel(config)
        self.streaming = StreamingAudioEncoderExport(self.model, max_enc_len=8)
        self.register_buffer("t_cond", torch.randn(1, config.dim))

    def text_decoder(self, embeddings: Tensor, input_pos: Tensor) -> Tensor:
        return self.model.text_decoder(embeddings, input_pos, self.t_cond)


def build() -> ModelCase:
    torch.manual_seed(0)
    # This backend's caches and attention use operators of torch only.
    config = VoxtralRealtimeConfig(
        dim=16,
        n_layers=1,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        hidden_dim=24,
        vocab_size=32,
        ada_rms_norm_t_cond_dim=4,
        enc_dim=16,
        enc_n_layers=1,
        enc_n_heads=2,
        enc_head_dim=8,
        enc_hidden_dim=24,
        num_mel_bins=6,
        max_seq_len=20,
        backend="cuda",
    )
    voxtral = Voxtral(config).eval()

    def chunk(generator: random.Random) -> tuple[Any, ...]:
        start = 4 * generator.randrange(12)
        return torch.randn(1, 6, 8), torch.arange(start, start + 4)

    def step(generator: random.Random) -> tuple[Any, ...]:
        return torch.randn(1, 1, 16), torch.tensor([generator.randrange(20)])

    tokens = torch.tensor([[31, 0]])
    examples = random.Random(0)
    return ModelCase(
        voxtral,
        {
            "encode_chunk": EntryPoint(voxtral.streaming.forward, chunk(examples)),
            "encode_audio": EntryPoint(
                voxtral.model.encode_audio, (torch.randn(1, 6, 16),)
            ),
            "decode": EntryPoint(voxtral.text_decoder, step(examples)),
            "token_embedding": EntryPoint(voxtral.model.token_embedding, (tokens,)),
        },
        inputs={"encode_chunk": chunk, "decode": step},
    )
