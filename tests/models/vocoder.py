"""Sound from frames: harmonics with a running phase, and overlapping windows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from etshared_plugin import EntryPoint

from .case import ModelCase


class HarmonicSource(nn.Module):
    """Sines that go on where the last chunk ended; the phase is kept in float64."""

    def __init__(self, hop: int, harmonics: int, sample_rate: int) -> None:
        super().__init__()
        self.hop, self.sample_rate = hop, sample_rate
        self.mix = nn.Linear(harmonics, 1)
        self.register_buffer("phase", torch.zeros(1, 1, dtype=torch.float64))
        self.register_buffer("numbers", torch.arange(1, harmonics + 1).float())

    def forward(self, f0: Tensor) -> Tensor:
        f0 = f0.repeat_interleave(self.hop, dim=1)
        steps = (f0 / self.sample_rate).double()
        phase = self.phase + torch.cumsum(steps, dim=1)
        phase = phase - torch.floor(phase)
        self.phase.copy_(phase[:, -1:])
        angles = 2 * math.pi * phase.float().unsqueeze(-1) * self.numbers
        return torch.tanh(self.mix(torch.sin(angles))).transpose(1, 2)


class OverlapAdd(nn.Module):
    """A transposed convolution whose last samples belong to the next chunk too."""

    tail: Tensor

    def __init__(self, channels: int, out: int, hop: int) -> None:
        super().__init__()
        self.hop = hop
        self.up = nn.ConvTranspose1d(channels, out, 2 * hop, stride=hop)
        self.register_buffer("tail", torch.zeros(1, out, hop))

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        start = y[..., : self.hop] + self.tail - self.up.bias[:, None]
        self.tail = y[..., -self.hop :]
        return torch.cat([start, y[..., self.hop : -self.hop]], dim=-1)


class Vocoder(nn.Module):
    def __init__(self, n_mels: int = 6, channels: int = 8, hop: int = 4) -> None:
        super().__init__()
        self.pre = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(n_mels, channels, 3, padding=1)
        )
        self.source = HarmonicSource(hop, 3, 16000)
        self.up = OverlapAdd(channels, channels, hop)
        self.post = nn.Conv1d(channels + 1, 1, 1)
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))
        self.register_buffer("loudness", torch.tensor(-30.0))

    def forward(self, mel: Tensor, f0: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x = F.leaky_relu(self.pre(mel), 0.1)
        x = torch.cat([self.up(x), self.source(f0)], dim=1)
        audio = torch.tanh(self.post(F.elu(x))).squeeze(1)
        self.samples += audio.shape[-1]
        power = 10 * torch.log10(audio.pow(2).mean() + 1e-10)
        self.loudness.lerp_(power, 0.2)
        return audio, {"samples": self.samples, "loudness": self.loudness}

    def flush(self) -> Tensor:
        """Return what is left of the last windows, and end the sound."""
        tail = self.up.tail
        self.up.tail = torch.zeros_like(tail)
        self.source.phase.zero_()
        self.samples.zero_()
        return tail


def build() -> ModelCase:
    torch.manual_seed(0)
    model = Vocoder().eval()
    mel, f0 = torch.randn(1, 6, 5), 200 + 100 * torch.rand(1, 5)
    frames = Dim("frames", min=2, max=12)
    return ModelCase(
        model,
        {
            "forward": EntryPoint(
                model.forward,
                (mel, f0),
                dynamic_shapes={"mel": {2: frames}, "f0": {1: frames}},
            ),
            "flush": EntryPoint(model.flush),
        },
    )
