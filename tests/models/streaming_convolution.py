"""Causal convolutions over chunks, with the end of the last chunk as state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from etshared_plugin import EntryPoint

from .case import ModelCase


class StreamingConv1d(nn.Module):
    context: Tensor

    def __init__(
        self, channels: int, out: int, kernel: int, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.left = (kernel - 1) * dilation
        self.conv = nn.Conv1d(
            channels, out, kernel, dilation=dilation, groups=groups, bias=False
        )
        self.register_buffer("context", torch.zeros(1, channels, self.left))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.context, x], dim=-1)
        self.context = x[:, :, -self.left :]
        return self.conv(x)


class SeparableBlock(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.depthwise = StreamingConv1d(channels, channels, 3, dilation, channels)
        self.norm1 = nn.BatchNorm1d(channels)
        self.pointwise = nn.Conv1d(channels, channels, 1)
        self.norm2 = nn.BatchNorm1d(channels)
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.norm1(self.depthwise(x)))
        return x + self.act(self.norm2(self.pointwise(y)))


class RingBuffer(nn.Module):
    """The last frames, oldest first, without moving them."""

    def __init__(self, channels: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.register_buffer("frames", torch.zeros(1, channels, length))
        self.register_buffer("head", torch.zeros((), dtype=torch.int64))

    def push(self, x: Tensor) -> None:
        count = x.shape[-1]
        slots = torch.remainder(self.head + torch.arange(count), self.length)
        self.frames[:, :, slots] = x
        self.head.add_(count).remainder_(self.length)

    def ordered(self) -> Tensor:
        slots = (self.head + torch.arange(self.length)) % self.length
        return torch.index_select(self.frames, 2, slots)


class KeywordSpotter(nn.Module):
    def __init__(self, n_mels: int = 5, channels: int = 8, window: int = 16) -> None:
        super().__init__()
        self.frontend = StreamingConv1d(n_mels, channels, 5)
        self.norm = nn.BatchNorm1d(channels)
        self.blocks = nn.Sequential(*[SeparableBlock(channels, d) for d in (1, 2)])
        self.memory = RingBuffer(channels, window)
        self.attention = nn.Linear(channels, 1)
        self.classifier = nn.Linear(2 * channels, 4)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                nn.init.normal_(module.running_mean, std=0.2)
                nn.init.uniform_(module.running_var, 0.5, 2.0)

    def forward(self, mel: Tensor) -> Tensor:
        features = self.blocks(F.hardtanh(self.norm(self.frontend(mel))))
        self.memory.push(features)
        return features

    def classify(self) -> tuple[Tensor, Tensor]:
        window = self.memory.ordered().transpose(1, 2)
        weights = torch.softmax(self.attention(window), dim=1)
        mean = (weights * window).sum(dim=1)
        std = (weights * (window - mean.unsqueeze(1)) ** 2).sum(dim=1).sqrt()
        return self.classifier(torch.cat([mean, std], dim=-1)).softmax(-1), weights

    def start(self) -> None:
        for module in self.modules():
            if isinstance(module, StreamingConv1d):
                module.context = torch.zeros_like(module.context)
        self.memory.frames.zero_()
        self.memory.head.zero_()


def build() -> ModelCase:
    torch.manual_seed(0)
    model = KeywordSpotter().eval()
    chunk = torch.randn(1, 5, 8)
    frames = Dim("frames", min=2, max=16)
    return ModelCase(
        model,
        {
            "forward": EntryPoint(
                model.forward, (chunk,), dynamic_shapes={"mel": {2: frames}}
            ),
            "frame": EntryPoint(model.forward, (chunk[:, :, :1],)),
            "classify": EntryPoint(model.classify),
            "start": EntryPoint(model.start),
        },
    )
