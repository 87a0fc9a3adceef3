"""Voice activity: a transform as a convolution, an LSTM cell, and hysteresis."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etshared_plugin import EntryPoint

from .case import ModelCase


class STFT(nn.Module):
    def __init__(self, length: int, hop: int) -> None:
        super().__init__()
        self.hop, self.cutoff = hop, length // 2 + 1
        angles = (
            2
            * math.pi
            / length
            * torch.outer(torch.arange(self.cutoff), torch.arange(length))
        )
        basis = torch.cat([angles.cos(), -angles.sin()]) * torch.hann_window(length)
        self.register_buffer("forward_basis_buffer", basis[:, None, :])

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, self.hop), mode="reflect").unsqueeze(1)
        y = F.conv1d(x, self.forward_basis_buffer, stride=self.hop)
        real, imaginary = y[:, : self.cutoff], y[:, self.cutoff :]
        return torch.sqrt(real**2 + imaginary**2)


class VoiceActivity(nn.Module):
    """Remembers samples, the LSTM's state, and whether someone speaks."""

    def __init__(self, chunk: int = 32, context: int = 8, size: int = 12) -> None:
        super().__init__()
        self.context_size = context
        self.stft = STFT(16, 8)
        self.encoder = nn.Sequential(
            nn.Conv1d(9, size, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(size, size, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.rnn = nn.LSTMCell(size, size)
        self.decoder = nn.Sequential(nn.Dropout(0.1), nn.ReLU(), nn.Conv1d(size, 1, 1))
        self.register_buffer("context", torch.zeros(1, context))
        self.register_buffer("state", torch.zeros(2, 1, size))
        self.register_buffer("speaking", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("silent_chunks", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("threshold", torch.tensor(0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = torch.cat([self.context, x], dim=1)
        self.context[:] = x[:, -self.context_size :]
        features = self.encoder(self.stft(x)).mean(dim=-1)
        h, c = self.rnn(features, (self.state[0], self.state[1]))
        self.state = torch.stack([h, c])
        probability = torch.sigmoid(self.decoder(h.unsqueeze(-1)).squeeze(-1))[:, 0]
        voiced = probability >= self.threshold
        self.silent_chunks = torch.where(voiced, 0, self.silent_chunks + 1)
        started = voiced & ~self.speaking
        self.speaking |= voiced
        ended = self.speaking & (self.silent_chunks > 2)
        self.speaking[ended] = False
        return probability, (started, ended)

    def set_threshold(self, threshold: Tensor) -> None:
        self.threshold.copy_(threshold.clamp(0.05, 0.95))

    def reset_states(self) -> None:
        self.state = torch.zeros(2, 1, self.state.shape[-1])
        self.context = torch.zeros(1, self.context_size)
        self.speaking.fill_(False)
        self.silent_chunks -= self.silent_chunks


def build() -> ModelCase:
    torch.manual_seed(0)
    model = VoiceActivity().eval()
    return ModelCase(
        model,
        {
            "forward": EntryPoint(model.forward, (torch.randn(1, 32),)),
            "set_threshold": EntryPoint(model.set_threshold, (torch.tensor(0.5),)),
            "reset_states": EntryPoint(model.reset_states),
        },
    )
